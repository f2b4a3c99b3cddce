"""Aggregation in record order: one task's rows of a batch, one after the other, without Spark and without Kafka.

    order      partitions merged by the time of their next record, as Kafka Streams picks it; in one by offset
    windows    each row's windows, earliest first; late ones dropped by the task's stream time at that row
    changes    of a table: what the row before counted for is taken back; see `changes.py`
    states     the committed state of every key and window, in one question
    results    after every row, or after the last of each key and window

What comes in are columns that Spark has computed (`inputs`), what goes out are the columns that `MergeSql.steps` begin
with. The stream time is the largest time of any row that was not bad and had a key; a window is closed once it has
come to the window's end and grace. All of it is arithmetic over whole columns.

Windows that overlap much make many rows of a record, more than fit into memory of a batch's. So rows are taken in slices of
records, and what a slice has left in states counts for the next. One slice holds most batches whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.engine.arrowtypes import arrow_type
from pipelines.engine.changes import HALF, UNDONE, Changes
from pipelines.engine.lists import lists
from pipelines.engine.merge import MERGED, ROW, ROW_STATE, STORED, Part, state_parts
from pipelines.engine.runs import Bools, Runs, by_offset, running, squares
from pipelines.engine.statecodec import StateCodec
from pipelines.engine.windowing import assign, store_keys, window_ends
from pipelines.plan import EVERY_RECORD, LATEST, LISTS, Aggregate, Query
from pipelines.sql.names import WINDOW_BOUNDS
from pipelines.sql.types import parse_type

NO_TIME = -1
ARGUMENT = "__a_"
# Of records and windows in one slice.
_PAIRS_MAX = 2_000_000
States = Callable[[pa.BinaryArray], pa.BinaryArray]
_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Ordered:
    """What one batch gives one task: rows, the stream time after it in ms, and how many (record, window) came late."""

    rows: pa.Table
    stream_time_ms: int
    dropped: int


class RecordOrder:
    """The operator of one plan. Made once, used for every batch and task."""

    def __init__(self, query: Query, pairs_max: int = _PAIRS_MAX) -> None:
        self.query = query
        self._slice = None if query.window is None else max(1, pairs_max // query.window.overlap)
        self._parts: list[tuple[Part, Aggregate]] = [(p, a) for a in query.aggregates for p in state_parts(a)]
        self.types = [arrow_type(part.type) for part, _ in self._parts]
        self._codec = StateCodec(self.types)
        self._every = query.emission == EVERY_RECORD
        self._changes = self._of_table() if query.changelog else None

    def _of_table(self) -> Changes:
        keys = {key.name: arrow_type(key.type) for key in self.query.group_by}
        given = [aggregate for aggregate in self.query.aggregates if aggregate.argument is not None]
        arguments = {f"{ARGUMENT}{aggregate.name}": arrow_type(_argument_type(aggregate)) for aggregate in given}
        return Changes([*keys, *arguments], [*keys.values(), *arguments.values()])

    def inputs(self) -> list[str]:
        """Spark SQL select list over decoded rows that have `__key`, `__dead`, `__partition` and `__offset`."""
        keys = [f"{key.expression} AS `{key.name}`" for key in self.query.group_by]
        arguments = [_argument(aggregate) for aggregate in self.query.aggregates if aggregate.argument is not None]
        row = [ROW] if self.query.changelog else []
        return ["__key", "__dead", "ROWTIME AS __time", "__partition", "__offset", *row, *keys, *arguments]

    def ddl(self) -> str:
        """Schema of the rows that go out, as Spark DDL; token, stream time and drops are added by the caller."""
        keys = [f"`{key.name}` {parse_type(key.type).ddl}" for key in self.query.group_by]
        bounds = [f"`{name}` bigint" for name in WINDOW_BOUNDS] if self.query.window is not None else []
        parts = [f"`{prefix}{part.name}` {part.type}" for prefix in (STORED, MERGED) for part, _ in self._parts]
        head = ["__key binary", "__dead string", "__time bigint", "__old_time bigint", "__last boolean"]
        entries = [f"{ROW_STATE} binary"] if self.query.changelog else []
        return ", ".join([*head, *keys, *bounds, *parts, *entries])

    def rows(self, table: pa.Table, states: States, stream_time_ms: int) -> Ordered:
        """Take in a task's rows of one batch, in any order, `__dead` ones among them.

        `states` answers distinct store keys with their committed states, null where there is none. `stream_time_ms` is
        that after the task's batch before, `NO_TIME` before the first.
        """
        live = table.filter(pc.is_null(table.column("__dead")))
        live = live.take(record_order(live)).combine_chunks()
        times: _Ints = live.column("__time").to_numpy()
        observed = np.maximum.accumulate(np.concatenate([[stream_time_ms], times]))
        found, dropped = self._in_slices(live, times, observed[1:], states)
        dead = table.filter(pc.is_valid(table.column("__dead")))
        return Ordered(pa.concat_tables([*found, _filled(dead, found[0].schema)]), int(observed[-1]), dropped)

    def _in_slices(
        self, live: pa.Table, times: _Ints, stream_times: _Ints, states: States
    ) -> tuple[list[pa.Table], int]:
        """Results of rows in their order, and how many came late."""
        size = self._slice or max(1, len(live))
        laid, dropped = _Laid(states), 0
        slices: list[pa.Table] = []
        for begin in range(0, max(1, len(live)), size):
            part = slice(begin, begin + size)
            taken = assign(self.query.window, times[part], stream_times[part])
            rows = live if taken.is_identity else live.slice(begin, size).take(pa.array(taken.row))
            found = self._counted(rows, taken.starts, laid)
            dropped += taken.dropped
            if len(live) <= size:
                return found, dropped
            laid.lay(*self._left(found[0]))
            # Each key has one result in all, so there are to be no more of them on the way.
            slices = [*slices, *found] if self._every else [_whole([*slices, *found], every=False)]
        return [_whole(slices, every=self._every)], dropped

    def _left(self, rows: pa.Table) -> tuple[pa.Array, pa.Array]:
        """The keys of results, and the states in which they leave them."""
        last = rows.filter(rows.column("__last"))
        parts = [last.column(f"{MERGED}{part.name}").combine_chunks() for part, _ in self._parts]
        keys, times = (last.column(name).combine_chunks() for name in ("__key", "__time"))
        return keys, self._codec.encode(times, parts)

    def _counted(self, live: pa.Table, starts: _Ints | None, states: States) -> list[pa.Table]:
        """Results and states of groups; of a table also the entries of its rows."""
        if self._changes is None:
            return [self._aggregated(live, starts, states)]
        changes, entries = self._changes.steps(live, states)
        found = self._aggregated(changes, starts, states)
        found = found.append_column(ROW_STATE, pa.nulls(len(found), pa.binary()))
        return [found, _filled(entries, found.schema)]

    def _aggregated(self, live: pa.Table, starts: _Ints | None, states: States) -> pa.Table:
        """`live` has one row for each record and window, in the order of results."""
        keys = live.column("__key").combine_chunks().cast(pa.binary())
        run_of, firsts = _runs_of(keys, starts)
        names = store_keys(keys.take(firsts), None if starts is None else starts[firsts.to_numpy()])
        runs = Runs(run_of, len(firsts))
        slots = self._slots(live, runs, *self._codec.decode(states(names)))
        last = np.isin(np.arange(runs.size), runs.ends)[runs.slots]
        rows = self._shown(live) if self._every else np.flatnonzero(last)
        before = self._before(live, runs)[rows] if self._every else runs.heads[run_of[rows]]
        columns = {
            "__key": names.take(pa.array(run_of[rows])),
            "__dead": pa.nulls(len(rows), pa.string()),
            "__time": slots["time"].take(pa.array(runs.slots[rows])),
            "__old_time": slots["time"].take(pa.array(before)),
            "__last": pa.array(last[rows]),
            **self._keys(live.take(pa.array(rows)), None if starts is None else starts[rows]),
        }
        for prefix, at in ((STORED, before), (MERGED, runs.slots[rows])):
            columns |= {f"{prefix}{part.name}": slots[part.name].take(pa.array(at)) for part, _ in self._parts}
        return pa.table(columns)

    def _shown(self, live: pa.Table) -> _Ints:
        """The rows that have a result: of the halves of a change the second."""
        if self._changes is None:
            return np.arange(len(live))
        return np.flatnonzero(~_flags(live, HALF))

    def _before(self, live: pa.Table, runs: Runs) -> _Ints:
        """The slot that was before each row, and for the second half of a change before the first."""
        if self._changes is None:
            return runs.slots - 1
        second = np.concatenate([[False], _flags(live, HALF)[:-1]])[: len(live)]
        before: _Ints = runs.slots - 1 - second
        return before

    def _keys(self, live: pa.Table, starts: _Ints | None) -> dict[str, pa.Array]:
        """Group keys, and the bounds of the windows that begin at `starts`."""
        columns = {key.name: live.column(key.name).combine_chunks() for key in self.query.group_by}
        if starts is not None and self.query.window is not None:
            ends = window_ends(starts, self.query.window.size_ms)
            columns |= {name: pa.array(at) for name, at in zip(WINDOW_BOUNDS, (starts, ends), strict=True)}
        return columns

    def _slots(self, live: pa.Table, runs: Runs, old_times: pa.Array, old_parts: list[pa.Array]) -> dict[str, pa.Array]:
        """Time and parts in every slot."""
        slots = {"time": running("max", runs, old_times, live.column("__time").combine_chunks())}
        undone, half = (None if self._changes is None else _flags(live, name) for name in (UNDONE, HALF))
        for (part, aggregate), old in zip(self._parts, old_parts, strict=True):
            rows = None
            if aggregate.argument is not None:
                rows = live.column(f"{ARGUMENT}{aggregate.name}").combine_chunks()
            slots[part.name] = self._after(part, aggregate, runs, old, rows, old_times, slots, undone, half)
        return slots

    def _after(
        self,
        part: Part,
        aggregate: Aggregate,
        runs: Runs,
        old: pa.Array,
        rows: pa.Array | None,
        old_times: pa.Array,
        slots: dict[str, pa.Array],
        undone: Bools | None,
        half: Bools | None,
    ) -> pa.Array:
        """One part in every slot; `slots` has the parts before it. Rows of `undone` are taken back, of `half` not shown."""
        match part.operation:
            case "count" if rows is not None and not pa.types.is_boolean(rows.type):
                return running("count", runs, old, _signed(rows.is_valid(), undone))
            case "count" | "sum":
                return running(part.operation, runs, old, _signed(rows, undone), half=half)
            case "count_all" if undone is not None:
                return running("count_all", runs, old, _signed(pa.repeat(True, len(undone)), undone))
            case "squares":
                sums, counts = (slots[f"{aggregate.name}_{name}"] for name in ("sum", "count"))
                return squares(runs, old, rows, sums=sums, counts=counts, undone=undone)
            case "latest_by_offset" | "earliest_by_offset" as which:
                seen = old_times.is_valid() if aggregate.nulls else None
                return by_offset(runs, old, rows, seen=seen, latest=which == LATEST)
            case operation if operation in LISTS:
                return lists(aggregate, runs, old, rows, every=self._every, undone=undone)
            case operation:
                return running(operation, runs, old, rows)


class _Laid:
    """Committed states, and laid over them those in which slices have left their keys."""

    def __init__(self, committed: States) -> None:
        self._committed = committed
        self._keys = self._states = pa.array([], pa.binary())

    def __call__(self, keys: pa.BinaryArray) -> pa.BinaryArray:
        if not len(self._keys):
            return self._committed(keys)
        place = pc.index_in(keys, value_set=self._keys)
        states = pa.concat_arrays([self._states, self._committed(keys.filter(place.is_null()))])
        # Those that are asked for lie behind the others, in their order.
        asked = pc.add(pc.cumulative_sum(place.is_null().cast(pa.int64())), len(self._keys) - 1)
        return states.take(pc.coalesce(place.cast(pa.int64()), asked))

    def lay(self, keys: pa.BinaryArray, states: pa.BinaryArray) -> None:
        """Take these states for those of the keys, which are distinct."""
        kept = pc.index_in(self._keys, value_set=keys).is_null()
        self._keys = pa.concat_arrays([self._keys.filter(kept), keys])
        self._states = pa.concat_arrays([self._states.filter(kept), states])


def _whole(slices: list[pa.Table], *, every: bool) -> pa.Table:
    """Results of slices as those of one piece: of each key the last, changed from what was before the first, or every one."""
    rows = pa.concat_tables(slices).combine_chunks()
    codes = rows.column("__key").combine_chunks().dictionary_encode().indices.to_numpy()
    lasts = len(codes) - 1 - np.unique(codes[::-1], return_index=True)[1]
    if every:
        return _with_columns(rows, {"__last": pa.array(np.isin(np.arange(len(codes)), lasts))})
    firsts = np.unique(codes, return_index=True)[1]
    in_order = np.argsort(lasts)
    before = [name for name in rows.column_names if name == "__old_time" or name.startswith(STORED)]
    first = rows.select(before).take(pa.array(firsts[in_order]))
    return _with_columns(rows.take(pa.array(lasts[in_order])), {name: first.column(name) for name in before})


def _with_columns(rows: pa.Table, changed: dict[str, pa.Array]) -> pa.Table:
    """The rows with these columns in place of those of their names."""
    for name, column in changed.items():
        rows = rows.set_column(rows.column_names.index(name), name, column)
    return rows


def _filled(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows without a group, dead letters or entries, as rows of the schema: null in what they have not."""
    count = rows.num_rows
    given = {name: rows.column(name) for name in ("__key", "__dead", "__time", ROW_STATE) if name in rows.column_names}
    given["__last"] = pa.array(np.full(count, ROW_STATE in given))
    columns = (given.get(field.name, pa.nulls(count, field.type)) for field in schema)
    return pa.table([column.cast(field.type) for column, field in zip(columns, schema, strict=True)], schema=schema)


