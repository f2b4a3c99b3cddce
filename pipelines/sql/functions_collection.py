"""Functions over arrays and maps."""

from __future__ import annotations

from collections.abc import Callable

from pipelines.sql.casting import comparable
from pipelines.sql.error import Refusal
from pipelines.sql.functions import Call, Scalar, Value, common_type
from pipelines.sql.types import BOOLEAN, INT, STRING, SqlType, array_of, map_of


def _element(call: Call, index: int) -> SqlType:
    return call.want(index, "array").type.inner[0]


def _sets(function: str) -> Callable[[Call], Value]:
    """A function of two arrays of one type."""

    def build(call: Call) -> Value:
        type_ = common_type((call.want(0, "array"), call.want(1, "array")), call.name)
        left, right = (value.cast(type_) for value in call.arguments)
        if "map<" not in type_.spark:
            return call.result(f"{function}({left}, {right})", type_)
        found = f"exists({right}, __q -> {_same('__q', '__p', type_.inner[0])})"  # Spark compares no maps
        made = {
            "array_union": f"concat({left}, {right})",
            "array_except": f"filter({left}, __p -> NOT {found})",
            "array_intersect": f"filter({left}, __p -> {found})",
        }[function]
        return call.result(_distinct(made, type_), type_)

    return build


def _distinct(text: str, type_: SqlType) -> str:
    """The items of an array, each where it comes first."""
    if "map<" not in type_.spark:
        return f"array_distinct({text})"
    before = f"exists(slice(__a, 1, __i), __b -> {_same('__b', '__x', type_.inner[0])})"
    return f"transform(array({text}), __a -> filter(__a, (__x, __i) -> NOT {before}))[0]"


def _without_doubles(call: Call) -> Value:
    array = call.want(0, "array")
    return call.result(_distinct(array.text, array.type), array.type)


def _together(kind: str, function: str, nothing: str) -> Callable[[Call], Value]:
    """Two collections of one type as one. A missing one counts as empty, unless both are."""

    def build(call: Call) -> Value:
        given = [index for index in range(2) if call.arguments[index].type.kind != "null"]
        type_ = common_type(tuple(call.want(index, kind) for index in given or range(2)), call.name)
        left, right = (value.cast(type_) for value in call.arguments)
        both = f"{function}(coalesce({left}, {nothing}), coalesce({right}, {nothing}))"
        return call.result(f"CASE WHEN {left} IS NOT NULL OR {right} IS NOT NULL THEN {both} END", type_)

    return build


def _same(left: str, right: str, type_: SqlType) -> str:
    """Whether two values are the same, or both NULL."""
    return f"{comparable(left, type_)} <=> {comparable(right, type_)}"


def _contains(call: Call) -> Value:
    """False for no array; NULL is found as a value is."""
    array, item = call.want(0, "array"), call.arguments[1]
    wanted = item.cast(array.type.inner[0]) if item.type != array.type.inner[0] else item.text
    same = _same("__c", wanted, array.type.inner[0])
    return call.result(f"coalesce(exists({array.text}, __c -> {same}), false)", BOOLEAN)


def _extreme(function: str) -> Callable[[Call], Value]:
    def build(call: Call) -> Value:
        return call.result(f"{function}({call.want(0, 'array').text})", _element(call, 0))

    return build


def _join(call: Call) -> Value:
    """The items as text with a delimiter, a comma by default, between them; NULL is `null`, as a delimiter nothing."""
    array = call.want(0, "array")
    mark = f"coalesce({call.want(1, 'string').text}, '')" if len(call.arguments) == 2 else "','"
    item = Value("__j", array.type.inner[0], call.at).cast(STRING)
    return call.result(f"array_join(transform({array.text}, __j -> coalesce({item}, 'null')), {mark})", STRING)


def _remove(call: Call) -> Value:
    array, item = call.want(0, "array"), call.arguments[1]
    wanted = item.cast(array.type.inner[0])
    same = _same("__r", wanted, array.type.inner[0])
    return call.result(f"filter({array.text}, __r -> NOT ({same}))", array.type)


