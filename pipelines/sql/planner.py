"""From the tree of a statement to a plan: names are looked up in a catalogue, expressions become Spark SQL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipelines.plan import EVERY_RECORD, Column, Query, Source
from pipelines.sql.catalogue import Catalogue, Relation, require
from pipelines.sql.error import Refusal
from pipelines.sql.expression import RowExpressions
from pipelines.sql.names import PLAN_NAME, Name
from pipelines.sql.printer import print_tree
from pipelines.sql.projection import plan_projection
from pipelines.sql.properties import (
    INSERT_PROPERTIES,
    QUERY_PROPERTIES,
    check_properties,
    read_emission,
    read_format,
    read_partitions,
    read_topic,
    text_property,
)
from pipelines.sql.table import Computation, check_key_format, plan_table
from pipelines.sql.tree import FINAL, STREAM, TABLE, CreateAs, InsertSelect, Select


@dataclass(frozen=True)
class Planned:
    """A query and the relation that it fills, which for INSERT INTO is the one it was before."""

    query: Query
    relation: Relation


def plan_create(statement: CreateAs, catalogue: Catalogue, *, topic: str, tasks: int) -> Planned:
    """The plan of CREATE … AS. `topic` is the result's unless KAFKA_TOPIC is given; `tasks` those of a table."""
    name = plan_name(statement.name)
    computed, source = _compute(statement.query, statement.kind, catalogue)
    properties = check_properties(statement.properties, QUERY_PROPERTIES)
    given = read_format(properties, "KEY_FORMAT", ("kafka", "json"))
    key_format = check_key_format(given, computed.keys, computed.key_at)
    read_format(properties, "VALUE_FORMAT", ("json",))
    given_topic = read_topic(properties)
    stateless = statement.kind == STREAM
    emission = read_emission(properties)
    query = Query(
        name=name,
        sql=print_tree(statement),
        source=source,
        where=computed.where,
        group_by=computed.keys,
        aggregates=computed.aggregates,
        having=computed.having,
        outputs=computed.outputs,
        key_format=key_format,
        output_topic=given_topic[0] if given_topic else topic,
        output_partitions=read_partitions(properties) or (0 if stateless else tasks),
        tasks=0 if stateless else tasks,
        window=computed.window,
        emission=EVERY_RECORD if stateless else emission,
    )
    result = Source(statement.name.text, query.output_topic, "json", computed.columns)
    return Planned(query, Relation(result.name, statement.kind, result, key_format, query.sql, name))


def plan_insert(statement: InsertSelect, catalogue: Catalogue, *, name: str) -> Planned:
    """The plan of INSERT INTO … SELECT; `name` is the query's unless QUERY_ID is given."""
    target = require(catalogue, statement.name, "stream")
    if target.kind == TABLE:
        raise Refusal(statement.name.at, f"{target.name} is a table; INSERT INTO … SELECT needs a stream")
    computed, source = _compute(statement.query, STREAM, catalogue)
    _require_same(computed.columns, target, statement)
    query_id = text_property(check_properties(statement.properties, INSERT_PROPERTIES), "QUERY_ID")
    if query_id is not None:
        name = plan_name(Name(*(query_id[0],) * 2, query_id[1]))
    query = Query(
        name=name,
        sql=print_tree(statement),
        source=source,
        where=computed.where,
        group_by=computed.keys,
        aggregates=(),
        having=None,
        outputs=computed.outputs,
        key_format=target.key_format or "kafka",
        output_topic=target.source.topic,
        output_partitions=0,
        tasks=0,
        emission=EVERY_RECORD,
    )
    return Planned(query, target)


def plan_name(name: Name) -> str:
    """The name of the query that makes it: lower case, and part of topics, groups and folders."""
    if not PLAN_NAME.fullmatch(name.text.lower()):
        raise Refusal(name.at, f"a query's name is of letters, digits and _, not {name.text[:50]}")
    return name.text.lower()


def _compute(select: Select, kind: str, catalogue: Catalogue) -> tuple[Computation, Source]:
    try:
        relation = require(catalogue, select.source.name, "stream")
        if relation.kind == TABLE:
            reason = "only a stream can be aggregated" if kind == TABLE else "only a stream can be read as a stream"
            raise Refusal(select.source.name.at, f"{relation.name} is a table; {reason}")
        if relation.key_format == "json":
            hint = "give the stream that is read a KAFKA key"
            raise Refusal(select.source.name.at, "a JSON key cannot be read yet", hint)
        alias = select.source.alias or select.source.name
        rows = RowExpressions(relation.source, alias.text)
        _check_clauses(select, kind)
        computed = plan_table(select, rows) if kind == TABLE else plan_projection(select, rows)
    except RecursionError:
        raise Refusal(select.at, "an expression is nested too deeply") from None
    _check_end(select)
    return computed, relation.source


def _check_clauses(select: Select, kind: str) -> None:
    if kind == STREAM and select.group_by is not None:
        raise Refusal(select.group_by.at, "GROUP BY gives a table", "write CREATE TABLE … AS SELECT")
    if kind == TABLE and select.partition_by is not None:
        raise Refusal(select.partition_by.at, "PARTITION BY is not supported here", "a table's key is its GROUP BY")
    if select.group_by is not None or kind == STREAM:
        _check_end(select)


def _check_end(select: Select) -> None:
    if select.emit is None:
        raise Refusal(select.emit_at, "EMIT CHANGES is missing", "end the statement with EMIT CHANGES;")
    if select.emit == FINAL:
        raise Refusal(select.emit_at, "EMIT FINAL is not supported", "only EMIT CHANGES is")
    if select.limit is not None:
        raise Refusal(select.limit_at, "LIMIT is not supported: a result is never complete")


def _require_same(columns: Sequence[Column], target: Relation, statement: InsertSelect) -> None:
    """The result must have exactly the target's columns: names, types, and which is the key."""
    found = {column.name: (column.type, column.key) for column in columns}
    wanted = {column.name: (column.type, column.key) for column in target.source.columns}
    at = statement.query.at
    for name in (*wanted, *found):
        if found.get(name) == wanted.get(name):
            continue
        if name not in found:
            raise Refusal(
                at, f"column {name} of {target.name} is not selected", "name it with AS, or CAST(NULL AS type)"
            )
        if name not in wanted:
            raise Refusal(at, f"{target.name} has no column {name}", f"it has {', '.join(wanted)}")
        (is_type, is_key), (type_, _) = found[name], wanted[name]
        if is_type != type_:
            raise Refusal(at, f"column {name} is {is_type}, in {target.name} it is {type_}", "use CAST")
        raise Refusal(at, f"column {name} is {'the key' if is_key else 'no key'}, in {target.name} the opposite")
