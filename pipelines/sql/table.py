"""CREATE TABLE name AS SELECT … GROUP BY … EMIT CHANGES: a continuous aggregation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pipelines.plan import Aggregate, Column, GroupKey, Output, Window
from pipelines.sql import tree
from pipelines.sql.aggregation import CONSTANTS, ResultExpressions, has_aggregate
from pipelines.sql.error import Refusal
from pipelines.sql.expression import RowExpressions
from pipelines.sql.functions import Value
from pipelines.sql.functions_table import table_calls
from pipelines.sql.names import AGGREGATE_NAME, PSEUDO_COLUMNS, WINDOW_BOUNDS, Name
from pipelines.sql.nodes import Column as ColumnNode
from pipelines.sql.nodes import Field, Node, Sign, unwrapped
from pipelines.sql.printer import print_tree
from pipelines.sql.tree import Item, Select

DAY_MS = 86_400_000


@dataclass(frozen=True)
class Computation:
    """What a SELECT computes, whatever its topic is called. `columns` are the result's, as a reader of it sees them."""

    where: str | None
    keys: tuple[GroupKey, ...]
    key_at: tuple[int, ...]
    aggregates: tuple[Aggregate, ...]
    having: str | None
    outputs: tuple[Output, ...]
    columns: tuple[Column, ...]
    window: Window | None = None
    tables: tuple[Output, ...] = ()


def plan_table(select: Select, rows: RowExpressions, *, target: str = "") -> Computation:
    """The plan of an aggregation, in the order WHERE, GROUP BY, SELECT, HAVING. `target` names it in errors."""
    items = _items(select, rows)
    for call in (call for item in items for call in table_calls(item.expression)):
        raise Refusal(call.at, "Table functions cannot be used with aggregations.")
    rows.place = "WHERE"
    if select.group_by is None:
        raise Refusal(select.tail_at, "a table needs GROUP BY", "a table is an aggregation: GROUP BY its key")
    where = rows.boolean(select.where, "WHERE") if select.where is not None else None
    rows.place = "GROUP BY"
    groups = [(rows.value(node), node) for node in select.group_by.expressions]
    _refuse_twice(groups, "GROUP BY")
    rows.place = "SELECT"
    windowed = select.window is not None
    if not any(
        has_aggregate(node) for node in (*(item.expression for item in items), select.having) if node is not None
    ):
        told = "GROUP BY requires aggregate functions in either the SELECT or HAVING clause: the query has no aggregate"
        raise Refusal(select.at, told, "select one, for example COUNT(*)")
    _check_items(items, groups, rows, windowed=windowed)
    names = name_columns(items, rows, bounds=WINDOW_BOUNDS if windowed else ())
    keys = group_keys(groups, items, rows, names, windowed=windowed, target=target)
    by_text = {value.text: key for (value, _), key in zip(groups, keys, strict=True)}
    result = ResultExpressions(rows, by_text, windowed=windowed)
    outputs: list[Output] = []
    columns = [Column(key.name, key.name, key.type, key=True) for key in keys]
    for item, name in zip(items, names, strict=True):
        if result.key(item.expression) is not None:
            continue
        value = typed(result.value(item.expression))
        outputs.append(Output(name, value.text))
        columns.append(Column(name, name, value.type.spark))
    rows.place = result.place = "HAVING"
    having = result.boolean(select.having, "HAVING") if select.having is not None else None
    if not outputs:
        told = "The projection contains no value columns: the table has no value column"
        raise Refusal(select.at, told, "select an aggregate, for example COUNT(*)")
    window = plan_window(select.window) if select.window is not None else None
    places = tuple(node.at for _, node in groups)
    return Computation(where, keys, places, result.aggregates, having, tuple(outputs), tuple(columns), window)


def _refuse_twice(groups: list[tuple[Value, Node]], clause: str) -> None:
    seen: set[str] = set()
    for value, node in groups:
        if value.text in seen:
            raise Refusal(node.at, f"the key is given twice: Duplicate {clause} expression: {print_tree(node)}")
        seen.add(value.text)


def _check_items(
    items: tuple[Item, ...], groups: list[tuple[Value, Node]], rows: RowExpressions, *, windowed: bool
) -> None:
    """Refuse items that are neither grouped nor aggregated before anything is said of keys."""
    plain = {value.text: GroupKey("", value.text, value.type.spark) for value, _ in groups}
    for item in items:
        result = ResultExpressions(rows, plain, windowed=windowed)
        result.item = item.expression
        result.value(item.expression)


def typed(value: Value) -> Value:
    """The value, unless it is a bare NULL."""
    if value.type.kind == "null":
        raise Refusal(value.at, "NULL has no type", "give it one: CAST(NULL AS STRING)")
    return value


def _items(select: Select, rows: RowExpressions) -> tuple[Item, ...]:
    """The items, `*` replaced by the source's columns, which GROUP BY has to name then."""
    items: list[Item] = []
    for item in select.items:
        items += [item] if isinstance(item, Item) else expanded(item, rows, rows.source.columns)
    return tuple(items)


def expanded(item: tree.AllColumns, rows: RowExpressions, columns: Iterable[Column]) -> list[Item]:
    """The items that `*`, `source.*` or `struct->*` stands for; `columns` are the source's in the wanted order."""
    if item.of is not None:
        value = rows.value(item.of)
        if value.type.kind != "struct":
            raise Refusal(item.of.at, f"->* needs a struct, this is {value.type.sql}")
        return [Item(Field(item.of, Name(name, name, item.of.at), at=item.of.at), None) for name in value.type.names]
    if item.source is not None and item.source.text != rows.alias:
        hint = f"the only source here is {rows.alias}"
        told = f"'{item.source.text}' is not a valid stream/table name or alias."
        raise Refusal(item.source.at, f"{item.source.text} is not a source of this query: {told}", hint)
    names = (Name(column.name, column.name, item.at) for column in columns)
    return [Item(ColumnNode(name, at=item.at), None, at=item.at) for name in names]


