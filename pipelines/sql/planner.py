"""From the tree of a statement to a plan: names are looked up in a catalogue, expressions become Spark SQL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pipelines.plan import EVERY_RECORD, LISTS, Column, Output, Query, Source
from pipelines.sql.aggregation import require_plain_state, require_undoable
from pipelines.sql.casting import cast_text
from pipelines.sql.catalogue import Catalogue, Relation, require
from pipelines.sql.define import read_timestamp
from pipelines.sql.error import Refusal
from pipelines.sql.expression import RowExpressions
from pipelines.sql.formats import Formats, checked, formats_of, read_formats
from pipelines.sql.functions import AGGREGATES
from pipelines.sql.functions_table import table_calls
from pipelines.sql.names import PLAN_NAME, Name, plan_word
from pipelines.sql.nodes import Call, walk
from pipelines.sql.printer import print_tree
from pipelines.sql.projection import plan_projection
from pipelines.sql.properties import (
    INSERT_PROPERTIES,
    QUERY_PROPERTIES,
    Properties,
    check_properties,
    read_emission,
    read_on_error,
    read_partitions,
    read_topic,
    text_property,
)
from pipelines.sql.quoting import string_literal
from pipelines.sql.table import Computation, plan_table
from pipelines.sql.time_pattern import spark_problem
from pipelines.sql.tree import FINAL, STREAM, TABLE, CreateAs, InsertSelect, Item, Select
from pipelines.sql.types import SqlType, common, parse_type
from statestore.spaces.base import OWN_SPACES


@dataclass(frozen=True)
class Planned:
    """A query and the relation that it fills, which for INSERT INTO is the one it was before."""

    query: Query
    relation: Relation


def plan_create(statement: CreateAs, catalogue: Catalogue, *, topic: str, tasks: int) -> Planned:
    """The plan of CREATE … AS. `topic` is the result's unless KAFKA_TOPIC is given; `tasks` those of a table."""
    name = plan_name(statement.name)
    computed, relation = _compute(statement.query, statement.kind, catalogue, statement.name.text)
    source = relation.source
    properties = check_properties(statement.properties, QUERY_PROPERTIES)
    at = computed.key_at[min(1, len(computed.key_at) - 1)] if computed.key_at else statement.query.at
    what = statement.kind.lower()
    formats = _checked(read_formats(properties, formats_of(source)), computed, properties, at, what)
    given_topic = read_topic(properties)
    stateless = not computed.aggregates
    emission = read_emission(properties)
    query = Query(
        name=name,
        sql=print_tree(statement),
        source=source,
        where=computed.where,
        group_by=computed.keys,
        aggregates=computed.aggregates,
        having=computed.having,
        tables=computed.tables,
        outputs=_typed(computed.outputs, formats.value, computed.columns),
        key_format=formats.key,
        output_topic=given_topic[0] if given_topic else topic,
        output_partitions=read_partitions(properties) or (0 if stateless else tasks),
        tasks=0 if stateless else tasks,
        window=computed.window,
        emission=EVERY_RECORD if stateless else emission,
        value_format=formats.value,
        key_delimiter=formats.key_delimiter,
        value_delimiter=formats.value_delimiter,
        wrapped=formats.wrapped,
        changelog=relation.kind == TABLE,
        timestamp=_timestamp(properties, computed),
        keeps_window=bool(source.window_type),
        on_error=read_on_error(properties),
        base64_keys=_in_base64(formats.key, computed),
    )
    window = computed.window
    result = Source(
        statement.name.text,
        query.output_topic,
        formats.value,
        computed.columns,
        formats.key,
        formats.key_delimiter,
        formats.value_delimiter,
        formats.wrapped,
        window_type=window.kind if window is not None else source.window_type,
        window_ms=window.size_ms if window is not None else source.window_ms,
    )
    windowed = bool(result.window_type)
    relation = Relation(result.name, statement.kind, result, formats.key, query.sql, name, windowed=windowed)
    return Planned(query, relation)


def _checked(formats: Formats, computed: Computation, properties: Properties, at: int, what: str) -> Formats:
    """The formats if the result can be written in them; of an aggregation ksqlDB blames the function."""
    try:
        return checked(formats, computed.columns, properties, at, what, computed=True)
    except Refusal as refusal:
        if formats.value != "delimited" or not any(a.function in LISTS for a in computed.aggregates):
            raise
        told = (
            "One of the functions used in the statement has an intermediate type that the value format can not handle."
        )
        message = f"{refusal.message}. {told} Please remove the function or change the format."
        raise Refusal(refusal.at, message, refusal.hint) from None


