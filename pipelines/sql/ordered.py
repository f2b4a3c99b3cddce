"""Calls of aggregates that see their rows one after the other: their arguments, and the type of what they give.

What a call takes behind the value are literals: how many values (TOPK(x, 3)), and for the BY_OFFSET functions whether
nulls are passed over, which they are unless it says `false`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipelines.plan import EARLIEST, LATEST, Aggregate
from pipelines.sql.error import Refusal
from pipelines.sql.functions import Value
from pipelines.sql.nodes import Call, Node, Number, Truth, unwrapped
from pipelines.sql.printer import print_tree
from pipelines.sql.types import BIGINT, BYTES, DOUBLE, NULL, STRING, SqlType, array_of, map_of

# Behind the value they take how many values they keep at most: what a session's setting says is written so.
LIMITED = ("COLLECT_LIST", "COLLECT_SET")
_BY_OFFSET = {"LATEST_BY_OFFSET": (LATEST, "latest_n"), "EARLIEST_BY_OFFSET": (EARLIEST, "earliest_n")}


@dataclass(frozen=True)
class Ordered:
    """An aggregate without a name yet, and the type of its result."""

    aggregate: Aggregate
    type: SqlType


def plan_ordered(call: Call, arguments: Sequence[Value]) -> Ordered:
    """The aggregate that the call asks for; `arguments` are over the rows."""
    argument = arguments[0]
    name, type_ = call.function, argument.type
    if type_ == NULL:
        raise Refusal(argument.at, f"{name} of NULL has no type")
    if name in _BY_OFFSET:
        return _by_offset(call, argument)
    if name in ("TOPK", "TOPKDISTINCT"):
        return _largest(call, arguments)
    if name in LIMITED and len(arguments) == 2:
        aggregate = Aggregate("", name.lower(), argument.text, type_.spark, most=_how_many(call.arguments[1]))
        return Ordered(aggregate, array_of(type_))
    _require_count(call, 1)
    match name:
        case "STDDEV_SAMP" | "STDDEV_SAMPLE":
            if not type_.is_number:
                raise Refusal(argument.at, f"{name} needs a number, this is {type_.sql}", "use CAST")
            summed = BIGINT if type_.is_integer else DOUBLE
            return Ordered(Aggregate("", name.lower(), argument.text, summed.spark), DOUBLE)
        case "HISTOGRAM":
            if type_ != STRING:
                raise Refusal(argument.at, f"HISTOGRAM needs a string, this is {type_.sql}", "use CAST")
            result = map_of(STRING, BIGINT)
        case "COUNT_DISTINCT":
            result = BIGINT
        case "ATTR":
            result = type_
        case "COLLECT_MAP":
            if type_.kind != "map":
                raise Refusal(argument.at, f"COLLECT_MAP needs a map, this is {type_.sql}")
            value = "substring(to_json(struct(__v AS v)), 6, length(to_json(struct(__v AS v))) - 6)"
            texts = f"transform_values({argument.text}, (__k, __v) -> coalesce(nullif({value}, ''), 'null'))"
            return Ordered(Aggregate("", name.lower(), texts, type_.spark), type_)
        case _:
            result = array_of(type_)
    return Ordered(Aggregate("", name.lower(), argument.text, type_.spark), result)


def _largest(call: Call, arguments: Sequence[Value]) -> Ordered:
    """TOPK(x, k); with more columns between the two, rows of them all, ordered by the first."""
    name, first, others = call.function, arguments[0], arguments[1:-1]
    if len(arguments) < 2 or (others and name == "TOPKDISTINCT"):
        _require_count(call, 2)
    plain = first.type.is_number or first.type.is_time or first.type == STRING
    if not plain and (others or first.type != BYTES):
        raise Refusal(first.at, f"{name} needs numbers, times, strings or bytes, this is {first.type.sql}")
    text, type_ = first.text, first.type
    if others:
        names = ("sort_col", *(f"col{number}" for number in range(len(others))))
        values = (first, *(other if other.type != NULL else _untyped(other) for other in others))
        pairs = ", ".join(f"'{field}', {value.text}" for field, value in zip(names, values, strict=True))
        text = f"CASE WHEN {first.text} IS NOT NULL THEN named_struct({pairs}) END"
        type_ = SqlType("struct", inner=tuple(value.type for value in values), names=names)
    aggregate = Aggregate("", name.lower(), text, type_.spark, most=_how_many(call.arguments[-1]))
    return Ordered(aggregate, array_of(type_))


def _untyped(value: Value) -> Value:
    raise Refusal(value.at, "NULL has no type", "give it one: CAST(NULL AS STRING)")


def _by_offset(call: Call, argument: Value) -> Ordered:
    one, several = _BY_OFFSET[call.function]
    options = [unwrapped(option) for option in call.arguments[1:]]
    most = _how_many(options.pop(0)) if options and isinstance(options[0], Number) else None
    nulls = False
    if options:
        flag = options.pop(0)
        if not isinstance(flag, Truth):
            place = len(call.arguments) - len(options)
            told = f"Parameter {place} passed to function {call.function} must be a literal constant"
            message = f"{told}, but was expression: '{print_tree(flag)}'"
            raise Refusal(flag.at, message, "a literal number of values, then true or false")
        nulls = not flag.value
    if options:
        raise Refusal(options[0].at, f"{call.function} takes at most 3 arguments")
    function = one if most is None else several
    aggregate = Aggregate("", function, argument.text, argument.type.spark, most=most, nulls=nulls)
    return Ordered(aggregate, argument.type if most is None else array_of(argument.type))


def _require_count(call: Call, count: int) -> None:
    if len(call.arguments) != count:
        plural = "" if count == 1 else "s"
        raise Refusal(call.at, f"{call.function} takes {count} argument{plural}, not {len(call.arguments)}")


def _how_many(node: Node) -> int:
    bare = unwrapped(node)
    if not isinstance(bare, Number) or not bare.text.isdecimal() or int(bare.text) < 1:
        raise Refusal(node.at, "a literal whole number of at least 1 says how many values are kept")
    return int(bare.text)
