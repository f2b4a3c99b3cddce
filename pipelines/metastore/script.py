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

Filling = CreateAs | InsertSelect


def script_of(statement: Filling, relations: list[Relation]) -> str:
    """The script that defines the relations as they are and then runs the statement."""
    parts = [print_tree(created(relation)) for relation in relations]
    return ";\n".join([*parts, print_tree(statement)]) + ";\n"


def created(relation: Relation) -> CreateSource:
    """A statement that defines the relation over its topic, whoever fills that."""
    key = "KEY" if relation.kind == STREAM else "PRIMARY KEY"
    columns = tuple(
        ColumnDef(_name(column.name), column.field, _type(column.type), key if column.key else "")
        for column in relation.source.columns
    )
    given = {"KAFKA_TOPIC": relation.source.topic, "VALUE_FORMAT": relation.source.value_format}
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


def _type(spark: str) -> TypeName:
    word, _, numbers = spark.rstrip(")").partition("(")
    return TypeName(word.upper(), tuple(int(number) for number in numbers.split(",")) if numbers else None)
