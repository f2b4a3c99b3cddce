"""CREATE STREAM or TABLE over a topic: which columns it has and how they are read."""

from __future__ import annotations

from dataclasses import replace

from pipelines.plan import Column, Source
from pipelines.sql.catalogue import Relation
from pipelines.sql.error import Refusal, nearest
from pipelines.sql.formats import Formats, checked, read_formats
from pipelines.sql.names import column_name
from pipelines.sql.printer import print_tree
from pipelines.sql.properties import (
    SOURCE_PROPERTIES,
    Properties,
    check_properties,
    read_partitions,
    read_topic,
    read_window,
    text_property,
)
from pipelines.sql.time_pattern import python_pattern
from pipelines.sql.tree import STREAM, ColumnDef, CreateSource
from pipelines.sql.types import named_type, parse_type

DEFAULT_KEY = "kafka"


def define(statement: CreateSource) -> Relation:
    """The relation that the statement defines."""
    what = "a stream" if statement.kind == STREAM else "a table"
    if statement.columns is None:
        raise Refusal(
            statement.columns_at,
            f"{what} needs its columns: The statement does not define any columns",
            "schemas are not inferred: name (column TYPE, …)",
        )
    columns = read_columns(statement.columns, statement)
    if statement.properties is None:
        raise Refusal(statement.end, "expected WITH, found the end of the statement")
    at, properties = statement.properties.at, check_properties(statement.properties, SOURCE_PROPERTIES)
    topic = read_topic(properties)
    if topic is None:
        message = f'{what} needs KAFKA_TOPIC: Missing required property "KAFKA_TOPIC" which has no default value'
        raise Refusal(at, message, "WITH (kafka_topic='…', value_format='json')")
    formats = read_formats(properties, Formats())
    if not formats.value:
        told = (
            "Statement is missing the 'VALUE_FORMAT' property from the WITH clause. Either provide one or set a default"
        )
        message = f"{what} needs VALUE_FORMAT: {told} via the 'ksql.persistence.default.format.value' config."
        raise Refusal(at, message, "WITH (kafka_topic='…', value_format='json')")
    formats, kind = replace(formats, key=formats.key or DEFAULT_KEY), statement.kind.lower()
    formats = checked(formats, columns, properties, at, kind, computed=False)
    read_partitions(properties)
    timestamp, pattern = read_timestamp(properties, columns)
    window_type, window_ms = read_window(properties)
    if window_type and not any(column.key for column in columns):
        raise Refusal(statement.columns_at, "Windowed sources require a key column.", "the column that is the key")
    source = Source(
        statement.name.text,
        topic[0],
        formats.value,
        columns,
        formats.key,
        formats.key_delimiter,
        formats.value_delimiter,
        formats.wrapped,
        timestamp,
        pattern,
        window_type=window_type,
        window_ms=window_ms,
    )
    return Relation(source.name, statement.kind, source, formats.key, print_tree(statement))


def read_timestamp(properties: Properties, columns: tuple[Column, ...]) -> tuple[str | None, str | None]:
    """Column and format of ROWTIME, as TIMESTAMP and TIMESTAMP_FORMAT give them."""
    given, pattern = text_property(properties, "TIMESTAMP"), text_property(properties, "TIMESTAMP_FORMAT")
    if given is None:
        if pattern is not None:
            raise Refusal(pattern[1], "TIMESTAMP_FORMAT needs TIMESTAMP, the column that it is of")
        return None, None
    text, at = given
    name = text[1:-1] if text[:1] == text[-1:] == "`" else text.upper()
    found = next((column for column in columns if column.name == name), None)
    if found is None:
        message = f"The TIMESTAMP column set in the WITH clause does not exist in the schema: '{name}'"
        raise Refusal(at, message, nearest(name, [column.name for column in columns]))
    if found.type not in ("string", "bigint", "timestamp"):
        shown = parse_type(found.type).sql
        raise Refusal(
            at,
            f"Timestamp column, `{name}`, should be LONG(INT64), TIMESTAMP, or a String with a timestamp_format specified, it is {shown}",
        )
    if (found.type == "string") != (pattern is not None):
        need = "needs a" if pattern is None else "takes no"
        raise Refusal(at, f"A timestamp column of type {parse_type(found.type).sql} {need} TIMESTAMP_FORMAT")
    if pattern is not None:
        try:
            python_pattern(pattern[0])
        except ValueError as error:
            raise Refusal(pattern[1], str(error)) from error
    return name, None if pattern is None else pattern[0]


def read_columns(columns: tuple[ColumnDef, ...], statement: CreateSource) -> tuple[Column, ...]:
    """The columns: at most one key, which a table must have, and no two names that differ only in case."""
    read: list[Column] = []
    seen: set[str] = set()
    for definition in columns:
        column = _column(definition, statement.kind)
        if column.name.upper() in seen:
            hint = "names that differ only in case are one name"
            message = f"column {column.name} is defined twice: Duplicate column names: `{column.name}`"
            raise Refusal(definition.at, message, hint)
        seen.add(column.name.upper())
        read.append(column)
    if statement.kind != STREAM and not any(column.key for column in read):
        message = "a table needs a PRIMARY KEY: Tables require a PRIMARY KEY. Please define the PRIMARY KEY"
        raise Refusal(statement.columns_at, message, "write it behind the key column's type")
    return tuple(read)


def _column(definition: ColumnDef, kind: str) -> Column:
    name = column_name(definition.name)
    type_ = named_type(definition.type)
    if definition.role == "HEADERS":
        raise Refusal(definition.role_at, "HEADERS columns are not supported yet")
    wrong = "PRIMARY KEY" if kind == STREAM else "KEY"
    if definition.role == wrong:
        hint = "write KEY" if kind == STREAM else "write PRIMARY KEY"
        right = "KEY" if kind == STREAM else "PRIMARY KEY"
        told = f"Column `{name}` is a '{wrong}' column: please use '{right}' for {kind.lower()}s"
        raise Refusal(definition.role_at, f"a {kind.lower()} has no {wrong}: {told}", hint)
    return Column(name, definition.field, type_.spark, bool(definition.role))
