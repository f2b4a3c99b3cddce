"""A query of the catalogue as a script of its own: what it reads and writes, spelled out, and the statement.

A pipeline is deployed from such a script, so a query that was made by one statement is deployed as any other.
"""

from __future__ import annotations

from dataclasses import replace

from pipelines.sql.catalogue import Relation
from pipelines.sql.names import Name
from pipelines.sql.nodes import Text, TypeName
from pipelines.sql.printer import print_tree
from pipelines.sql.tree import STREAM, ColumnDef, CreateAs, CreateSource, InsertSelect, Properties, Property
from pipelines.sql.types import SqlType, parse_type

_DELIMITERS = {" ": "SPACE", "\t": "TAB"}
Filling = CreateAs | InsertSelect


def script_of(statement: Filling, relations: list[Relation]) -> str:
    """The script that defines the relations as they are and then runs the statement."""
    parts = [print_tree(created(relation)) for relation in relations]
    return ";\n".join([*parts, print_tree(statement)]) + ";\n"


def created(relation: Relation) -> CreateSource:
    """A statement that defines the relation over its topic, whoever fills that."""
    key = "KEY" if relation.kind == STREAM else "PRIMARY KEY"
    columns = tuple(
        ColumnDef(_name(column.name), column.field, _type(parse_type(column.type)), key if column.key else "")
        for column in relation.source.columns
    )
    source = relation.source
    given = {"KAFKA_TOPIC": source.topic, "VALUE_FORMAT": source.value_format}
    has_key = any(column.key for column in source.columns)
    if has_key and source.key_format != "kafka":
        given["KEY_FORMAT"] = source.key_format
    if not has_key and source.key_format == source.value_format != "kafka":
        # The format that a result's key will have.
        given = {"KAFKA_TOPIC": source.topic, "FORMAT": source.value_format}
    for name, delimiter in (("KEY_DELIMITER", source.key_delimiter), ("VALUE_DELIMITER", source.value_delimiter)):
        if delimiter != ",":
            given[name] = _DELIMITERS.get(delimiter, delimiter)
    if not source.wrapped:
        given["WRAP_SINGLE_VALUE"] = "false"
    if source.timestamp is not None:
        given["TIMESTAMP"] = f"`{source.timestamp}`"
    if source.timestamp_format is not None:
        given["TIMESTAMP_FORMAT"] = source.timestamp_format
    if source.window_type:
        given["WINDOW_TYPE"] = source.window_type
    if source.window_ms:
        given["WINDOW_SIZE"] = f"{source.window_ms} MILLISECONDS"
    return CreateSource(relation.kind, _name(relation.name), columns, _properties(given))


def with_topic(statement: CreateAs, topic: str) -> CreateAs:
    """The statement with its result's topic named, if it does not name one."""
    items = statement.properties.items if statement.properties is not None else ()
    if any(item.name == "KAFKA_TOPIC" for item in items):
        return statement
    named = _properties({"KAFKA_TOPIC": topic})
    return replace(statement, properties=Properties((*named.items, *items)))


def with_query_id(statement: InsertSelect, name: str) -> InsertSelect:
    """The statement with its query named."""
    return replace(statement, properties=_properties({"QUERY_ID": name}))


def _properties(values: dict[str, str]) -> Properties:
    return Properties(tuple(Property(name, Text(value)) for name, value in values.items()))


def _name(text: str) -> Name:
    return Name(text, text, 0)


def _type(type_: SqlType) -> TypeName:
    inner = tuple(_type(part) for part in type_.inner)
    numbers = (type_.precision, type_.scale) if type_.kind == "decimal" else None
    return TypeName(type_.kind.upper(), numbers, inner, tuple(_name(name) for name in type_.names))
