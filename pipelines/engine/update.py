"""The update of a key over Arrow columns, in one Python worker: what `merge.py` says in SQL, without the JVM's help.

    shuffled rows ─ one a key ─► READ ─ old and new merge, result as JSON ─► WRITE

Spark then runs one function a task where it runs an aggregation, two functions and the projection between them
otherwise, and never sees a row: they are shuffled as columns (`shuffle.py`). Only where every step is sure to give what Spark gives: rows
that `combine.py` combines, results that are JSON objects, expressions that `columnar.py` knows. An average is none: Java
writes some doubles in another way than anybody else does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.engine.arrowtypes import arrow_type
from pipelines.engine.columnar import Columnar, columnar, condition
from pipelines.engine.combine import MERGES, combine_of
from pipelines.engine.jsontext import json_objects
from pipelines.engine.merge import COMBINED, GROUPED, MERGED, PARTIAL, STORED, Part, state_parts
from pipelines.plan import Aggregate, Query
from statestore.sortedrows import last_in_order
from statestore.staging import EMIT_NOTHING, EMIT_TOMBSTONE, EMIT_VALUE

# How large the requests to a store server are. Fewer and larger ones keep both sides waiting for each other.
_ROWS_OUT = 20_000
_SUMS = ("count_all", "count", "sum")


@dataclass(frozen=True)
class Update:
    """How the keys of one plan are updated. `parts` are the state's; `values` says how a row shows what they mean."""

    keys: tuple[str, ...]
    parts: tuple[Part, ...]
    aggregates: tuple[tuple[Aggregate, Part], ...]
    having: Columnar | None
    outputs: tuple[tuple[str, Columnar], ...]

    def columns(self) -> tuple[str, ...]:
        """What is needed of the combined rows beside their keys and dead letters."""
        return "ROWTIME", *(f"{GROUPED}{key}" for key in self.keys), *(f"{COMBINED}{part.name}" for part in self.parts)

    def grouped(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """All rows of a task as one row a key, and one a dead letter: what `MergeSql.combined` gives."""
        taken = [batch for batch in batches if batch.num_rows]
        if not taken:
            return
        found = self._one_a_key(pa.Table.from_batches(taken))
        columns = {"__key": found.column("__key"), "__dead": found.column("__dead"), "__time": found.column("ROWTIME")}
        columns |= {key: found.column(f"{GROUPED}{key}") for key in self.keys}
        for part in self.parts:
            column = found.column(f"{COMBINED}{part.name}")
            columns[f"{PARTIAL}{part.name}"] = column.cast(arrow_type(part.type), safe=False)
        yield from pa.table(columns).combine_chunks().to_batches(max_chunksize=_ROWS_OUT)

    def _one_a_key(self, rows: pa.Table) -> pa.Table:
        """The rows merged, by key: the store looks keys up and writes them in their order, which costs it less."""
        alone = rows.column("__dead").null_count == rows.num_rows
        if alone:
            order = last_in_order(rows.column("__key").cast(pa.large_binary()).combine_chunks())
            if len(order) == rows.num_rows:
                # Where the source's keys are the groups, no key comes from two workers.
                return rows.combine_chunks().take(pa.array(order))
        calls = {"ROWTIME": "max"}
        calls |= {f"{GROUPED}{key}": "first" for key in self.keys}
        calls |= {f"{COMBINED}{part.name}": MERGES[part.operation] for part in self.parts}
        keys = ["__key"] if alone else ["__key", "__dead"]
        found = pa.TableGroupBy(rows, keys, use_threads=False).aggregate(list(calls.items()))
        columns = {key: found.column(key) for key in keys}
        columns |= {name: found.column(f"{name}_{function}") for name, function in calls.items()}
        columns.setdefault("__dead", pa.nulls(found.num_rows, pa.string()))
        return pa.table(columns).sort_by("__key")

    def results(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """What READ gave, as the rows that WRITE takes: what `MergeSql.results` gives."""
        dead, old_time = rows.column("__dead"), rows.column("__old_time")
        merged = {part.name: _merged(part, rows) for part in self.parts}
        shown = None if self.having is None else _true(self._values(rows, merged), self.having)
        emit = pa.repeat(pa.scalar(EMIT_VALUE, pa.int8()), rows.num_rows)
        if shown is not None:
            stored = {part.name: rows.column(f"{STORED}{part.name}") for part in self.parts}
            was = pc.and_(old_time.is_valid(), _true(self._values(rows, stored), self.having))
            emit = pc.if_else(shown, EMIT_VALUE, pc.if_else(was, EMIT_TOMBSTONE, EMIT_NOTHING)).cast(pa.int8())
        values = self._values(rows, merged)
        value = json_objects([(name, found.column(values)) for name, found in self.outputs])
        hidden = dead.is_valid() if shown is None else pc.or_(dead.is_valid(), pc.invert(shown))
        columns = {
            "__key": rows.column("__key"),
            "__dead": dead,
            "__token": rows.column("__token"),
            "__time": pc.max_element_wise(rows.column("__time"), old_time),
            "__emit": emit,
            "__value": pc.if_else(hidden, pa.scalar(None, pa.binary()), value),
            **{f"{MERGED}{name}": column for name, column in merged.items()},
        }
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))

    def _values(self, rows: pa.RecordBatch, parts: dict[str, pa.Array]) -> pa.RecordBatch:
        """The names that HAVING and the outputs use: group keys, and aggregates made of these parts."""
        columns = {name: rows.column(name) for name in self.keys}
        for aggregate, part in self.aggregates:
            column = parts[part.name]
            # Of nothing a sum is ksqlDB's zero.
            columns[aggregate.name] = column.fill_null(0) if aggregate.function == "sum" else column
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _merged(part: Part, rows: pa.RecordBatch) -> pa.Array:
    """Old and new of one part. Where one is null it is the other."""
    old, new = rows.column(f"{STORED}{part.name}"), rows.column(f"{PARTIAL}{part.name}")
    if part.operation in _SUMS:
        return pc.coalesce(pc.add(old, new), new, old)
    smallest = part.operation == "min"
    return (pc.min_element_wise if smallest else pc.max_element_wise)(old, new)


def _true(rows: pa.RecordBatch, condition: Columnar | None) -> pa.BooleanArray:
    assert condition is not None
    return condition.column(rows).fill_null(False)


def update_of(query: Query) -> Update | None:
    """How the plan's keys are updated here; None where Spark does it."""
    if combine_of(query) is None or query.value_format != "json" or not query.wrapped:
        return None
    aggregates = [(aggregate, state_parts(aggregate)) for aggregate in query.aggregates]
    if any(len(parts) != 1 for _, parts in aggregates):
        return None
    types = {key.name: arrow_type(key.type) for key in query.group_by}
    types |= {aggregate.name: arrow_type(aggregate.type) for aggregate in query.aggregates}
    having = None if query.having is None else condition(query.having, types)
    outputs = tuple((output.name, columnar(output.expression, types)) for output in query.outputs)
    if (query.having is not None and having is None) or not outputs:
        return None
    known = tuple((name, found) for name, found in outputs if found is not None)
    if len(known) < len(outputs):
        return None
    return Update(
        keys=tuple(key.name for key in query.group_by),
        parts=tuple(parts[0] for _, parts in aggregates),
        aggregates=tuple((aggregate, parts[0]) for aggregate, parts in aggregates),
        having=having,
        outputs=known,
    )