def _flags(rows: pa.Table, name: str) -> Bools:
    flags: Bools = rows.column(name).to_numpy()
    return flags


def _signed(rows: pa.Array, undone: Bools | None) -> pa.Array:
    """What each row adds: less than nothing where it is taken back. A flag counts one."""
    if undone is None:
        return rows
    adds = rows.cast(pa.int64()) if pa.types.is_boolean(rows.type) else rows
    return pc.if_else(pa.array(undone), pc.negate(adds), adds)


def _argument_type(aggregate: Aggregate) -> str:
    """The Spark SQL type of what the operator gets."""
    if aggregate.function == "count":
        return "boolean"
    return "string" if aggregate.function in LISTS else aggregate.type


def _argument(aggregate: Aggregate) -> str:
    """What the operator gets of an argument: for COUNT only whether there is a value."""
    if aggregate.function == "count":
        return f"({aggregate.argument}) IS NOT NULL AS `{ARGUMENT}{aggregate.name}`"
    if aggregate.function in LISTS:
        return f"to_json(named_struct('v', {aggregate.argument})) AS `{ARGUMENT}{aggregate.name}`"
    return f"CAST({aggregate.argument} AS {parse_type(aggregate.type).ddl}) AS `{ARGUMENT}{aggregate.name}`"


