"""CAST between any two types as Spark SQL text, explicit or implied, with ksqlDB's results."""

from __future__ import annotations

from pipelines.sql.quoting import quote, string_literal
from pipelines.sql.types import DATE, STRING, TIMESTAMP, SqlType

# What Spark would read without a year is the clock's: `today`, and an hour alone. A batch may run twice.
_YEAR = "^\\\\s*[-+]?[0-9]{4}"

DAY_MS = "86400000L"
TIMESTAMP_PATTERN = "yyyy-MM-dd'T'HH:mm:ss.SSS"


def cast_text(text: str, source: SqlType, target: SqlType, depth: int = 0) -> str:
    """The expression `text` of type `source` as `target`; what does not convert is null.

    Which pairs ksqlDB has is `types.castable`'s question. `depth` numbers the variables of nested lambdas.
    """
    if source == target:
        return text
    if source.kind == "null":
        return f"CAST(NULL AS {target.ddl if target.is_nested else target.ddl.upper()})"
    if target == STRING:
        return _to_string(text, source, depth)
    if target.is_nested:
        return _nested(text, source, target, depth)
    if source == STRING:
        return _from_string(text, target)
    if source == TIMESTAMP:
        part = f"floor({text} / {DAY_MS})" if target == DATE else f"pmod({text}, {DAY_MS})"
        return f"CAST({part} AS INT)"
    if source == DATE:
        return f"(CAST({text} AS BIGINT) * {DAY_MS})"
    return f"CAST({text} AS {target.ddl.upper()})"


def _to_string(text: str, source: SqlType, depth: int) -> str:
    e = f"__e{depth}"
    match source.kind:
        case "timestamp":
            pattern = TIMESTAMP_PATTERN.replace("'", "\\'")
            return f"date_format(timestamp_millis({text}), '{pattern}')"
        case "date":
            return f"CAST(date_from_unix_date({text}) AS STRING)"
        case "time":
            short = f"date_format(timestamp_millis({text}), 'HH:mm')"
            return (
                f"CASE WHEN {text} % 60000 = 0 THEN {short} ELSE date_format(timestamp_millis({text}), 'HH:mm:ss') END"
            )
        case "array":
            items = f"transform({text}, {e} -> {_shown(e, source.inner[0], depth)})"
            return f"concat('[', array_join({items}, ', '), ']')"
        case "map":
            key, value = source.inner
            pair = f"concat({_shown(f'{e}.key', key, depth)}, '=', {_shown(f'{e}.value', value, depth)})"
            return f"concat('{{', array_join(transform(map_entries({text}), {e} -> {pair}), ', '), '}}')"
        case "struct":
            pairs = zip(source.names, source.inner, strict=True)
            fields = (
                f"concat({string_literal(f'{name}=')}, {_shown(f'{text}.{quote(name)}', type_, depth)})"
                for name, type_ in pairs
            )
            shown = f"concat('Struct{{', concat_ws(',', {', '.join(fields)}), '}}')"
            return f"CASE WHEN {text} IS NOT NULL THEN {shown} END"
    return f"CAST({text} AS STRING)"


def _shown(text: str, type_: SqlType, depth: int) -> str:
    return f"coalesce({cast_text(text, type_, STRING, depth + 1)}, 'null')"


def _from_string(text: str, target: SqlType) -> str:
    match target.kind:
        case "boolean":
            told = f"(startswith('true', lower({text})) OR startswith('yes', lower({text})))"
            return f"CASE WHEN {text} IS NOT NULL THEN {told} AND {text} <> '' END"
        case "int" | "bigint":
            return f"CASE WHEN {text} RLIKE '^\\\\s*[-+]?[0-9]+\\\\s*$' THEN CAST({text} AS {target.ddl.upper()}) END"
        case "timestamp":
            return f"CASE WHEN {text} RLIKE '{_YEAR}' THEN unix_millis(CAST({text} AS TIMESTAMP)) END"
        case "date":
            return f"CASE WHEN {text} RLIKE '{_YEAR}' THEN unix_date(CAST({text} AS DATE)) END"
        case "time":
            return f"CAST(unix_millis(CAST(concat('1970-01-01T', {text}) AS TIMESTAMP)) AS INT)"
        case "decimal":
            # The JVM writes out the digits of 1e-999999999, which ends its process.
            return (
                f"CASE WHEN NOT {text} RLIKE '[eE][-+]?0*[1-9][0-9]{{3}}' THEN CAST({text} AS {target.ddl.upper()}) END"
            )
    return f"CAST({text} AS {target.ddl.upper()})"


def _nested(text: str, source: SqlType, target: SqlType, depth: int) -> str:
    e = f"__e{depth}"
    if source.kind == "array":
        return f"transform({text}, {e} -> {cast_text(e, source.inner[0], target.inner[0], depth + 1)})"
    if source.kind == "map":
        key = cast_text(f"{e}.key", source.inner[0], target.inner[0], depth + 1)
        value = cast_text(f"{e}.value", source.inner[1], target.inner[1], depth + 1)
        return f"map_from_entries(transform(map_entries({text}), {e} -> struct({key} AS key, {value} AS value)))"
    known = dict(zip(source.names, source.inner, strict=True))
    fields = []
    for name, type_ in zip(target.names, target.inner, strict=True):
        value = f"CAST(NULL AS {type_.ddl})"
        if name in known:
            value = cast_text(f"{text}.{quote(name)}", known[name], type_, depth + 1)
        fields.append(f"{string_literal(name)}, {value}")
    return f"CASE WHEN {text} IS NOT NULL THEN named_struct({', '.join(fields)}) END"


def comparable(text: str, type_: SqlType, depth: int = 0) -> str:
    """A value as it can be compared with another of its type: a map, wherever in it, as its entries, ordered by key."""
    if "map<" not in type_.spark:
        return text
    e = f"__m{depth}"
    if type_.kind == "array":
        return f"transform({text}, {e} -> {comparable(e, type_.inner[0], depth + 1)})"
    if type_.kind == "map":
        value = comparable(f"{e}.value", type_.inner[1], depth + 1)
        return f"array_sort(transform(map_entries({text}), {e} -> struct({e}.key, {value})))"
    fields = zip(type_.names, type_.inner, strict=True)
    parts = (comparable(f"{text}.{quote(name)}", inner, depth + 1) for name, inner in fields)
    return f"CASE WHEN {text} IS NOT NULL THEN struct({', '.join(parts)}) END"
