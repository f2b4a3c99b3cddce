"""How the values of a list become one type: the items of ARRAY, the values of MAP, the results of CASE, and IN.

Numbers become the type that holds all of them, structs the one that has all fields. A literal string beside numbers,
booleans or times is read as one of them, and is refused if it is none; what is beside a string is a string if it is a
literal. NULL takes any type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal, InvalidOperation

from pipelines.sql.error import Refusal
from pipelines.sql.functions import Value
from pipelines.sql.nodes import ArrayOf, MapOf, Node, Number, Paren, Sign, StructOf, Text, Truth, unwrapped
from pipelines.sql.printer import print_tree
from pipelines.sql.quoting import string_literal
from pipelines.sql.types import BOOLEAN, STRING, SqlType, common

HINT = "You might need to add explicit type casts."
Literal = Callable[[str], Value]


def coerced(values: Sequence[Value], nodes: Sequence[Node], number: Literal) -> tuple[list[Value], SqlType]:
    """The values, literal strings read as what they stand beside, and the type of all; kind null if all are NULL.

    `number` makes the value of a number's text.
    """
    others = [v.type for v in values if v.type.kind != "null" and v.words is None]
    beside = others[0] if others else STRING
    read = [_read(value, beside, number) if value.words is not None else value for value in values]
    if beside == STRING:
        read = [_told(value, node) for value, node in zip(read, nodes, strict=True)]
    type_ = read[0].type
    for value, node in zip(read[1:], nodes[1:], strict=True):
        found = common(type_, value.type)
        if found is None:
            told = f"operator does not exist: {type_.sql} = {value.type.sql} ({_shown(node)})"
            raise Refusal(value.at, f"{told} Hint: {HINT}", "use CAST")
        type_ = found
    return read, type_


def fitted(node: Node, wanted: SqlType) -> Node:
    """The tree of a list, a map or a struct with literal strings in it read as the type that is wanted there."""
    match node:
        case Paren():
            return replace(node, inner=fitted(node.inner, wanted))
        case ArrayOf() if wanted.kind == "array":
            return replace(node, items=tuple(_inner(item, wanted.inner[0]) for item in node.items))
        case MapOf() if wanted.kind == "map":
            return replace(node, values=tuple(_inner(value, wanted.inner[1]) for value in node.values))
        case StructOf() if wanted.kind == "struct":
            types = dict(zip(wanted.names, wanted.inner, strict=True))
            pairs = zip(node.names, node.values, strict=True)
            values = (_inner(value, types[name.text]) if name.text in types else value for name, value in pairs)
            return replace(node, values=tuple(values))
    return node


def _inner(node: Node, wanted: SqlType) -> Node:
    if not isinstance(node, Text) or not (wanted.is_number or wanted == BOOLEAN):
        return fitted(node, wanted)
    words = node.value.strip()
    if wanted == BOOLEAN:
        return Truth(_truth(node.value, node.at), at=node.at)
    _number(words, node.at, wanted)
    bare = Number(words.lstrip("+-"), at=node.at)
    return Sign("-", bare, at=node.at) if words.startswith("-") else bare


def _told(value: Value, node: Node) -> Value:
    """A literal number or truth as the string that it is written as."""
    bare = unwrapped(node)
    literal = isinstance(bare, Number | Truth) or (
        isinstance(bare, Sign) and isinstance(unwrapped(bare.operand), Number)
    )
    return Value(string_literal(_shown(bare)), STRING, value.at) if literal else value


def _shown(node: Node) -> str:
    """The tree as ksqlDB's messages have it."""
    text = print_tree(node).replace(" := ", ":=")
    return text.lower() if isinstance(node, Truth) else text


def _read(value: Value, beside: SqlType, number: Literal) -> Value:
    words = value.words or ""
    if beside.is_number:
        exact = _number(words, value.at, beside)
        whole = exact == exact.to_integral_value() and "." not in words
        return replace(number(f"{exact:f}" if whole or "e" not in words.lower() else words.strip()), at=value.at)
    if beside == BOOLEAN:
        return Value("true" if _truth(words, value.at) else "false", BOOLEAN, value.at)
    if beside.is_time:
        return Value(value.cast(beside), beside, value.at)
    return value


def _number(words: str, at: int, beside: SqlType) -> Decimal:
    try:
        return Decimal(words.strip())
    except InvalidOperation:
        raise _invalid(words, at, beside) from None


def _truth(words: str, at: int) -> bool:
    told = next((word for word in ("true", "yes", "false", "no") if words and word.startswith(words.lower())), None)
    if told is None:
        raise _invalid(words, at, BOOLEAN)
    return told in ("true", "yes")


def _invalid(words: str, at: int, beside: SqlType) -> Refusal:
    kind = beside.sql.partition("(")[0]
    return Refusal(at, f'invalid input syntax for type {kind}: "{words[:50]}"')
