"""Rows combined in the worker that decoded them: the JVM and the shuffle see one row for each key and part of the input.

    decoded rows ─ WHERE ─┬─ a key ─────── grouped, many blocks at once ─┐
                          └─ bad, no key ── each a row of its own ───────┴─ key, time, parts, error, raw record

Only where every step is sure to give what Spark gives: expressions that `columnar.py` knows, and aggregates whose parts
are the same in any order: counts, sums of whole numbers (they wrap around), smallest and largest whole number or text.
Keys are grouped as values here, and as bytes behind the shuffle, where what is left is merged. A group comes where its first row came.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.engine.arrowtypes import arrow_type
from pipelines.engine.columnar import Columnar, columnar, condition
from pipelines.engine.decode import RAW, RAW_DDL, Decoder
from pipelines.engine.merge import COMBINED, GROUPED, Part, state_parts
from pipelines.engine.records import Records
from pipelines.plan import GroupKey, Query, Source
from pipelines.sql.types import parse_type

KEYS = (pa.int32(), pa.int64(), pa.string())
_WHOLE = (pa.int32(), pa.int64())
# Formats whose key is null only where a part of it is null.
KEY_FORMATS = ("kafka", "json", "delimited")
# Arrow's functions: by the part's operation, and of groups that are grouped again.
_COUNT = "count"
_FUNCTIONS = {"count_all": _COUNT, "count": _COUNT, "sum": "sum", "min": "min", "max": "max"}
_AGAIN = {_COUNT: "sum", "sum": "sum", "min": "min", "max": "max"}
# The same by the part's operation.
MERGES = {operation: _AGAIN[function] for operation, function in _FUNCTIONS.items()}
# What each function takes. Doubles are counted only: the order of additions shows, and Arrow passes over NaN.
_ARGUMENTS = {
    _COUNT: (*KEYS, pa.bool_(), pa.float64()),
    "sum": _WHOLE,
    "min": KEYS,
    "max": KEYS,
}
_DDL = {pa.int32(): "int", pa.int64(): "bigint", pa.string(): "string"}
_ROWTIME, _ERROR, _RAW = "ROWTIME", "__error", "__raw"
_ROWS_OUT = 20_000


@dataclass(frozen=True)
class Column:
    """A column of the combined rows, of type `type`. `function` is Arrow's name of how it is made; a key has none."""

    name: str
    value: Columnar
    function: str
    type: pa.DataType


