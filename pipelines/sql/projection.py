"""SELECT without GROUP BY: every row that WHERE lets through is a result of its own."""

from __future__ import annotations

from pipelines.plan import Column, GroupKey, Output
from pipelines.sql.error import Refusal
from pipelines.sql.expression import RowExpressions
from pipelines.sql.functions import Value
from pipelines.sql.functions_table import TableCalls
from pipelines.sql.names import PSEUDO_COLUMNS, Name
from pipelines.sql.nodes import Column as ColumnNode
from pipelines.sql.nodes import Node, Null, unwrapped
from pipelines.sql.printer import print_tree
from pipelines.sql.quoting import quote
from pipelines.sql.table import Computation, expanded, keys_missing, name_columns, typed
from pipelines.sql.tree import Item, Select
from pipelines.sql.types import parse_type


def plan_projection(select: Select, rows: RowExpressions, *, target: str = "") -> Computation:
    """The plan of a stateless query, in the order WHERE, PARTITION BY, SELECT. `target` is what errors call its result."""
    if select.having is not None:
        raise Refusal(select.tail_at, "HAVING needs GROUP BY", "use WHERE")
    if select.window is not None:
        raise Refusal(select.window.at, "WINDOW clause requires a GROUP BY clause.")
    rows.tables = TableCalls()
    rows.place = "WHERE"
    where = rows.boolean(select.where, "WHERE") if select.where is not None else None
    rows.place = "PARTITION BY"
    wanted = _keys(select, rows)
    rows.place = "SELECT"
    items = _expanded(select, rows, wanted)
    found: dict[str, GroupKey] = {}
    outputs: list[Output] = []
    columns: list[Column] = []
    texts = {key.text for key, _ in wanted}
    for item, name in zip(items, name_columns(items, rows), strict=True):
        value = typed(rows.value(item.expression))
        if value.text in found:
            raise Refusal(item.at, _twice(found[value.text], name), "AS_VALUE(key) AS name copies a key into the value")
        if value.text in texts:
            found[value.text] = GroupKey(name, value.text, value.type.spark)
        else:
            outputs.append(Output(name, value.text))
        columns.append(Column(name, name, value.type.spark, key=value.text in texts))
    _require_keys(wanted, found, select, target)
    if not outputs:
        hint = "select a column beside the key, or AS_VALUE(key)"
        raise Refusal(select.at, "The projection contains no value columns: the stream has no value column", hint)
    keys = tuple(found[key.text] for key, _ in wanted)
    ordered = sorted(columns, key=lambda column: not column.key)
    return Computation(
        where, keys, tuple(at for _, at in wanted), (), None, tuple(outputs), tuple(ordered), tables=rows.tables.arrays
    )


def _twice(key: GroupKey, again: str) -> str:
    """What ksqlDB says of a key that is selected twice."""
    told = f"The projection contains a key column (`{key.name}`) more than once, aliased as: {key.name} and {again}"
    return f"key {key.name} is selected twice: {told}"


def _require_keys(wanted: list[tuple[Value, int]], found: dict[str, GroupKey], select: Select, target: str) -> None:
    clause = select.partition_by
    missing = [number for number, (key, _) in enumerate(wanted) if key.text not in found]
    if not missing:
        return
    if clause is not None:
        shown = [print_tree(clause.expressions[number]) for number in missing]
        told = keys_missing(target, "partitioning expression", shown)
    else:
        told = keys_missing(target, "key column", [key.text.strip("`") for key, _ in wanted])
    raise Refusal(wanted[missing[0]][1], told, "the result's key must also be selected")


def _keys(select: Select, rows: RowExpressions) -> list[tuple[Value, int]]:
    """What the result is keyed by: PARTITION BY, else the source's keys; empty for no key. And where that is said."""
    clause = select.partition_by
    if clause is None:
        keys = [column for column in rows.source.columns if column.key]
        return [(Value(quote(column.name), parse_type(column.type), select.at), select.at) for column in keys]
    if len(clause.expressions) == 1 and isinstance(unwrapped(clause.expressions[0]), Null):
        return []
    return [(typed(rows.value(node)), node.at) for node in clause.expressions]


def _expanded(select: Select, rows: RowExpressions, wanted: list[tuple[Value, int]]) -> tuple[Item, ...]:
    """The items, `*` replaced by what PARTITION BY computes and by the source's columns: its keys are first, or last
    where the result has others."""
    items: list[Item] = []
    moved = select.partition_by is not None
    ordered = sorted(rows.source.columns, key=lambda column: column.key if moved else not column.key)
    texts = {quote(column.name) for column in rows.source.columns}
    for item in select.items:
        if isinstance(item, Item):
            items.append(item)
            continue
        if item.of is None and select.partition_by is not None:
            nodes = zip(select.partition_by.expressions, wanted, strict=False)
            computed = [node for node, (key, _) in nodes if key.text not in texts]
            items += [Item(node, _free_name(node, rows), at=item.at) for node in computed]
        items += expanded(item, rows, ordered)
    return tuple(items)


def _free_name(node: Node, rows: RowExpressions) -> Name | None:
    """A name for a column that every row has, which cannot keep its own."""
    bare = unwrapped(node)
    if not isinstance(bare, ColumnNode) or bare.name.text not in PSEUDO_COLUMNS:
        return None
    free = next(name for n in range(10**9) if (name := f"KSQL_COL_{n}") not in rows.types)
    return Name(free, free, node.at)
