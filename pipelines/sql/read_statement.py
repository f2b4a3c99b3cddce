"""Tokens to the tree of a statement. Each reader below takes the cursor behind the statement's first word."""

from __future__ import annotations

from collections.abc import Callable

from sqlglot.tokenizer_core import TokenType

from pipelines.sql.error import Refusal, nearest
from pipelines.sql.names import Name
from pipelines.sql.read_create import read_alter, read_create, read_properties_if_any
from pipelines.sql.read_expression import read_expression
from pipelines.sql.read_select import read_select
from pipelines.sql.script import Cursor
from pipelines.sql.tree import (
    Control,
    Define,
    Describe,
    Drop,
    DropType,
    Explain,
    InsertSelect,
    InsertValues,
    Query,
    SetProperty,
    Show,
    Statement,
)

SHOWN = ("STREAMS", "TABLES", "QUERIES", "TOPICS", "PROPERTIES", "FUNCTIONS", "TYPES", "VARIABLES")
NOT_YET = {
    "ASSERT": "ASSERT is not supported here, it belongs into a test: mismatched input 'ASSERT'",
    "PRINT": "PRINT is not supported yet",
    "RUN": "RUN SCRIPT is not supported here: give the file with -f",
    "WITH": "subqueries are not supported",
}


def read_statement(cursor: Cursor) -> Statement:
    """The statement of the cursor, which must hold nothing else."""
    at, word = cursor.at, cursor.word()
    reader = READERS.get(word)
    if reader is None:
        message = NOT_YET.get(word) or f"expected a statement, found {cursor.shown}"
        raise Refusal(at, message, None if word in NOT_YET else nearest(word, READERS))
    cursor.index += 1
    statement = reader(cursor, at)
    if cursor.token is not None:
        raise Refusal(cursor.at, f"expected ; found {cursor.shown}")
    return statement


def _insert(cursor: Cursor, at: int) -> Statement:
    cursor.expect("INTO")
    name = cursor.name("a stream or table")
    columns: list[Name] = []
    if cursor.accept_type(TokenType.L_PAREN):
        while not columns or cursor.accept_type(TokenType.COMMA):
            columns.append(cursor.name("a column"))
        cursor.expect_type(TokenType.R_PAREN, ") or ,")
    if cursor.accept("VALUES"):
        cursor.expect_type(TokenType.L_PAREN, "(")
        values = [read_expression(cursor)]
        while cursor.accept_type(TokenType.COMMA):
            values.append(read_expression(cursor))
        cursor.expect_type(TokenType.R_PAREN, ") or ,")
        return InsertValues(name, tuple(columns) or None, tuple(values), at=at)
    if columns:
        raise Refusal(cursor.at, f"expected VALUES, found {cursor.shown}")
    properties = read_properties_if_any(cursor)
    if cursor.word() != "SELECT":
        raise Refusal(cursor.at, f"expected VALUES or SELECT, found {cursor.shown}")
    return InsertSelect(name, properties, read_select(cursor), at=at)


def _drop(cursor: Cursor, at: int) -> Statement:
    if cursor.accept("TYPE"):
        if_exists = cursor.accept("IF", "EXISTS")
        return DropType(cursor.name("a type"), if_exists, at=at)
    kind_at, kind = cursor.at, cursor.word()
    if kind not in ("STREAM", "TABLE"):
        hint = nearest(kind, ["STREAM", "TABLE", "TYPE"])
        raise Refusal(kind_at, f"expected STREAM or TABLE, found {cursor.shown}", hint)
    cursor.index += 1
    if_exists = cursor.accept("IF", "EXISTS")
    name = cursor.name("a stream" if kind == "STREAM" else "a table")
    return Drop(kind, name, if_exists, cursor.accept("DELETE", "TOPIC"), at=at)


def _control(action: str) -> Callable[[Cursor, int], Statement]:
    def read(cursor: Cursor, at: int) -> Statement:
        return Control(
            action, None if cursor.accept("ALL") else cursor.name("a query's id, or ALL").text.upper(), at=at
        )

    return read


def _show(cursor: Cursor, at: int) -> Statement:
    cursor.accept("ALL")
    what_at, what = cursor.at, cursor.word()
    if what not in SHOWN:
        raise Refusal(what_at, f"expected one of {', '.join(SHOWN)}, found {cursor.shown}", nearest(what, SHOWN))
    cursor.index += 1
    return Show(what, cursor.accept("EXTENDED"), at=at)


def _describe(cursor: Cursor, at: int) -> Statement:
    if cursor.word() == "FUNCTION" and cursor.word(1):
        cursor.index += 1
        return Describe(cursor.name("a function"), function=True, at=at)
    if cursor.word() in ("STREAMS", "TABLES") and not cursor.next_is(TokenType.DOT):
        kind = cursor.word()
        cursor.index += 1
        return Show(kind, cursor.accept("EXTENDED"), at=at)
    name = cursor.name("a stream or table")
    return Describe(name, cursor.accept("EXTENDED"), at=at)


def _explain(cursor: Cursor, at: int) -> Statement:
    if cursor.word() == "EXPLAIN":
        raise Refusal(cursor.at, "EXPLAIN explains another statement")
    if cursor.word() in READERS:
        return Explain(read_statement(cursor), None, at=at)
    return Explain(None, cursor.name("a statement or a query's id").text.upper(), at=at)


def _select(cursor: Cursor, at: int) -> Statement:
    cursor.index -= 1
    return Query(read_select(cursor), at=at)


def _set(cursor: Cursor, at: int) -> Statement:
    name = cursor.expect_type(TokenType.STRING, "a property in 'quotes'").text
    cursor.expect_type(TokenType.EQ, "=")
    return SetProperty(name, cursor.expect_type(TokenType.STRING, "a value in 'quotes'").text, at=at)


def _unset(cursor: Cursor, at: int) -> Statement:
    return SetProperty(cursor.expect_type(TokenType.STRING, "a property in 'quotes'").text, None, at=at)


def _define(cursor: Cursor, at: int) -> Statement:
    name = cursor.name("a variable").written
    cursor.expect_type(TokenType.EQ, "=")
    return Define(name, cursor.expect_type(TokenType.STRING, "a value in 'quotes'").text, at=at)


def _undefine(cursor: Cursor, at: int) -> Statement:
    return Define(cursor.name("a variable").written, None, at=at)


READERS: dict[str, Callable[[Cursor, int], Statement]] = {
    "ALTER": read_alter,
    "CREATE": read_create,
    "DEFINE": _define,
    "DESCRIBE": _describe,
    "DROP": _drop,
    "EXPLAIN": _explain,
    "INSERT": _insert,
    "LIST": _show,
    "PAUSE": _control("PAUSE"),
    "RESUME": _control("RESUME"),
    "SELECT": _select,
    "SET": _set,
    "SHOW": _show,
    "TERMINATE": _control("TERMINATE"),
    "UNDEFINE": _undefine,
    "UNSET": _unset,
}
