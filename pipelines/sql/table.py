"""CREATE TABLE name AS SELECT … GROUP BY … EMIT CHANGES: a continuous aggregation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlglot import exp
from sqlglot.tokenizer_core import TokenType

from pipelines.plan import GroupKey, Output, Query, Source
from pipelines.sql.aggregation import CONSTANTS, ResultExpressions
from pipelines.sql.dialect import HEIGHT_MAX, Ksql, height, offset
from pipelines.sql.error import Refusal, nearest
from pipelines.sql.expression import RowExpressions
from pipelines.sql.functions import Value
from pipelines.sql.names import AGGREGATE_NAME, PSEUDO_COLUMNS, Name
from pipelines.sql.properties import (
    TABLE_PROPERTIES,
    Property,
    read_format,
    read_partitions,
    read_properties,
    read_topic,
)
from pipelines.sql.script import Cursor, print_statement

UNSUPPORTED = {
    "CROSS": "joins are not supported",
    "EXCEPT": "EXCEPT is not supported",
    "FULL": "joins are not supported",
    "INNER": "joins are not supported",
    "INTERSECT": "INTERSECT is not supported",
    "JOIN": "joins are not supported",
    "LEFT": "joins are not supported",
    "LIMIT": "LIMIT is not supported: a table is never complete",
    "ORDER": "ORDER BY is not supported: a table is never complete",
    "OUTER": "joins are not supported",
    "OVER": "window functions are not supported",
    "PARTITION": "PARTITION BY is not supported",
    "RIGHT": "joins are not supported",
    "UNION": "UNION is not supported",
    "WINDOW": "windows are not supported yet",
    "WITHIN": "joins are not supported",
}


@dataclass
class Clauses:
    """The statement's parts as trees; an item of SELECT with its alias, if it has one."""

    select_at: int
    items: list[tuple[exp.Expr, Name | None]] = field(default_factory=list)
    where: exp.Expr | None = None
    group_by: list[exp.Expr] = field(default_factory=list)
    having: exp.Expr | None = None


@dataclass(frozen=True)
class Defined:
    """What the statements before this one defined: sources by name, and the names of tables."""

    sources: Mapping[str, Source]
    tables: tuple[str, ...]


def unexpected(cursor: Cursor, expected: str) -> Refusal:
    """Why the token at the cursor is not what may come here."""
    message = UNSUPPORTED.get(cursor.word())
    return Refusal(cursor.at, message or f"expected {expected}, found {cursor.shown}")


def read_expression(cursor: Cursor) -> exp.Expr:
    """The expression at the cursor, which goes past it."""
    parser = Ksql().parser()
    assert isinstance(parser, Ksql.Parser)
    if cursor.token is None:
        raise Refusal(cursor.at, f"expected an expression, found {cursor.shown}")
    start = cursor.at
    try:
        node, cursor.index = parser.expression_at(cursor.tokens, cursor.index, cursor.end)
    except RecursionError:
        raise Refusal(start, "the expression is nested too deeply") from None
    if height(node) > HEIGHT_MAX:
        raise Refusal(start, "the expression is nested too deeply", f"at most {HEIGHT_MAX} operations in a row")
    return node


def read_table(cursor: Cursor, name: Name, defined: Defined, *, pipeline: str, default_tasks: int) -> Query:
    """The query that the statement defines; the cursor stands behind the name."""
    token = cursor.token
    if token is not None and token.token_type == TokenType.L_PAREN:
        raise Refusal(cursor.at, "a table over a topic is not supported yet", "only CREATE TABLE … AS SELECT is")
    properties: dict[str, Property] = {}
    if cursor.accept("WITH"):
        properties = read_properties(cursor, TABLE_PROPERTIES)
    if not cursor.accept("AS"):
        raise Refusal(
            cursor.at, f"expected AS SELECT, found {cursor.shown}", "only CREATE TABLE … AS SELECT is supported"
        )
    clauses, rows = read_clauses(cursor, defined)
    try:
        return plan_table(cursor, name, clauses, rows, properties, pipeline=pipeline, default_tasks=default_tasks)
    except RecursionError:
        raise Refusal(clauses.select_at, "an expression is nested too deeply") from None