def plan_window(window: tree.Window) -> Window:
    """The window with ksqlDB's defaults: grace is 24 h less the size, retention is size and grace."""
    if window.kind == "SESSION":
        raise Refusal(window.at, "SESSION windows are not supported yet", "TUMBLING and HOPPING are")
    size = window.size.ms
    advance = window.advance.ms if window.advance is not None else size
    if size < 1:
        raise Refusal(window.size.at, "a window's size is at least 1 millisecond")
    if not 1 <= advance <= size:
        at = window.advance.at if window.advance is not None else window.at
        raise Refusal(at, "a window advances by at least 1 millisecond and at most its size")
    grace = window.grace.ms if window.grace is not None else max(DAY_MS - size, 0)
    retention = window.retention.ms if window.retention is not None else size + grace
    if window.retention is not None and retention < size + grace:
        raise Refusal(window.retention.at, "RETENTION is shorter than the window's size and grace period")
    return Window(window.kind.lower(), size, advance, grace, retention)


def name_columns(items: tuple[Item, ...], rows: RowExpressions, bounds: tuple[str, ...] = ()) -> list[str]:
    """A name for each item of SELECT: the alias, the column's own, or the next free KSQL_COL_n.

    `bounds` are columns that are there besides the rows' own, and need an alias.
    """
    given: list[str | None] = []
    taken: set[str] = set()
    for item in items:
        bare, alias = unwrapped(item.expression), item.alias
        name = alias.text if alias else None
        if alias is None and isinstance(bare, ColumnNode):
            name = bare.name.text if bare.name.text in bounds else rows.named(bare)
        if isinstance(bare, Field) and alias is None:
            name = _free_field(bare.name.text, taken)
        at = alias.at if alias else item.at
        if name is not None and name.upper() in PSEUDO_COLUMNS:
            told = f"Reserved column name in select: `{name}`. Please remove or alias the column."
            if alias is not None:
                told = f"`{name}` is a reserved column name. You cannot use it as an alias for a column."
            raise Refusal(at, f"{name} is a reserved column name: {told}", "give it another with AS")
        if name is not None and name.upper() in taken:
            hint = "names that differ only in case are one name"
            raise Refusal(at, f"column {name} is in the result twice", hint)
        taken.update([name.upper()] if name else [])
        given.append(name)
    taken.update(name.upper() for name in rows.types)
    free = (f"KSQL_COL_{n}" for n in range(10**9) if f"KSQL_COL_{n}" not in taken)
    return [name or next(free) for name in given]


def _free_field(name: str, taken: set[str]) -> str:
    """A struct's field gives its name; a second one of that name is numbered."""
    numbered = (name if n == 0 else f"{name}_{n}" for n in range(10**9))
    return next(each for each in numbered if each.upper() not in taken)


def keys_missing(target: str, what: str, keys: Sequence[str]) -> str:
    """What ksqlDB says of keys that are not selected."""
    plural = "s" if len(keys) > 1 else ""
    listed = " and ".join(filter(None, [", ".join(keys[:-1]), keys[-1]]))
    told = f"The query used to build `{target}` must include the {what}{plural} {listed} in its projection"
    return f"key missing from projection: Key{plural} missing from projection. {told} (eg, SELECT {', '.join(keys)}...)"


def group_keys(
    groups: list[tuple[Value, Node]],
    items: tuple[Item, ...],
    rows: RowExpressions,
    names: list[str],
    *,
    windowed: bool,
    target: str,
) -> tuple[GroupKey, ...]:
    """The group keys in the order of GROUP BY, each named by the item of SELECT that equals it."""
    plain = {value.text: GroupKey("", value.text, value.type.spark) for value, _ in groups}
    unnamed = ResultExpressions(rows, plain, windowed=windowed)
    named: dict[str, str] = {}
    for item, name in zip(items, names, strict=True):
        key = unnamed.key(item.expression)
        if key is None:
            continue
        at = item.alias.at if item.alias else item.at
        if key.expression in named:
            hint = "AS_VALUE(key) AS name copies a key into the value"
            first = named[key.expression]
            told = f"The projection contains a key column (`{first}`) more than once, aliased as: {first} and {name}"
            raise Refusal(at, f"group key {first} is selected twice: {told}", hint)
        if AGGREGATE_NAME.fullmatch(name):
            raise Refusal(at, f"a group key cannot be called {name}", "names like A0 are the aggregates'")
        named[key.expression] = name
    missing = [node for value, node in groups if value.text not in named and value.type.kind != "null"]
    if missing:
        told = keys_missing(target, "grouping expression", [print_tree(node) for node in missing])
        raise Refusal(missing[0].at, told, "every group key must also be selected")
    keys: list[GroupKey] = []
    for value, node in groups:
        if value.type.kind == "null":
            raise Refusal(value.at, "NULL cannot be a group key")
        # A bare literal would be read as a position by Spark's GROUP BY.
        constant = isinstance(unwrapped(node), (*CONSTANTS, Sign))
        text = f"CAST({value.text} AS {value.type.spark.upper()})" if constant else value.text
        keys.append(GroupKey(named[value.text], text, value.type.spark))
    return tuple(keys)
