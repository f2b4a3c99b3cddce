"""The bytes of a result's key and value as Spark SQL, by the plan's formats."""

from __future__ import annotations

from collections.abc import Sequence

from pipelines.plan import Query
from statestore.errors import InvalidConfig

# Name, expression and type of a field; the type may be empty where the format does not have to know it.
Field = tuple[str, str, str]


def value_bytes(query: Query) -> str:
    """The serialised value of a result."""
    fields = [(output.name, output.expression, output.type) for output in query.outputs]
    if query.value_format == "json" and query.wrapped:
        listed = ", ".join(f"{expression} AS `{name}`" for name, expression, _ in fields)
        return f"CAST(to_json(struct({listed}), map('ignoreNullFields', 'false')) AS BINARY)"
    if query.value_format == "kafka" and query.outputs[0].type == "double":
        return _double(query.outputs[0].expression)
    return _bytes(query.value_format, query.value_delimiter, fields)


def key_fields_bytes(query: Query, fields: Sequence[Field]) -> str:
    """The serialised key; null for no fields. A group with a null part has none, a row's is null if all parts are."""
    if not fields or query.key_format == "none":
        return "CAST(NULL AS BINARY)"
    known = (" OR " if query.stateless else " AND ").join(f"({expression}) IS NOT NULL" for _, expression, _ in fields)
    if query.key_format == "json" and len(fields) > 1:
        listed = ", ".join(f"{expression} AS `{name}`" for name, expression, _ in fields)
        text = f"to_json(struct({listed}), map('ignoreNullFields', 'false'))"
        return f"CASE WHEN {known} THEN CAST({text} AS BINARY) END"
    if query.key_format == "delimited":
        fields = fields if query.base64_keys else [(name, expression, "") for name, expression, _ in fields]
        return f"CASE WHEN {known} THEN {_bytes('delimited', query.key_delimiter, fields)} END"
    if query.key_format == "kafka" and query.group_by[0].type == "double":
        return _double(fields[0][1])
    return _bytes(query.key_format, query.key_delimiter, fields)


def _double(expression: str) -> str:
    """A double's 8 bytes, for which Spark has no cast."""
    bits = f"java_method('java.lang.Double', 'doubleToLongBits', {expression})"
    return f"CASE WHEN ({expression}) IS NOT NULL THEN CAST(CAST({bits} AS BIGINT) AS BINARY) END"


def _bytes(form: str, delimiter: str, fields: Sequence[Field]) -> str:
    expression = fields[0][1]
    match form:
        case "json":
            # Spark writes objects only: the one field's value stands behind `{"v":`.
            text = f"to_json(struct({expression} AS v), map('ignoreNullFields', 'false'))"
            bare = f"substring({text}, 6, length({text}) - 6)"
            return f"CASE WHEN ({expression}) IS NOT NULL THEN CAST({bare} AS BINARY) END"
        case "delimited":
            texts = (_text(each, kind) for _, each, kind in fields)
            parts = ", ".join(_csv(text, delimiter, first=at == 0) for at, text in enumerate(texts))
            return f"CAST(concat_ws('{_literal(delimiter)}', {parts}) AS BINARY)"
        case "kafka":
            # Outside of ANSI mode Spark casts integers to big-endian bytes, which is the KAFKA format.
            return f"CAST({expression} AS BINARY)"
    raise InvalidConfig("plan has an unknown format", format=form)


def _text(expression: str, kind: str) -> str:
    """As text; bytes in base64, in which Spark begins a new line every 76 characters."""
    if kind == "bytes":
        return rf"replace(base64({expression}), '\r\n', '')"
    return f"CAST({expression} AS STRING)"


def _csv(text: str, delimiter: str, *, first: bool) -> str:
    """One field: empty for null, in quotes if it holds the delimiter, a quote or a line break.

    Also in quotes, as Commons CSV has it, is what begins with a space, `!`, `"` or `#` or ends with a space, and the
    `first` field if it begins with anything but a letter or a digit of ASCII, or is empty.
    """
    special = " OR ".join(
        f"contains({text}, '{_literal(char)}')" for char in dict.fromkeys((delimiter, '"', "\n", "\r"))
    )
    special += f" OR {text} RLIKE '^[\\\\x00-#]|[\\\\x00-\\\\x20]$'"
    if first:
        special += f" OR {text} RLIKE '^[^0-9A-Za-z]' OR {text} = ''"
    quoted = f"""concat('"', replace({text}, '"', '""'), '"')"""
    return f"coalesce(CASE WHEN {special} THEN {quoted} ELSE {text} END, '')"


def _literal(char: str) -> str:
    return {"'": "\\'", "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(char, char)