def read_clauses(cursor: Cursor, defined: Defined) -> tuple[Clauses, RowExpressions]:
    """SELECT … EMIT CHANGES, up to the statement's end."""
    clauses = Clauses(cursor.at)
    cursor.expect("SELECT")
    if cursor.word() == "DISTINCT":
        raise Refusal(cursor.at, "DISTINCT is not supported", "GROUP BY makes rows distinct")
    while True:
        clauses.items.append(read_item(cursor))
        if not cursor.accept_type(TokenType.COMMA):
            break
    if not cursor.accept("FROM"):
        raise unexpected(cursor, ", or FROM")
    rows = read_from(cursor, defined)
    if cursor.accept("WHERE"):
        clauses.where = read_expression(cursor)
    group_at = cursor.at
    if not cursor.accept("GROUP", "BY"):
        if cursor.word() in ("HAVING", "EMIT") or cursor.token is None:
            raise Refusal(group_at, "a table needs GROUP BY", "a table is an aggregation: GROUP BY its key")
        raise unexpected(cursor, "GROUP BY" if clauses.where else "WHERE or GROUP BY")
    while True:
        clauses.group_by.append(read_expression(cursor))
        if not cursor.accept_type(TokenType.COMMA):
            break
    if cursor.accept("HAVING"):
        clauses.having = read_expression(cursor)
    if not cursor.accept("EMIT"):
        if cursor.token is None:
            raise Refusal(cursor.at, "EMIT CHANGES is missing", "end the statement with EMIT CHANGES;")
        raise unexpected(cursor, "EMIT CHANGES")
    if cursor.word() == "FINAL":
        raise Refusal(cursor.at, "EMIT FINAL is not supported", "only EMIT CHANGES is")
    cursor.expect("CHANGES")
    if cursor.token is not None:
        raise unexpected(cursor, ";")
    return clauses, rows


def read_item(cursor: Cursor) -> tuple[exp.Expr, Name | None]:
    """One expression of SELECT with its alias."""
    star = cursor.token
    if star is not None and star.token_type == TokenType.STAR:
        raise Refusal(star.start, "SELECT * is not supported", "name the columns")
    node = read_expression(cursor)
    if cursor.accept("AS") or cursor.at_name():
        return node, cursor.name("an alias")
    return node, None


def read_from(cursor: Cursor, defined: Defined) -> RowExpressions:
    """The one source of the query, with its alias."""
    token = cursor.token
    if token is not None and token.token_type == TokenType.L_PAREN:
        raise Refusal(token.start, "subqueries are not supported", "FROM takes the name of a stream")
    name = cursor.name("a stream")
    source = defined.sources.get(name.text)
    if source is None:
        if name.text in defined.tables:
            raise Refusal(name.at, f"{name.text} is a table; only a stream can be aggregated")
        raise Refusal(name.at, f"unknown stream {name.text}", nearest(name.text, defined.sources))
    alias = name.text
    if cursor.accept("AS") or (cursor.at_name() and cursor.word() not in ("GROUP", "EMIT")):
        alias = cursor.name("an alias").text
    token = cursor.token
    if token is not None and token.token_type == TokenType.COMMA:
        raise Refusal(token.start, "a query has one source", "joins are not supported")
    return RowExpressions(source, alias)


def plan_table(
    cursor: Cursor,
    name: Name,
    clauses: Clauses,
    rows: RowExpressions,
    properties: dict[str, Property],
    *,
    pipeline: str,
    default_tasks: int,
) -> Query:
    """The plan of the clauses, in the order WHERE, GROUP BY, SELECT, HAVING."""
    where = rows.boolean(clauses.where, "WHERE") if clauses.where is not None else None
    rows.place = "GROUP BY"
    groups = [(rows.value(node), node) for node in clauses.group_by]
    names = name_columns(clauses, rows)
    keys = group_keys(groups, clauses, rows, names)
    result = ResultExpressions(rows, {value.text: key for (value, _), key in zip(groups, keys, strict=True)})
    outputs = []
    for (node, _), item_name in zip(clauses.items, names, strict=True):
        if result.key(node) is not None:
            continue
        value = result.value(node)
        if value.type.kind == "null":
            raise Refusal(offset(node), "NULL has no type", "give it one: CAST(NULL AS STRING)")
        outputs.append(Output(item_name, value.text))
    having = result.boolean(clauses.having, "HAVING") if clauses.having is not None else None
    if not outputs:
        raise Refusal(clauses.select_at, "the table has no value column", "select an aggregate, for example COUNT(*)")
    if not result.aggregates:
        raise Refusal(clauses.select_at, "the query has no aggregate", "select one, for example COUNT(*)")
    key_format = check_key_format(read_format(properties, "KEY_FORMAT", ("kafka", "json")), groups, keys)
    read_format(properties, "VALUE_FORMAT", ("json",))
    topic = read_topic(properties)
    return Query(
        name=name.text.lower(),
        sql=print_statement(cursor.tokens),
        source=rows.source,
        where=where,
        group_by=keys,
        aggregates=result.aggregates,
        having=having,
        outputs=tuple(outputs),
        key_format=key_format,
        output_topic=topic[0] if topic else f"{pipeline}-{name.text.lower()}",
        output_partitions=read_partitions(properties) or default_tasks,
        tasks=default_tasks,
    )