def _timestamp(properties: Properties, computed: Computation) -> str | None:
    """The expression of the results' time, if TIMESTAMP names one of their columns."""
    name, pattern = read_timestamp(properties, computed.columns)
    if name is None:
        return None
    if computed.aggregates:
        raise Refusal(properties["TIMESTAMP"].at, "TIMESTAMP of an aggregation's result is not supported yet")
    texts = {output.name: output.expression for output in computed.outputs}
    texts |= {key.name: key.expression for key in computed.keys}
    if pattern is None:
        return texts[name]
    if problem := spark_problem(pattern, reads=True):
        raise Refusal(properties["TIMESTAMP_FORMAT"].at, problem)
    return f"unix_millis(try_to_timestamp({texts[name]}, {string_literal(pattern)}))"


def plan_insert(statement: InsertSelect, catalogue: Catalogue, *, name: str) -> Planned:
    """The plan of INSERT INTO … SELECT; `name` is the query's unless QUERY_ID is given."""
    target = require(catalogue, statement.name, "stream")
    if target.kind == TABLE:
        raise Refusal(
            statement.name.at, f"INSERT INTO can only be used to insert into a stream. {target.name} is a table"
        )
    computed, relation = _compute(statement.query, STREAM, catalogue, target.name)
    _require_same(computed.columns, target, statement)
    sink = target.source
    if (sink.window_type, sink.window_ms) != (relation.source.window_type, relation.source.window_ms):
        told = "Incompatible windowing between results and sink"
        raise Refusal(statement.query.at, f"{target.name} and {relation.name} are not windowed alike: {told}")
    properties = check_properties(statement.properties, INSERT_PROPERTIES)
    query_id = text_property(properties, "QUERY_ID")
    if query_id is not None:
        name = _given_name(*query_id)
    query = Query(
        name=name,
        sql=print_tree(statement),
        source=relation.source,
        where=computed.where,
        group_by=computed.keys,
        aggregates=(),
        having=None,
        tables=computed.tables,
        outputs=_typed(_widened(computed, target), sink.value_format, target.source.columns),
        key_format=target.key_format or "kafka",
        output_topic=target.source.topic,
        output_partitions=0,
        tasks=0,
        emission=EVERY_RECORD,
        value_format=sink.value_format,
        key_delimiter=sink.key_delimiter,
        value_delimiter=sink.value_delimiter,
        wrapped=sink.wrapped,
        keeps_window=bool(sink.window_type),
        on_error=read_on_error(properties),
        base64_keys=_in_base64(target.key_format, computed),
    )
    return Planned(query, target)


def _in_base64(key_format: str, computed: Computation) -> bool:
    return key_format == "delimited" and any(key.type == "bytes" for key in computed.keys)


def _typed(outputs: tuple[Output, ...], form: str, columns: Sequence[Column]) -> tuple[Output, ...]:
    """The outputs with their types where the format has to know them: KAFKA of all, DELIMITED of bytes."""
    types = {column.name: column.type for column in columns}
    known = {name: kind for name, kind in types.items() if form == "kafka" or (form, kind) == ("delimited", "bytes")}
    return tuple(replace(each, type=known.get(each.name, each.type)) for each in outputs)


def _widened(computed: Computation, target: Relation) -> tuple[Output, ...]:
    """The outputs in the types of the target, which may be wider."""
    found = {column.name: column.type for column in computed.columns}
    wanted = {column.name: column.type for column in target.source.columns}
    return tuple(
        Output(each.name, cast_text(each.expression, parse_type(found[each.name]), parse_type(wanted[each.name])))
        for each in computed.outputs
    )


def plan_name(name: Name) -> str:
    """The name of the query that makes it: lower case, and part of topics, groups and folders."""
    return plan_word(name.text)


def _given_name(name: str, at: int) -> str:
    """The name that QUERY_ID gives."""
    if not PLAN_NAME.fullmatch(name.lower()):
        raise Refusal(at, f"a query's name is of letters, digits and _, not {name[:50]}")
    if name.lower() in OWN_SPACES:
        raise Refusal(at, f"a query must not be called {name}: its store would lie where others are kept")
    return name.lower()


def _compute(select: Select, kind: str, catalogue: Catalogue, target: str) -> tuple[Computation, Relation]:
    try:
        relation = require(catalogue, select.source.name)
        _check_clauses(select, kind, relation)
        alias = select.source.alias or select.source.name
        rows = RowExpressions(relation.source, alias.text)
        plan = plan_projection if select.group_by is None else plan_table
        computed = plan(select, rows, target=target)
        _refuse_final(select)
    except RecursionError:
        raise Refusal(select.at, "an expression is nested too deeply") from None
    return computed, replace(relation, source=replace(relation.source, places=rows.places))


