"""How the values of a list become one type: the items of ARRAY, the values of MAP, the results of CASE, and IN.

Numbers become the type that holds all of them, structs the one that has all fields. A literal string beside numbers,
booleans or times is read as one of them, and is refused if it is none. NULL takes any type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal, InvalidOperation

from pipelines.sql.error import Refusal
from pipelines.sql.functions import Value
from pipelines.sql.nodes import Node
from pipelines.sql.printer import print_tree
from pipelines.sql.types import BOOLEAN, STRING, SqlType, common

HINT = "You might need to add explicit type casts."
Literal = Callable[[str], Value]


def coerced(values: Sequence[Value], nodes: Sequence[Node], number: Literal) -> tuple[list[Value], SqlType]:
    """The values, literal strings read as what they stand beside, and the type of all; kind null if all are NULL.

    `number` makes the value of a number's text.
    """
    others = [v.type for v in values if v.type.kind != "null" and v.words is None]
    beside = next((type_ for type_ in others if type_ != STRING), STRING)
    read = [_read(value, beside, number) if value.words is not None else value for value in values]
    type_ = read[0].type
    for value, node in zip(read[1:], nodes[1:], strict=True):
        found = common(type_, value.type)
        if found is None:
            told = f"operator does not exist: {type_.sql} = {value.type.sql} ({print_tree(node)})"
            raise Refusal(value.at, f"{told} Hint: {HINT}", "use CAST")
        type_ = found
    return read, type_


def _read(value: Value, beside: SqlType, number: Literal) -> Value:
    words = value.words or ""
    if beside.is_number:
        try:
            exact = Decimal(words.strip())
        except InvalidOperation:
            raise _invalid(value, beside) from None
        whole = exact == exact.to_integral_value() and "." not in words
        return replace(number(f"{exact:f}" if whole or "e" not in words.lower() else words.strip()), at=value.at)
    if beside == BOOLEAN:
        told = next((word for word in ("true", "yes", "false", "no") if words and word.startswith(words.lower())), None)
        if told is None:
            raise _invalid(value, beside)
        return Value("true" if told in ("true", "yes") else "false", BOOLEAN, value.at)
    if beside.is_time:
        return Value(value.cast(beside), beside, value.at)
    return value


def _invalid(value: Value, beside: SqlType) -> Refusal:
    kind = beside.sql.partition("(")[0]
    return Refusal(value.at, f'invalid input syntax for type {kind}: "{(value.words or "")[:50]}"')