def record_order(rows: pa.Table) -> pa.Array:
    """The order in which a task takes its rows: of all partitions' next records the earliest, then the lowest partition.

    That is the order of the largest time so far in the row's own partition: a record that is older than its
    predecessor comes right after it.
    """
    partition, offset = rows.column("__partition").to_numpy(), rows.column("__offset").to_numpy()
    times: _Ints = rows.column("__time").to_numpy()
    by_place = np.lexsort((offset, partition))
    placed = partition[by_place]
    changes = np.flatnonzero(np.diff(placed)) + 1 if len(placed) else np.array([], dtype=np.int64)
    head_times = np.empty(len(times), dtype=np.int64)
    for part in np.split(by_place, changes):
        head_times[part] = np.maximum.accumulate(times[part])
    return pa.array(np.lexsort((offset, partition, head_times)))


def _runs_of(keys: pa.Array, starts: _Ints | None) -> tuple[_Ints, pa.Array]:
    """The run of each row, numbered by first appearance of its key, and a row of each run."""
    codes: _Ints = keys.dictionary_encode().indices.to_numpy().astype(np.int64)
    if starts is not None:
        times, place = np.unique(starts, return_inverse=True)
        codes = codes * len(times) + place
    _, firsts, run_of = np.unique(codes, return_index=True, return_inverse=True)
    return run_of.astype(np.int64), pa.array(firsts)
