"""SELECT without GROUP BY: every row that WHERE lets through is a result of its own."""

from __future__ import annotations

from pipelines.plan import Column, GroupKey, Output
from pipelines.sql.error import Refusal
from pipelines.sql.expression import RowExpressions
from pipelines.sql.functions import Value
from pipelines.sql.names import Name, quote
from pipelines.sql.nodes import Column as ColumnNode
from pipelines.sql.nodes import Node, Null, unwrapped
from pipelines.sql.table import Computation, name_columns, typed
from pipelines.sql.tree import AllColumns, Item, Select
from pipelines.sql.types import parse_type


def plan_projection(select: Select, rows: RowExpressions) -> Computation:
    """The plan of a stateless query, in the order WHERE, PARTITION BY, SELECT."""
    if select.having is not None:
        raise Refusal(select.tail_at, "HAVING needs GROUP BY", "use WHERE")
    if select.window is not None:
        raise Refusal(select.window.at, "WINDOW needs GROUP BY")
    where = rows.boolean(select.where, "WHERE") if select.where is not None else None
    rows.place = "PARTITION BY"
    key, key_at = _key(select, rows)
    rows.place = "a SELECT without GROUP BY"
    items = _expanded(select, rows)
    keys: list[GroupKey] = []
    outputs: list[Output] = []
    columns: list[Column] = []
    for item, name in zip(items, name_columns(items, rows), strict=True):
        value = typed(rows.value(item.expression))
        is_key = key is not None and value.text == key.text
        if is_key and keys:
            hint = "AS_VALUE(key) AS name copies a key into the value"
            raise Refusal(item.at, f"key {keys[0].name} is selected twice", hint)
        if is_key:
            keys.append(GroupKey(name, value.text, value.type.spark))
        else:
            outputs.append(Output(name, value.text))
        columns.append(Column(name, name, value.type.spark, key=is_key))
    if key is not None and not keys:
        raise Refusal(key_at, "key missing from projection", "the result's key must also be selected")
    if not outputs:
        raise Refusal(select.at, "the stream has no value column", "select a column beside the key, or AS_VALUE(key)")
    places = (key_at,) if keys else ()
    return Computation(where, tuple(keys), places, (), None, tuple(outputs), tuple(columns))


def _key(select: Select, rows: RowExpressions) -> tuple[Value | None, int]:
    """What the result is keyed by: PARTITION BY, else the source's key; None for no key. And where that is said."""
    clause = select.partition_by
    if clause is None:
        for column in rows.source.columns:
            if column.key:
                return Value(quote(column.name), parse_type(column.type), select.at), select.at
        return None, select.at
    if len(clause.expressions) > 1:
        raise Refusal(clause.expressions[1].at, "PARTITION BY takes one expression here")
    node = clause.expressions[0]
    if isinstance(unwrapped(node), Null):
        return None, node.at
    return typed(rows.value(node)), node.at


def _expanded(select: Select, rows: RowExpressions) -> tuple[Item, ...]:
    """The items, `*` replaced by the source's columns."""
    items: list[Item] = []
    for item in select.items:
        if isinstance(item, Item):
            items.append(item)
            continue
        _check_source(item, rows)
        items += [Item(_column(column.name, item.at), None, at=item.at) for column in rows.source.columns]
    return tuple(items)


def _check_source(item: AllColumns, rows: RowExpressions) -> None:
    if item.source is not None and item.source.text != rows.alias:
        hint = f"the only source here is {rows.alias}"
        raise Refusal(item.source.at, f"{item.source.text} is not a source of this query", hint)


def _column(name: str, at: int) -> Node:
    return ColumnNode(Name(name, name, at), at=at)
