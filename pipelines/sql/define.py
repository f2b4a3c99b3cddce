"""CREATE STREAM or TABLE over a topic: which columns it has and how they are read."""

from __future__ import annotations

from pipelines.plan import Column, Source
from pipelines.sql.catalogue import Relation
from pipelines.sql.error import Refusal
from pipelines.sql.names import column_name
from pipelines.sql.printer import print_tree
from pipelines.sql.properties import SOURCE_PROPERTIES, check_properties, read_format, read_partitions, read_topic
from pipelines.sql.tree import STREAM, ColumnDef, CreateSource
from pipelines.sql.types import named_type

KEY_TYPES = ("string", "int", "bigint")


def define(statement: CreateSource) -> Relation:
    """The relation that the statement defines."""
    what = "a stream" if statement.kind == STREAM else "a table"
    if statement.columns is None:
        raise Refusal(
            statement.columns_at, f"{what} needs its columns", "schemas are not inferred: name (column TYPE, …)"
        )
    columns = read_columns(statement.columns, statement)
    if statement.properties is None:
        raise Refusal(statement.end, "expected WITH, found the end of the statement")
    at, properties = statement.properties.at, check_properties(statement.properties, SOURCE_PROPERTIES)
    topic = read_topic(properties)
    if topic is None:
        raise Refusal(at, f"{what} needs KAFKA_TOPIC", "WITH (kafka_topic='…', value_format='json')")
    value_format = read_format(properties, "VALUE_FORMAT", ("json",))
    if value_format is None:
        raise Refusal(at, f"{what} needs VALUE_FORMAT", "WITH (kafka_topic='…', value_format='json')")
    key_format = read_format(properties, "KEY_FORMAT", ("kafka",)) or "kafka"
    read_partitions(properties)
    source = Source(statement.name.text, topic[0], value_format, columns)
    return Relation(source.name, statement.kind, source, key_format, print_tree(statement))


def read_columns(columns: tuple[ColumnDef, ...], statement: CreateSource) -> tuple[Column, ...]:
    """The columns: at most one key, which a table must have, and no two names that differ only in case."""
    read: list[Column] = []
    seen: set[str] = set()
    for definition in columns:
        column = _column(definition, statement.kind)
        if column.name.upper() in seen:
            hint = "names that differ only in case are one name"
            raise Refusal(definition.at, f"column {column.name} is defined twice", hint)
        if column.key and any(other.key for other in read):
            one = "a stream has at most one KEY column" if statement.kind == STREAM else "a table has one PRIMARY KEY"
            raise Refusal(definition.at, one, "the kafka key format holds one value")
        seen.add(column.name.upper())
        read.append(column)
    if statement.kind != STREAM and not any(column.key for column in read):
        raise Refusal(statement.columns_at, "a table needs a PRIMARY KEY", "write it behind the key column's type")
    return tuple(read)


def _column(definition: ColumnDef, kind: str) -> Column:
    name = column_name(definition.name)
    type_ = named_type(definition.type)
    if definition.role == "HEADERS":
        raise Refusal(definition.role_at, "HEADERS columns are not supported yet")
    wrong = "PRIMARY KEY" if kind == STREAM else "KEY"
    if definition.role == wrong:
        hint = "write KEY" if kind == STREAM else "write PRIMARY KEY"
        raise Refusal(definition.role_at, f"a {kind.lower()} has no {wrong}", hint)
    key = bool(definition.role)
    if key and type_.kind not in KEY_TYPES:
        raise Refusal(
            definition.type.at, f"a KEY column cannot be {type_.spark}", f"it is one of {', '.join(KEY_TYPES)}"
        )
    return Column(name, definition.field, type_.spark, key)