def name_columns(clauses: Clauses, rows: RowExpressions) -> list[str]:
    """A name for each item of SELECT: the alias, the column's own, or the next free KSQL_COL_n."""
    given: list[str | None] = []
    taken: set[str] = set()
    for node, alias in clauses.items:
        bare = node.unnest()
        name = alias.text if alias else rows.named(bare) if isinstance(bare, exp.Column) else None
        at = alias.at if alias else offset(node)
        if name is not None and name.upper() in PSEUDO_COLUMNS:
            raise Refusal(at, f"{name} is a reserved column name", "give it another with AS")
        if name is not None and name.upper() in taken:
            hint = "names that differ only in case are one name"
            raise Refusal(at, f"column {name} is in the result twice", hint)
        taken.update([name.upper()] if name else [])
        given.append(name)
    taken.update(name.upper() for name in rows.types)
    free = (f"KSQL_COL_{n}" for n in range(10**9) if f"KSQL_COL_{n}" not in taken)
    return [name or next(free) for name in given]


def group_keys(
    groups: list[tuple[Value, exp.Expr]], clauses: Clauses, rows: RowExpressions, names: list[str]
) -> tuple[GroupKey, ...]:
    """The group keys in the order of GROUP BY, each named by the item of SELECT that equals it."""
    unnamed = ResultExpressions(rows, {value.text: GroupKey("", value.text, value.type.spark) for value, _ in groups})
    named: dict[str, str] = {}
    for (node, alias), name in zip(clauses.items, names, strict=True):
        key = unnamed.key(node)
        if key is None:
            continue
        at = alias.at if alias else offset(node)
        if key.expression in named:
            hint = "AS_VALUE(key) AS name copies a key into the value"
            raise Refusal(at, f"group key {named[key.expression]} is selected twice", hint)
        if AGGREGATE_NAME.fullmatch(name):
            raise Refusal(at, f"a group key cannot be called {name}", "names like A0 are the aggregates'")
        named[key.expression] = name
    keys: list[GroupKey] = []
    seen: set[str] = set()
    for value, node in groups:
        if value.type.kind == "null":
            raise Refusal(value.at, "NULL cannot be a group key")
        if value.text in seen:
            raise Refusal(offset(node), "the group key is given twice")
        if value.text not in named:
            raise Refusal(offset(node), "key missing from projection", "every group key must also be selected")
        seen.add(value.text)
        # A bare literal would be read as a position by Spark's GROUP BY.
        constant = isinstance(node.unnest(), (*CONSTANTS, exp.Neg))
        text = f"CAST({value.text} AS {value.type.spark.upper()})" if constant else value.text
        keys.append(GroupKey(named[value.text], text, value.type.spark))
    return tuple(keys)


def check_key_format(given: str | None, groups: list[tuple[Value, exp.Expr]], keys: tuple[GroupKey, ...]) -> str:
    """The key format, by default kafka, if the group keys can be written in it."""
    key_format = given or "kafka"
    hint = "write WITH (key_format='json')"
    if key_format == "kafka" and len(keys) > 1:
        raise Refusal(offset(groups[1][1]), "the kafka key format holds one group key", hint)
    for (_, node), key in zip(groups, keys, strict=True):
        if key.type == "double":
            raise Refusal(offset(node), "a double cannot be a group key", "CAST it to DECIMAL or BIGINT")
        if key_format == "kafka" and key.type not in ("string", "int", "bigint"):
            raise Refusal(offset(node), f"the kafka key format cannot hold {key.type}", hint)
    return key_format
