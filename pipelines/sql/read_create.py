"""Tokens to the tree of CREATE: a stream or table over a topic, or one that a query fills."""

from __future__ import annotations

from sqlglot.tokenizer_core import TokenType

from pipelines.sql.error import Refusal, nearest
from pipelines.sql.nodes import Null, Number, Text, Truth
from pipelines.sql.read_select import read_select
from pipelines.sql.read_type import read_type
from pipelines.sql.script import Cursor
from pipelines.sql.tree import (
    TABLE,
    AlterSource,
    ColumnDef,
    CreateAs,
    CreateSource,
    CreateType,
    Properties,
    Property,
    Statement,
)

REFUSED = {
    "SOURCE": "SOURCE is not supported",
    "SINK": "connectors are not supported",
}


def read_create(cursor: Cursor, at: int) -> Statement:
    """CREATE [OR REPLACE] STREAM|TABLE [IF NOT EXISTS] name …; the cursor stands behind CREATE."""
    if cursor.accept("TYPE"):
        return _create_type(cursor, at)
    or_replace = cursor.accept("OR", "REPLACE")
    if (refused := REFUSED.get(cursor.word())) is not None:
        raise Refusal(cursor.at, refused)
    kind = cursor.word()
    if kind not in ("STREAM", "TABLE"):
        hint = nearest(kind, ["STREAM", "TABLE"])
        raise Refusal(cursor.at, f"expected STREAM or TABLE, found {cursor.shown}", hint)
    cursor.index += 1
    if_not_exists = cursor.accept("IF", "NOT", "EXISTS")
    name = cursor.name("a name")
    columns_at = cursor.at
    columns = read_columns(cursor, kind) if cursor.is_type(TokenType.L_PAREN) else None
    end = cursor.at
    properties = read_properties_if_any(cursor)
    if cursor.accept("AS"):
        if columns is not None:
            raise Refusal(columns_at, "a query gives the columns itself", "leave the columns out")
        query = read_select(cursor, wanted="GROUP BY" if kind == TABLE else "EMIT CHANGES")
        return CreateAs(kind, name, properties, query, or_replace, if_not_exists, at=at)
    if columns is None and properties is None and kind == TABLE:
        raise Refusal(cursor.at, f"expected AS SELECT, found {cursor.shown}", "or ( and the table's columns")
    if cursor.token is not None and properties is not None:
        raise Refusal(cursor.at, f"expected ; found {cursor.shown}")
    if cursor.token is not None:
        raise Refusal(cursor.at, f"expected WITH, found {cursor.shown}")
    return CreateSource(
        kind, name, columns, properties, or_replace, if_not_exists, columns_at=columns_at, end=end, at=at
    )


def _create_type(cursor: Cursor, at: int) -> Statement:
    if_not_exists = cursor.accept("IF", "NOT", "EXISTS")
    name = cursor.name("a type's name")
    cursor.expect("AS")
    return CreateType(name, read_type(cursor), if_not_exists, at=at)


def read_alter(cursor: Cursor, at: int) -> Statement:
    """ALTER STREAM|TABLE name ADD [COLUMN] column TYPE, …; the cursor stands behind ALTER."""
    kind = cursor.word()
    if kind not in ("STREAM", "TABLE"):
        hint = nearest(kind, ["STREAM", "TABLE"])
        raise Refusal(cursor.at, f"expected STREAM or TABLE, found {cursor.shown}", hint)
    cursor.index += 1
    name = cursor.name("a stream or table")
    columns: list[ColumnDef] = []
    while not columns or cursor.accept_type(TokenType.COMMA):
        cursor.expect("ADD")
        cursor.accept("COLUMN")
        column = cursor.name("a column")
        columns.append(ColumnDef(column, column.written, read_type(cursor), "", at=column.at))
    return AlterSource(kind, name, tuple(columns), at=at)


def read_columns(cursor: Cursor, kind: str) -> tuple[ColumnDef, ...]:
    """The parenthesised columns."""
    cursor.expect_type(TokenType.L_PAREN, "( and the columns")
    columns = [_column(cursor, kind)]
    while cursor.accept_type(TokenType.COMMA):
        columns.append(_column(cursor, kind))
    cursor.expect_type(TokenType.R_PAREN, ") or ,")
    return tuple(columns)


def _column(cursor: Cursor, kind: str) -> ColumnDef:
    """`name TYPE [KEY | PRIMARY KEY | HEADERS | HEADER('name')]`."""
    name = cursor.name("a column")
    type_ = read_type(cursor)
    role_at, role, header = cursor.at, "", None
    if cursor.accept("PRIMARY"):
        cursor.expect("KEY")
        role = "PRIMARY KEY"
    elif cursor.accept("KEY"):
        role = "KEY"
    elif cursor.accept("HEADERS"):
        role = "HEADERS"
    elif cursor.accept("HEADER"):
        role = "HEADERS"
        cursor.expect_type(TokenType.L_PAREN, "(")
        header = cursor.expect_type(TokenType.STRING, "a header's name in 'quotes'").text
        cursor.expect_type(TokenType.R_PAREN, ")")
    elif cursor.word() == "NOT":
        raise Refusal(cursor.at, "NOT NULL is not supported")
    return ColumnDef(name, name.written, type_, role, header, role_at=role_at, at=name.at)


def read_properties_if_any(cursor: Cursor) -> Properties | None:
    """WITH (name = value, …), None if WITH does not come next."""
    at = cursor.at
    if not cursor.accept("WITH"):
        return None
    cursor.expect_type(TokenType.L_PAREN, "(")
    items = [_property(cursor)]
    while cursor.accept_type(TokenType.COMMA):
        items.append(_property(cursor))
    cursor.expect_type(TokenType.R_PAREN, ") or ,")
    return Properties(tuple(items), at=at)


def _property(cursor: Cursor) -> Property:
    at, name = cursor.at, cursor.word()  # a reserved word may name a property
    if name:
        cursor.index += 1
    else:
        name = cursor.name("a property").text.upper()
    cursor.expect_type(TokenType.EQ, "=")
    return Property(name, _literal(cursor), at=at)


def _literal(cursor: Cursor) -> Text | Number | Truth | Null:
    at = cursor.at
    if text := cursor.accept_type(TokenType.STRING):
        return Text(text.text, at=at)
    for word, kind in (("TRUE", TokenType.TRUE), ("FALSE", TokenType.FALSE)):
        if cursor.accept_type(kind):
            return Truth(word == "TRUE", at=at)
    if cursor.accept_type(TokenType.NULL):
        return Null(at=at)
    sign = "-" if cursor.accept_type(TokenType.DASH) else ""
    return Number(sign + cursor.expect_type(TokenType.NUMBER, "a string or a number").text, at=at)