def _check_clauses(select: Select, kind: str, relation: Relation) -> None:
    is_table = select.group_by is not None or relation.kind == TABLE
    if relation.windowed and not relation.source.window_type:
        raise Refusal(select.source.name.at, f"{relation.name} is windowed, by a statement of before: make it again")
    if relation.source.window_type and (clause := select.group_by or select.partition_by) is not None:
        told = "Implicit repartitioning of windowed sources is not supported."
        told = f"{told} See https://github.com/confluentinc/ksql/issues/4385."
        raise Refusal(clause.at, f"{relation.name} is windowed: {told}", "its rows keep their key and their window")
    if kind == STREAM and is_table:
        at = select.group_by.at if select.group_by is not None else select.source.name.at
        told = "Your SELECT query produces a TABLE. Please use CREATE TABLE AS SELECT statement instead"
        raise Refusal(
            at, f"GROUP BY and tables give a table: Invalid result type. {told}", "write CREATE TABLE … AS SELECT"
        )
    for call in _aggregates(select) if select.group_by is None else ():
        told = ": Non-aggregate SELECT expression(s) not part of GROUP BY" if select.window is not None else ""
        raise Refusal(call.at, f"Use of aggregate function {call.function} requires a GROUP BY clause{told}")
    if kind == TABLE and not is_table:
        told = "Your SELECT query produces a STREAM. Please use CREATE STREAM AS SELECT statement instead"
        raise Refusal(select.tail_at, f"a table needs GROUP BY: Invalid result type. {told}", "GROUP BY its key")
    if select.group_by is not None and relation.kind == TABLE:
        if select.window is not None:
            raise Refusal(select.window.at, "Windowing not supported for table aggregations.")
        require_undoable(select)
    if select.group_by is not None:
        require_plain_state(select, relation.source)
    if relation.kind == TABLE:
        _refuse_table_functions(select)
    if kind == TABLE and select.partition_by is not None:
        raise Refusal(select.partition_by.at, "PARTITION BY is not supported here", "a table's key is its GROUP BY")
    _check_end(select)


def _aggregates(select: Select) -> Iterator[Call]:
    nodes = (item.expression for item in select.items if isinstance(item, Item))
    calls = (part for node in nodes for part in walk(node) if isinstance(part, Call))
    return (call for call in calls if call.function in AGGREGATES)


def _refuse_table_functions(select: Select) -> None:
    for item in select.items:
        for call in table_calls(item.expression) if isinstance(item, Item) else ():
            raise Refusal(call.at, "Table source is not supported with table functions")


def _refuse_final(select: Select) -> None:
    """After all that ksqlDB would refuse, too."""
    if select.emit == FINAL:
        raise Refusal(select.emit_at, "EMIT FINAL is not supported", "only EMIT CHANGES is")


def _check_end(select: Select) -> None:
    if select.emit == FINAL and select.window is None:
        raise Refusal(select.emit_at, "EMIT FINAL is only supported for windowed aggregations.", "only EMIT CHANGES is")
    if select.limit is not None:
        raise Refusal(select.limit_at, "LIMIT is not supported: a result is never complete")


def _require_same(columns: Sequence[Column], target: Relation, statement: InsertSelect) -> None:
    """The result must have the target's columns: names, which are keys, and types that are the same or narrower."""
    found = {column.name: column for column in columns}
    wanted = {column.name: column for column in target.source.columns}
    at = statement.query.at
    told = "Incompatible schema between results and sink"
    for name in (*wanted, *found):
        if name not in found:
            reason = f"column {name} of {target.name} is not selected: {told}"
            raise Refusal(at, reason, "name it with AS, or CAST(NULL AS type)")
        if name not in wanted:
            raise Refusal(at, f"{target.name} has no column {name}: {told}", f"it has {', '.join(wanted)}")
        is_, shall = found[name], wanted[name]
        if is_.key != shall.key:
            is_key = "the key" if is_.key else "no key"
            raise Refusal(at, f"column {name} is {is_key}, in {target.name} the opposite: {told}")
        if is_.type != shall.type and (is_.key or not _widens(parse_type(is_.type), parse_type(shall.type))):
            reason = f"column {name} is {is_.type}, in {target.name} it is {shall.type}: {told}"
            raise Refusal(at, reason, "use CAST")


def _widens(source: SqlType, target: SqlType) -> bool:
    order = ["int", "bigint", "decimal", "double"]
    if not (source.is_number and target.is_number):
        return False
    if target.kind == "decimal":
        return common(source, target) == target
    return order.index(source.kind) <= order.index(target.kind)
