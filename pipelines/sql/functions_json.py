"""Functions over JSON in strings.

Spark's `from_json` of strings gives an item's text without saying whether it was in quotes; a VARIANT of the same text
knows the kind of each item. The two together are the items as JSON, in the order and with the digits of the text.
"""

from __future__ import annotations

from pipelines.sql.casting import cast_text
from pipelines.sql.functions import Call, Scalar, Value, shaped
from pipelines.sql.quoting import quote, string_literal
from pipelines.sql.types import BOOLEAN, INT, STRING, SqlType, array_of, map_of

STRINGS = array_of(STRING)
_KIND = "CASE WHEN is_variant_null({0}) THEN 'VOID' ELSE schema_of_variant({0}) END"
_ITEMS = "from_json({}, 'array<string>')"
_ITEM_KINDS = f"transform(TRY_CAST(try_parse_json({{}}) AS ARRAY<VARIANT>), __v -> {_KIND.format('__v')})"


def _quoted(text: str) -> str:
    """A string as JSON."""
    return f"substring(to_json(struct({text} AS v)), 6, length(to_json(struct({text} AS v))) - 6)"


def _json_of(text: str, kind: str) -> str:
    """An item as JSON, from its text and its kind."""
    return f"CASE WHEN {kind} = 'STRING' THEN {_quoted(text)} ELSE coalesce({text}, 'null') END"


def _items(text: str) -> str:
    """The items of a JSON array as JSON; NULL for anything else."""
    return f"zip_with({_ITEMS.format(text)}, {_ITEM_KINDS.format(text)}, (__t, __k) -> {_json_of('__t', '__k')})"


def _fields(text: str) -> str:
    """The fields of a JSON object as a map of JSON; NULL for anything else."""
    kinds = f"TRY_CAST(try_parse_json({text}) AS MAP<STRING, VARIANT>)"
    value = _json_of("__t", _KIND.format("element_at(__f, __n)"))
    return _once(kinds, "__f", f"transform_values(from_json({text}, 'map<string,string>'), (__n, __t) -> {value})")


def _once(text: str, name: str, inner: str) -> str:
    """`inner`, in which `name` is the value: what stands within a function of items is computed for each of them."""
    return f"transform(array({text}), {name} -> {inner})[0]"


def _items_of(call: Call) -> Value:
    return call.result(_items(call.want(0, "string").text), STRINGS)


def _array_contains(call: Call) -> Value:
    """Whether an item is the value: of the same kind, so that 1 is not '1'. False for what is no array."""
    text, wanted = call.want(0, "string").text, call.arguments[1]
    pairs = f"zip_with({_ITEMS.format(text)}, {_ITEM_KINDS.format(text)}, (__t, __k) -> struct(__t, __k))"
    match wanted.type.kind:
        case "string":
            kind = "= 'STRING'"
        case "boolean":
            kind = "= 'BOOLEAN'"
        case "int" | "bigint":
            kind = "= 'BIGINT'"
        case _:
            kind = "RLIKE '^(DOUBLE|DECIMAL)'"
    nothing = "__i.__k = 'VOID'"
    if wanted.type.kind == "null":
        found = nothing
    else:
        same = f"__i.__k {kind} AND {_same(wanted)}"
        found = f"CASE WHEN {wanted.text} IS NULL THEN {nothing} ELSE {same} END"
    return call.result(f"coalesce(exists({pairs}, __i -> {found}), false)", BOOLEAN)


def _same(wanted: Value) -> str:
    if wanted.type.is_number and not wanted.type.is_integer:
        return f"CAST(__i.__t AS DOUBLE) = {wanted.cast(SqlType('double'))}"
    return f"__i.__t = {wanted.cast(STRING)}"


def _concat(call: Call) -> Value:
    """Objects are one object, in which the last of equal names counts; all else is one array of all items."""
    texts = [call.want(index, "string").text for index in range(len(call.arguments))]
    maps = [f"from_json({text}, 'map<string,string>')" for text in texts]
    together = _fields(texts[0])
    for text in texts[1:]:
        fields = _fields(text)
        known = f"from_json({text}, 'map<string,string>')"
        kept = _once(known, "__w", f"map_filter({together}, (__o, __u) -> NOT map_contains_key(__w, __o))")
        together = f"map_concat({kept}, {fields})"
    pairs = f"transform(map_entries({together}), __e -> concat({_quoted('__e.key')}, ':', __e.value))"
    merged = f"concat('{{', array_join({pairs}, ','), '}}')"
    arrays = ", ".join(f"coalesce({_items(text)}, array({_whole(text)}))" for text in texts)
    joined = f"concat('[', array_join(concat({arrays}), ','), ']')"
    objects = " AND ".join(f"{text} IS NOT NULL" for text in maps)
    valid = " AND ".join(f"try_parse_json({text}) IS NOT NULL" for text in texts)
    return call.result(f"CASE WHEN {objects} THEN {merged} WHEN {valid} THEN {joined} END", STRING)


def _whole(text: str) -> str:
    """A JSON value that is no array, written again."""
    wrapped = f"concat('[', {text}, ']')"
    return f"element_at({_items(wrapped)}, 1)"


def _to_json(call: Call) -> Value:
    """Any value as JSON; a time is its text there, also inside of others."""
    value = call.arguments[0]
    return call.result(_quoted_any(_written(value.text, value.type, 0)), STRING)


def _quoted_any(text: str) -> str:
    json = f"to_json(struct({text} AS v), map('ignoreNullFields', 'false'))"
    return f"substring({json}, 6, length({json}) - 6)"


def _written(text: str, type_: SqlType, depth: int) -> str:
    """The value in the type in which its JSON is TO_JSON_STRING's."""
    if type_.is_time:
        return cast_text(text, type_, STRING)
    if not _has_time(type_):
        return text
    e = f"__j{depth}"
    if type_.kind == "array":
        return f"transform({text}, {e} -> {_written(e, type_.inner[0], depth + 1)})"
    if type_.kind == "map":
        return f"transform_values({text}, (__n{depth}, {e}) -> {_written(e, type_.inner[1], depth + 1)})"
    fields = zip(type_.names, type_.inner, strict=True)
    parts = (f"{string_literal(name)}, {_written(f'{text}.{quote(name)}', inner, depth + 1)}" for name, inner in fields)
    return f"CASE WHEN {text} IS NOT NULL THEN named_struct({', '.join(parts)}) END"


def _has_time(type_: SqlType) -> bool:
    return type_.is_time or any(_has_time(inner) for inner in type_.inner)


def _extract(call: Call) -> Value:
    """A string at a JSON path as it is, anything else as its JSON; null is NULL."""
    return call.result(f"get_json_object({call.want(0, 'string').text}, {call.want(1, 'string').text})", STRING)


JSON: dict[str, Scalar] = {
    "EXTRACTJSONFIELD": Scalar(2, 2, _extract),
    "IS_JSON_STRING": shaped("(try_parse_json({0}) IS NOT NULL)", BOOLEAN, "string"),
    "JSON_ARRAY_CONTAINS": Scalar(2, 2, _array_contains),
    "JSON_ARRAY_LENGTH": shaped("json_array_length({0})", INT, "string"),
    "JSON_CONCAT": Scalar(1, None, _concat),
    "JSON_ITEMS": Scalar(1, 1, _items_of),
    "JSON_KEYS": shaped("json_object_keys({0})", STRINGS, "string"),
    # A string is there without its quotes.
    "JSON_RECORDS": shaped("from_json({0}, 'map<string,string>')", map_of(STRING, STRING), "string"),
    "TO_JSON_STRING": Scalar(1, 1, _to_json),
}
