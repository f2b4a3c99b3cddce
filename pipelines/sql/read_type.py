"""Tokens to the tree of a type: `DECIMAL(10, 2)`, `MAP<STRING, ARRAY<INT>>`, `STRUCT<a INT, b STRING>`."""

from __future__ import annotations

from sqlglot.tokenizer_core import TokenType

from pipelines.sql.error import Refusal
from pipelines.sql.names import RESERVED, Name
from pipelines.sql.nodes import TypeName
from pipelines.sql.script import Cursor

NESTING_MAX = 20


def read_type(cursor: Cursor, depth: int = 0) -> TypeName:
    """The type at the cursor, which goes past it. Whether there is such a type is the planner's question."""
    at, word = cursor.at, cursor.word()
    if cursor.is_type(TokenType.IDENTIFIER):
        return TypeName(cursor.name("a type").text, at=at)
    if not word:
        raise Refusal(at, f"expected a type, found {cursor.shown}")
    if word in RESERVED:
        raise Refusal(at, f"{word} is no type: mismatched input '{word}'")
    if depth > NESTING_MAX:
        raise Refusal(at, "the type is nested too deeply")
    cursor.index += 1
    if word in ("ARRAY", "MAP", "STRUCT") and cursor.accept_type(TokenType.LT):
        names: list[Name] = []
        inner: list[TypeName] = []
        while not inner or cursor.accept_type(TokenType.COMMA):
            if word == "STRUCT":
                names.append(cursor.name("a field"))
            inner.append(read_type(cursor, depth + 1))
        cursor.expect_type(TokenType.GT, "> or ,")
        return TypeName(word, None, tuple(inner), tuple(names), at=at)
    return TypeName(word, read_numbers(cursor), at=at)


def read_numbers(cursor: Cursor) -> tuple[int, ...] | None:
    """`(10, 2)`, None if no parenthesis comes next."""
    if not cursor.accept_type(TokenType.L_PAREN):
        return None
    numbers: list[int] = []
    while not numbers or cursor.accept_type(TokenType.COMMA):
        at = cursor.at
        numbers.append(whole_number(cursor.expect_type(TokenType.NUMBER, "a number").text, at))
    cursor.expect_type(TokenType.R_PAREN, ")")
    return tuple(numbers)


def whole_number(text: str, at: int) -> int:
    """The value of a literal of at most 9 digits."""
    if not (text.isascii() and text.isdigit()) or len(text) > 9:
        raise Refusal(at, f"expected a whole number, found {text[:50]}")
    return int(text)
