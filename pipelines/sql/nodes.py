"""Expressions and types as trees of our own, with the offset of their first character.

Two trees are equal when they mean the same text: offsets do not count, nor does the way a name was written. Trees are
made by `read_expression.py`, printed by `printer.py`, and given a meaning by `expression.py` and `aggregation.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields

from pipelines.sql.names import Name


@dataclass(frozen=True)
class Node:
    """Any part of a tree. `at` is the offset of its first character in the text."""

    at: int = field(default=0, compare=False, kw_only=True)


@dataclass(frozen=True)
class Column(Node):
    """`name`, or `source.name`."""

    name: Name
    source: Name | None = None


@dataclass(frozen=True)
class Text(Node):
    """A string literal; `value` without its quotes."""

    value: str


@dataclass(frozen=True)
class Number(Node):
    """A number as it was written, without sign: `1`, `2.`, `0.5`, `1e3`."""

    text: str


@dataclass(frozen=True)
class Null(Node):
    """NULL."""


@dataclass(frozen=True)
class Truth(Node):
    """TRUE or FALSE."""

    value: bool


@dataclass(frozen=True)
class Star(Node):
    """The `*` of COUNT(*)."""


@dataclass(frozen=True)
class Paren(Node):
    """An expression in parentheses."""

    inner: Node


@dataclass(frozen=True)
class Sign(Node):
    """`-` or `+` before an operand."""

    operator: str
    operand: Node


@dataclass(frozen=True)
class Not(Node):
    """NOT before a condition."""

    operand: Node


ARITHMETIC = ("+", "-", "*", "/", "%")


@dataclass(frozen=True)
class Binary(Node):
    """Two operands with `+ - * / % ||` or a comparison `= <> < <= > >=` between them."""

    operator: str
    left: Node
    right: Node


@dataclass(frozen=True)
class Connective(Node):
    """A chain of two or more conditions with one `word`, AND or OR, between them."""

    word: str
    operands: tuple[Node, ...]


@dataclass(frozen=True)
class IsNull(Node):
    """IS NULL, or IS NOT NULL."""

    operand: Node
    negated: bool


@dataclass(frozen=True)
class Between(Node):
    """Both bounds are included."""

    operand: Node
    low: Node
    high: Node
    negated: bool


@dataclass(frozen=True)
class In(Node):
    """One of a list."""

    operand: Node
    items: tuple[Node, ...]
    negated: bool


@dataclass(frozen=True)
class Like(Node):
    """A pattern of `%` and `_`."""

    operand: Node
    pattern: Node
    escape: Node | None
    negated: bool


@dataclass(frozen=True)
class When(Node):
    """One branch of CASE."""

    condition: Node
    result: Node


@dataclass(frozen=True)
class Case(Node):
    """CASE WHEN … END; without ELSE the default is None, which means NULL."""

    branches: tuple[When, ...]
    default: Node | None


@dataclass(frozen=True)
class TypeName(Node):
    """A type: its word in upper case, `(numbers)` if it has them, and the types within ARRAY, MAP and STRUCT."""

    word: str
    numbers: tuple[int, ...] | None = None
    inner: tuple[TypeName, ...] = ()
    names: tuple[Name, ...] = ()


@dataclass(frozen=True)
class Cast(Node):
    """CAST(operand AS type)."""

    operand: Node
    type: TypeName


@dataclass(frozen=True)
class Index(Node):
    """`operand[index]` of an array, from 1 or from the end by negative numbers, or of a map."""

    operand: Node
    index: Node


@dataclass(frozen=True)
class Field(Node):
    """`operand->name` of a struct."""

    operand: Node
    name: Name


@dataclass(frozen=True)
class ArrayOf(Node):
    """ARRAY[items]."""

    items: tuple[Node, ...]


@dataclass(frozen=True)
class MapOf(Node):
    """MAP(key := value, …)."""

    keys: tuple[Node, ...]
    values: tuple[Node, ...]


@dataclass(frozen=True)
class StructOf(Node):
    """STRUCT(name := value, …)."""

    names: tuple[Name, ...]
    values: tuple[Node, ...]


@dataclass(frozen=True)
class Lambda(Node):
    """`(x, y) => body`, an argument of a function."""

    names: tuple[Name, ...]
    body: Node


@dataclass(frozen=True)
class Distinct(Node):
    """IS DISTINCT FROM, or IS NOT DISTINCT FROM: a comparison in which NULL equals NULL."""

    left: Node
    right: Node
    negated: bool


@dataclass(frozen=True)
class Call(Node):
    """A function call; the name in upper case."""

    function: str
    arguments: tuple[Node, ...]


def children(node: Node) -> Iterator[Node]:
    """The parts directly below."""
    for part in fields(node):
        value = getattr(node, part.name)
        if isinstance(value, Node):
            yield value
        elif isinstance(value, tuple):
            yield from (item for item in value if isinstance(item, Node))


def walk(node: Node) -> Iterator[Node]:
    """The node and every part below it."""
    left = [node]
    while left:
        part = left.pop()
        yield part
        left.extend(children(part))


def height(node: Node) -> int:
    """Levels of the tree. A chain of one connective is one level."""
    highest, left = 0, [(node, 1)]
    while left:
        part, level = left.pop()
        highest = max(highest, level)
        left.extend((child, level + 1) for child in children(part))
    return highest


def unwrapped(node: Node) -> Node:
    """The node without parentheses around it."""
    while isinstance(node, Paren):
        node = node.inner
    return node
