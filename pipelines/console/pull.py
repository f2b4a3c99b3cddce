"""Pull queries: SELECT from a table's store, by key, by range, or all of it.

Conditions on the key narrow what is read: `=`, IN, BETWEEN and comparisons with literals, joined by AND. Every
condition is checked again on the rows, so a range may be read too wide and never too narrow. What needs Spark's
expressions (a result column that is computed from aggregates, HAVING, anything else than `column operator literal`) is
not answered yet, and says so.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import islice, product
from math import prod
from typing import Any, Protocol

from pipelines.console.values import Plain, literal
from pipelines.engine.values import fitted
from pipelines.kafka_format import encode
from pipelines.lookup import stored_keys
from pipelines.plan import Column as PlanColumn
from pipelines.plan import GroupKey, Query
from pipelines.query import Row, column_of
from pipelines.sql.catalogue import Relation
from pipelines.sql.error import Refusal, nearest
from pipelines.sql.names import WINDOW_BOUNDS
from pipelines.sql.nodes import Between, Binary, Column, Connective, In, IsNull, Node, unwrapped
from pipelines.sql.tree import AllColumns, Item, Select
from pipelines.sql.types import parse_type
from statestore.store import Isolation

_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "<>": "<>"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PLAIN = re.compile(r"`(A[0-9]+)`")
_LIMITS = {"int": 2**31, "bigint": 2**63}
# More keys than this are found faster by one scan.
LOOKUPS_MAX = 1_000
Test = Callable[[Any], bool]
Bounds = tuple[bytes | None, bytes | None]


class Store(Protocol):
    """What a pull query reads: `pipelines.query.StoreReader`."""

    def get(self, key: bytes, isolation: Isolation) -> Iterator[Row]:
        """The entry of one key, if there is one."""

    def scan(self, lower: bytes | None, upper: bytes | None, isolation: Isolation) -> Iterator[Row]:
        """Entries between two keys, both included."""


@dataclass(frozen=True)
class Condition:
    """`column` passes `test`. `values` are those that may pass if there are few; else `low` and `high` bound them."""

    column: str
    test: Test
    values: tuple[Plain, ...] | None = None
    low: Plain = None
    high: Plain = None


@dataclass(frozen=True)
class Pull:
    """A planned pull query: result names with the columns they show, and what to read."""

    query: Query
    names: tuple[str, ...]
    columns: tuple[str, ...]
    conditions: tuple[Condition, ...]
    limit: int | None

    def rows(self, store: Store, isolation: Isolation) -> Iterator[tuple[Any, ...]]:
        """The answer, in the order of the store's tasks and keys."""
        return islice(self._all(store, isolation), self.limit)

    def _all(self, store: Store, isolation: Isolation) -> Iterator[tuple[Any, ...]]:
        shown = _shown(self.query)
        for row in self._read(store, isolation):
            values = {**row.key, **{name: row.value[column] for name, column in shown.items()}}
            if all(values[c.column] is not None and c.test(values[c.column]) for c in self.conditions):
                yield tuple(values[column] for column in self.columns)

    def _read(self, store: Store, isolation: Isolation) -> Iterator[Row]:
        keys = self.keys()
        if keys is not None:
            for key in keys:
                yield from store.get(key, isolation)
            return
        for low, high in self.ranges():
            yield from store.scan(low, high, isolation)

    def keys(self) -> list[bytes] | None:
        """The keys to look up, if the conditions name them."""
        given = {c.column: c.values for c in reversed(self.conditions) if c.values is not None}
        keys = self.query.group_by
        if any(key.name not in given for key in keys):
            return None
        fitting = [list(dict.fromkeys(_fitting(key, given[key.name]))) for key in keys]
        if prod(map(len, fitting)) > LOOKUPS_MAX:
            return None
        return stored_keys(self.query, list(product(*fitting)))

    def ranges(self) -> list[Bounds]:
        """Ranges of key bytes that hold every entry that may pass; negative numbers are behind all others in bytes."""
        key = self.query.group_by[0]
        own = [c for c in self.conditions if c.column == key.name]
        if len(self.query.group_by) > 1 or self.query.key_format != "kafka" or key.type == "double" or not own:
            return [(None, None)]
        lows = [c.low for c in own if c.low is not None]
        highs = [c.high for c in own if c.high is not None]
        if key.type == "string":
            low, high = max(map(str, lows), default=None), min(map(str, highs), default=None)
            return [(None if low is None else low.encode(), None if high is None else high.encode())]
        limit = _LIMITS[key.type]
        low_n = max([-limit, *(int(n) // 1 for n in lows if not isinstance(n, str | bool))])
        high_n = min([limit - 1, *(int(n) for n in highs if not isinstance(n, str | bool))])
        parts = [(max(low_n, 0), high_n), (low_n, min(high_n, -1))]
        return [(encode(low, key.type), encode(high, key.type)) for low, high in parts if low <= high]


def plan_pull(select: Select, relation: Relation, query: Query) -> Pull:
    """The pull query over the table that `query` fills. Refuses what has to be computed."""
    for part, clause in (
        (select.group_by, "GROUP BY"),
        (select.partition_by, "PARTITION BY"),
        (select.window, "WINDOW"),
    ):
        if part is not None:
            raise Refusal(part.at, f"a pull query has no {clause}", "add EMIT CHANGES for a continuous query")
    if select.having is not None or query.having is not None:
        raise Refusal(
            select.at, "a table with HAVING cannot be pulled from yet", f"read its topic {query.output_topic}"
        )
    alias = (select.source.alias or select.source.name).text
    known = _columns(relation, query)
    names, columns = _items(select, alias, tuple(known), _shown(query), _keys(query))
    conditions: list[Condition] = []
    for node in _conjuncts(select.where):
        condition = _condition(node, alias, known)
        if condition.column not in known:
            raise Refusal(node.at, f"unknown column {condition.column}", nearest(condition.column, known))
        if condition.column not in columns:
            _require_plain(condition.column, node.at, query)
        if not isinstance(node, IsNull):
            _require_comparable(condition, known[condition.column].type, node.at)
        conditions.append(condition)
    return Pull(query, names, columns, tuple(conditions), select.limit)


def _columns(relation: Relation, query: Query) -> dict[str, PlanColumn]:
    """What can be named: the table's columns, and behind its key the bounds of its windows."""
    bounds = [PlanColumn(name, name, "bigint", key=True) for name in (WINDOW_BOUNDS if query.window else ())]
    keys = [column for column in relation.source.columns if column.key]
    values = [column for column in relation.source.columns if not column.key]
    return {column.name: column for column in (*keys, *bounds, *values)}


def _keys(query: Query) -> set[str]:
    """Columns that come from a stored key."""
    return {key.name for key in query.group_by} | set(WINDOW_BOUNDS if query.window else ())


def _shown(query: Query) -> dict[str, str]:
    """Result columns that are an aggregate as it is, with the aggregate's name in a `Row`."""
    by_name = {aggregate.name: column_of(aggregate, query) for aggregate in query.aggregates}
    plain = {out.name: _PLAIN.fullmatch(out.expression) for out in query.outputs}
    return {name: by_name[match.group(1)] for name, match in plain.items() if match and match.group(1) in by_name}


def _require_plain(name: str, at: int, query: Query) -> None:
    if name not in _shown(query) and name not in _keys(query):
        hint = f"read the table's topic {query.output_topic} for it"
        raise Refusal(at, f"column {name} is computed from aggregates and cannot be pulled yet", hint)


def _items(
    select: Select, alias: str, known: tuple[str, ...], shown: dict[str, str], keys: set[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names and columns of the answer. `*` is every column that needs no computing."""
    names: list[str] = []
    columns: list[str] = []
    for item in select.items:
        if isinstance(item, AllColumns):
            columns += [name for name in known if name in shown or name in keys]
            names += [name for name in known if name in shown or name in keys]
            continue
        name = _column_name(item.expression, alias)
        if name not in known:
            raise Refusal(item.at, f"unknown column {name}", nearest(name, known))
        if name not in shown and name not in keys:
            raise Refusal(item.at, f"column {name} is computed from aggregates and cannot be pulled yet")
        columns.append(name)
        names.append(_alias(item, name))
    return tuple(names), tuple(columns)


def _alias(item: Item, name: str) -> str:
    return item.alias.text if item.alias else name


def _column_name(node: Node, alias: str) -> str:
    bare = unwrapped(node)
    if not isinstance(bare, Column):
        raise Refusal(node.at, "only columns can be pulled yet", "name a column of the table")
    if bare.source is not None and bare.source.text != alias:
        raise Refusal(node.at, f"{bare.source.text} is not a source of this query", f"the only source here is {alias}")
    return bare.name.text


def _conjuncts(node: Node | None) -> Iterator[Node]:
    if node is None:
        return
    bare = unwrapped(node)
    if isinstance(bare, Connective) and bare.word == "AND":
        for operand in bare.operands:
            yield from _conjuncts(operand)
        return
    yield bare


def _condition(node: Node, alias: str, known: dict[str, PlanColumn]) -> Condition:
    def operand(node: Node, column: str) -> Any:
        return _literal(node, column, known[column].type if column in known else "")

    match node:
        case Binary(operator=sign, left=left, right=right) if sign in _OPERATORS:
            if not isinstance(unwrapped(left), Column):
                left, right, sign = right, left, _TURNED[sign]
            column = _column_name(left, alias)
            return _comparison(column, sign, operand(right, column))
        case Between(negated=False):
            column = _column_name(node.operand, alias)
            low, high = operand(node.low, column), operand(node.high, column)
            return Condition(column, lambda v: bool(low <= v <= high), None, low, high)
        case In(negated=False):
            column = _column_name(node.operand, alias)
            values = tuple(operand(item, column) for item in node.items)
            return Condition(column, lambda v: v in values, values)
        case IsNull(negated=True):
            return Condition(_column_name(node.operand, alias), lambda _: True)
    hint = "a pull query takes: column = < > BETWEEN IN literals, joined by AND"
    raise Refusal(node.at, "the condition cannot be pulled by yet", hint)


def _comparison(column: str, sign: str, value: Any) -> Condition:
    test = _OPERATORS[sign]
    return Condition(
        column,
        lambda found: test(found, value),
        (value,) if sign == "=" else None,
        value if sign in (">", ">=", "=") else None,
        value if sign in ("<", "<=", "=") else None,
    )


def _literal(node: Node, column: str, type_: str) -> Any:
    """The literal that a column of the type is compared with.

    The bounds of a window may be written as a time, in UTC if unsaid.
    """
    value = literal(node)
    if value is None:
        raise Refusal(node.at, "a comparison with NULL is never true", "use IS NOT NULL")
    if column not in WINDOW_BOUNDS or not isinstance(value, str):
        return _comparable(value, type_, node.at)
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        raise Refusal(node.at, f"'{value[:50]}' is no time", "write '2024-02-29T12:00:00', or milliseconds") from None
    return ((time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH) // timedelta(milliseconds=1)


def _comparable(value: Plain, type_: str, at: int) -> Plain:
    """A number as values of the type are compared with it: doubles with the double next to it, all others exactly.

    One that is written with an exponent is a double, and is for a DECIMAL the number that its digits say.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return value
    if isinstance(value, float):
        return Decimal(repr(value)) if type_.startswith("decimal") else value
    if type_ != "double":
        return value
    number = float(Decimal(value))
    if math.isinf(number):
        raise Refusal(at, f"{str(value)[:50]} is too large for a double")
    return number


def _require_comparable(condition: Condition, type_: str, at: int) -> None:
    parsed = parse_type(type_)
    if parsed.is_nested or parsed.kind == "bytes":
        raise Refusal(at, f"cannot compare {parsed.sql} by a pull query yet", "only IS NOT NULL can be asked of it")
    kind = {"string": str, "boolean": bool}.get(type_, int)
    for value in (*(condition.values or ()), condition.low, condition.high):
        is_number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
        fits = is_number if kind is int else isinstance(value, kind)
        if value is not None and not fits:
            raise Refusal(
                at, f"cannot compare {type_} with {type(value).__name__}", "use a literal of the column's type"
            )


def _fitting(key: GroupKey, values: Iterable[Plain]) -> Iterator[Any]:
    """The values as the key's type has them, without those that no key can equal."""
    type_ = parse_type(key.type)
    for value in values:
        try:
            yield fitted(value, type_)
        except (ValueError, ArithmeticError):
            continue