def _sort(call: Call) -> Value:
    """NULLs are last in both directions."""
    array = call.want(0, "array")
    order = call.want(1, "string").words if len(call.arguments) == 2 else "ASC"
    if order is None or order.upper() not in ("ASC", "ASCENDING", "DESC", "DESCENDING"):
        raise Refusal(call.arguments[1].at, "ARRAY_SORT needs a literal direction", "'ASC' or 'DESC'")
    if order.upper().startswith("DESC"):
        return call.result(f"sort_array({array.text}, false)", array.type)
    return call.result(f"array_sort({array.text})", array.type)


def _slice(call: Call) -> Value:
    """Items from one place to another, both included and counted from 1. NULL is the first or the last place; NULL is
    also the result where there is no such place."""
    array = call.want(0, "array")
    first = f"coalesce({call.want(1, 'integer').cast(INT)}, 1)"
    last = f"coalesce({call.want(2, 'integer').cast(INT)}, size({array.text}))"
    within = f"{first} >= 1 AND {last} <= size({array.text}) AND {last} >= {first} - 1"
    return call.result(f"CASE WHEN {within} THEN slice({array.text}, {first}, {last} - {first} + 1) END", array.type)


def _as_map(call: Call) -> Value:
    """A key that is NULL is written `null`; a key without a value has NULL."""
    keys, values = call.want(0, "array"), call.want(1, "array")
    if keys.type.inner[0] != STRING:
        raise Refusal(keys.at, f"AS_MAP needs strings as keys: {call.unaccepted()}", "use CAST")
    entries = f"transform({keys.text}, (__k, __i) -> struct(coalesce(__k, 'null'), get({values.text}, __i)))"
    text = f"CASE WHEN {values.text} IS NOT NULL THEN map_from_entries({entries}) END"
    return call.result(text, map_of(STRING, values.type.inner[0]))


def _map_part(function: str, index: int) -> Callable[[Call], Value]:
    def build(call: Call) -> Value:
        map_ = call.want(0, "map")
        return call.result(f"{function}({map_.text})", array_of(map_.type.inner[index]))

    return build


def _entries(call: Call) -> Value:
    map_, ordered = call.want(0, "map"), call.want(1, "boolean").text
    key, value = map_.type.inner
    type_ = array_of(SqlType("struct", inner=(key, value), names=("K", "V")))
    found = f"map_entries({map_.text})"
    in_order = f"CASE WHEN {ordered} THEN sort_array({found}) ELSE {found} END"
    return call.result(f"transform({in_order}, __n -> named_struct('K', __n.key, 'V', __n.value))", type_)


def _length(call: Call) -> Value:
    return call.result(
        f"CASE WHEN {call.want(0, 'array').text} IS NOT NULL THEN size({call.arguments[0].text}) END", INT
    )


COLLECTIONS: dict[str, Scalar] = {
    "ARRAY_CONCAT": Scalar(2, 2, _together("array", "concat", "array()")),
    "ARRAY_CONTAINS": Scalar(2, 2, _contains),
    "ARRAY_DISTINCT": Scalar(1, 1, _without_doubles),
    "ARRAY_EXCEPT": Scalar(2, 2, _sets("array_except")),
    "ARRAY_INTERSECT": Scalar(2, 2, _sets("array_intersect")),
    "ARRAY_JOIN": Scalar(1, 2, _join),
    "ARRAY_LENGTH": Scalar(1, 1, _length),
    "ARRAY_MAX": Scalar(1, 1, _extreme("array_max")),
    "ARRAY_MIN": Scalar(1, 1, _extreme("array_min")),
    "ARRAY_REMOVE": Scalar(2, 2, _remove),
    "ARRAY_SORT": Scalar(1, 2, _sort),
    "ARRAY_UNION": Scalar(2, 2, _sets("array_union")),
    "AS_MAP": Scalar(2, 2, _as_map),
    "ENTRIES": Scalar(2, 2, _entries),
    "MAP_KEYS": Scalar(1, 1, _map_part("map_keys", 0)),
    # Where both have a key, the second's value counts.
    "MAP_UNION": Scalar(2, 2, _together("map", "map_concat", "map()")),
    "MAP_VALUES": Scalar(1, 1, _map_part("map_values", 1)),
    "SLICE": Scalar(3, 3, _slice),
}