@dataclass(frozen=True)
class Combine:
    """How rows of one plan are combined.

    Rows are held until they have `rows_bytes` and then grouped: more take memory, fewer make more calls. Groups are held
    until they have `groups_bytes`: with so many there is little to combine.
    """

    where: Columnar | None
    columns: tuple[Column, ...]
    rows_bytes: int = 16 * 1024 * 1024
    groups_bytes: int = 32 * 1024 * 1024

    @property
    def ddl(self) -> str:
        """Schema of the combined rows as Spark DDL."""
        columns = [f"`{column.name}` {_DDL[column.type]}" for column in self.columns]
        return ", ".join([*columns, f"{_ERROR} string", f"{_RAW} {RAW_DDL}"])

    @property
    def needs_raw(self) -> tuple[str, ...]:
        """The columns of which one is null where a key is null: there the decoder has to keep the record."""
        return tuple({name for column in self.keys for name in column.value.names})

    @property
    def keys(self) -> tuple[Column, ...]:
        """What is grouped by."""
        return tuple(column for column in self.columns if not column.function)

    def after(self, decode: Decoder) -> Decoder:
        """The decoder with its rows combined."""

        def run(blocks: Iterable[Records]) -> Iterator[pa.RecordBatch]:
            groups = _Groups(self)
            for rows in decode(blocks):
                grouped, alone = self._split(rows)
                if alone is not None:
                    yield self._singly(rows.filter(alone))
                yield from groups.add(self._columns(rows if grouped is None else rows.filter(grouped)))
            yield from groups.rest()

        return run

    def _split(self, rows: pa.RecordBatch) -> tuple[pa.BooleanArray | None, pa.BooleanArray | None]:
        """Which rows are grouped (None: all), and which are dead letters, each by itself (None: none)."""
        good = rows.column(_ERROR).is_null()
        taken = good
        if self.where is not None:
            # Where it is null it is not true. A bad record has no values to ask about.
            taken = pc.and_(good, pc.coalesce(self.where.column(rows), pa.scalar(False)))
        grouped = taken
        for column in self.keys:
            grouped = pc.and_(grouped, column.value.column(rows).is_valid())
        if grouped.true_count == len(grouped):
            return None, None
        alone = pc.or_(pc.invert(good), pc.and_not(taken, grouped))
        return grouped, alone if alone.true_count else None

    def _columns(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows' values under the columns' names."""
        arrays = [column.value.column(rows) for column in self.columns]
        return pa.RecordBatch.from_arrays(arrays, names=[column.name for column in self.columns])

    def _singly(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Each row as a group of its own, with its error and its record."""
        values = self._columns(rows)
        arrays = [
            (values.column(column.name).is_valid() if column.function == _COUNT else values.column(column.name)).cast(
                column.type
            )
            for column in self.columns
        ]
        return self._rows(arrays, rows.column(_ERROR), rows.column(_RAW))

    def grouped(self, groups: pa.Table) -> Iterator[pa.RecordBatch]:
        """Groups as combined rows."""
        for batch in groups.combine_chunks().to_batches(max_chunksize=_ROWS_OUT):
            error, raw = pa.nulls(batch.num_rows, pa.string()), pa.nulls(batch.num_rows, RAW)
            yield self._rows([batch.column(column.name) for column in self.columns], error, raw)

    def _rows(self, arrays: list[pa.Array], error: pa.Array, raw: pa.Array) -> pa.RecordBatch:
        names = [column.name for column in self.columns]
        return pa.RecordBatch.from_arrays([*arrays, error, raw], names=[*names, _ERROR, _RAW])


class _Groups:
    """The groups of one part of the input, in the order of their first rows."""

    def __init__(self, combine: Combine) -> None:
        self._combine = combine
        self._rows: list[pa.RecordBatch] = []
        self._rows_bytes = 0
        self._groups: list[pa.Table] = []
        self._merged_bytes = 0

    def add(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Take rows in; gives those groups that are too many to be held."""
        if rows.num_rows:
            self._rows.append(rows)
            self._rows_bytes += rows.nbytes
        if self._rows_bytes < self._combine.rows_bytes:
            return
        self._group_rows()
        # Merged when they are twice as many as the last time: so each is grouped again about once.
        if _bytes(self._groups) > max(2 * self._merged_bytes, self._combine.groups_bytes):
            self._merge()
            if self._merged_bytes > self._combine.groups_bytes:
                yield from self.rest()

    def rest(self) -> Iterator[pa.RecordBatch]:
        """All that is left."""
        self._group_rows()
        if self._groups:
            self._merge()
            yield from self._combine.grouped(self._groups[0])
        self._groups, self._merged_bytes = [], 0

    def _group_rows(self) -> None:
        if self._rows:
            rows = pa.Table.from_batches(self._rows)
            self._groups.append(self._by_key(rows, {column.name: column.function for column in self._combine.columns}))
        self._rows, self._rows_bytes = [], 0

    def _merge(self) -> None:
        if len(self._groups) > 1:
            again = {column.name: _AGAIN.get(column.function, "") for column in self._combine.columns}
            self._groups = [self._by_key(pa.concat_tables(self._groups), again)]
        self._merged_bytes = _bytes(self._groups)

    def _by_key(self, rows: pa.Table, functions: dict[str, str]) -> pa.Table:
        """One row a key, under the same names. One thread, so that groups stay in order."""
        keys = [name for name, function in functions.items() if not function]
        calls = [(name, function) for name, function in functions.items() if function]
        found = pa.TableGroupBy(rows, keys, use_threads=False).aggregate(calls)
        made = {name: f"{name}_{function}" if function else name for name, function in functions.items()}
        return pa.table({column.name: found.column(made[column.name]) for column in self._combine.columns})


def _bytes(tables: Sequence[pa.Table]) -> int:
    return sum(table.nbytes for table in tables)


def combine_of(query: Query) -> Combine | None:
    """How the plan's rows are combined; None where Spark takes the rows as they are."""
    types = expression_types(query.source)
    where = None if query.where is None else condition(query.where, types)
    if (query.where is not None and where is None) or query.key_format not in KEY_FORMATS:
        return None
    parts = [(part, aggregate.argument) for aggregate in query.aggregates for part in state_parts(aggregate)]
    found = [
        *(group_column(key, types) for key in query.group_by),
        Column(_ROWTIME, Columnar(pa.int64(), lambda rows: rows.column(_ROWTIME)), "max", pa.int64()),
        *(_part(part, argument, types) for part, argument in parts),
    ]
    columns = tuple(column for column in found if column is not None)
    return Combine(where, columns) if len(columns) == len(found) else None


def expression_types(source: Source) -> dict[str, pa.DataType]:
    """The columns of decoded rows that expressions may name."""
    names = {column.name: arrow_type(column.type) for column in source.columns} | {_ROWTIME: pa.int64()}
    return {name: kind for name, kind in names.items() if kind in _ARGUMENTS[_COUNT]}


def group_column(key: GroupKey, types: dict[str, pa.DataType]) -> Column | None:
    """The column of a part of a key; None where Spark computes it."""
    found = columnar(key.expression, types)
    if found is None or _DDL.get(found.type) != parse_type(key.type).ddl:
        return None
    return Column(f"{GROUPED}{key.name}", found, "", found.type)


def _part(part: Part, argument: str | None, types: dict[str, pa.DataType]) -> Column | None:
    name, function = f"{COMBINED}{part.name}", _FUNCTIONS[part.operation]
    if argument is None:
        # Counting every row is counting what is never null.
        return Column(name, Columnar(pa.int64(), lambda rows: rows.column(_ROWTIME)), function, pa.int64())
    found = columnar(argument, types)
    if found is None or found.type not in _ARGUMENTS[function]:
        return None
    kind = found.type if function in ("min", "max") else pa.int64()
    if function in ("min", "max") and _DDL[kind] != part.type:
        return None
    return Column(name, found, function, kind)
