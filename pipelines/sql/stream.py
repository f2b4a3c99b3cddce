"""CREATE STREAM name (columns) WITH (properties): a topic read as rows."""

from __future__ import annotations

from sqlglot.tokenizer_core import TokenType

from pipelines.plan import Column, Source
from pipelines.sql.dialect import whole_number
from pipelines.sql.error import Refusal
from pipelines.sql.names import Name, column_name
from pipelines.sql.properties import STREAM_PROPERTIES, read_format, read_properties, read_topic
from pipelines.sql.script import Cursor
from pipelines.sql.types import SqlType, named_type

KEY_TYPES = ("string", "int", "bigint")


def read_stream(cursor: Cursor, name: Name) -> Source:
    """The source that the statement defines; the cursor stands behind the name."""
    if cursor.word() in ("WITH", "AS"):
        if cursor.accept("AS") or "AS" in (cursor.word(n) for n in range(len(cursor.tokens))):
            raise Refusal(cursor.tokens[0].start, "CREATE STREAM AS SELECT is not supported", "use CREATE TABLE … AS")
        raise Refusal(cursor.at, "a stream needs its columns", "schemas are not inferred: name (column TYPE, …)")
    columns = read_columns(cursor)
    with_at = cursor.at
    if cursor.word() == "AS":
        raise Refusal(cursor.at, "CREATE STREAM AS SELECT is not supported", "use CREATE TABLE … AS")
    cursor.expect("WITH")
    properties = read_properties(cursor, STREAM_PROPERTIES)
    if cursor.word() == "AS":
        raise Refusal(cursor.at, "CREATE STREAM AS SELECT is not supported", "use CREATE TABLE … AS")
    if cursor.token is not None:
        raise Refusal(cursor.at, f"expected ; found {cursor.shown}")
    topic = read_topic(properties)
    if topic is None:
        raise Refusal(with_at, "a stream needs KAFKA_TOPIC", "WITH (kafka_topic='…', value_format='json')")
    value_format = read_format(properties, "VALUE_FORMAT", ("json",))
    if value_format is None:
        raise Refusal(with_at, "a stream needs VALUE_FORMAT", "WITH (kafka_topic='…', value_format='json')")
    read_format(properties, "KEY_FORMAT", ("kafka",))
    return Source(name.text, topic[0], value_format, columns)


def read_columns(cursor: Cursor) -> tuple[Column, ...]:
    """The parenthesised columns: at most one KEY, no two names that differ only in case."""
    cursor.expect_type(TokenType.L_PAREN, "( and the stream's columns")
    columns: list[Column] = []
    seen: set[str] = set()
    while True:
        column, at = read_column(cursor)
        if column.name.upper() in seen:
            raise Refusal(at, f"column {column.name} is defined twice", "names that differ only in case are one name")
        if column.key and any(other.key for other in columns):
            raise Refusal(at, "a stream has at most one KEY column", "the kafka key format holds one value")
        seen.add(column.name.upper())
        columns.append(column)
        if not cursor.accept_type(TokenType.COMMA):
            break
    cursor.expect_type(TokenType.R_PAREN, ") or ,")
    return tuple(columns)


def read_column(cursor: Cursor) -> tuple[Column, int]:
    """`name TYPE [KEY]` and its offset."""
    name = cursor.name("a column")
    text = column_name(name)
    type_at = cursor.at
    type_ = read_type(cursor)
    if cursor.word() == "PRIMARY":
        raise Refusal(cursor.at, "a stream has no PRIMARY KEY", "write KEY")
    if cursor.word() in ("HEADER", "HEADERS"):
        raise Refusal(cursor.at, "HEADERS columns are not supported yet")
    key = cursor.accept("KEY")
    if key and type_.kind not in KEY_TYPES:
        raise Refusal(type_at, f"a KEY column cannot be {type_.spark}", f"it is one of {', '.join(KEY_TYPES)}")
    if not key and cursor.word() == "NOT":
        raise Refusal(cursor.at, "NOT NULL is not supported")
    return Column(text, name.written, type_.spark, key), name.at


def read_type(cursor: Cursor) -> SqlType:
    """A type with its arguments."""
    at, word = cursor.at, cursor.word()
    if not word:
        raise Refusal(at, f"expected a type, found {cursor.shown}")
    cursor.index += 1
    arguments: list[int] | None = None
    nested = cursor.token is not None and cursor.token.token_type == TokenType.LT
    if not nested and cursor.accept_type(TokenType.L_PAREN):
        arguments = []
        while not arguments or cursor.accept_type(TokenType.COMMA):
            number_at = cursor.at
            number = cursor.expect_type(TokenType.NUMBER, "a number")
            arguments.append(whole_number(number.text, number_at))
        cursor.expect_type(TokenType.R_PAREN, ")")
    return named_type(word, None if arguments is None else tuple(arguments), at)
