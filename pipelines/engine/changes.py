"""A table's changes as steps of an aggregation: what a row counted for is taken back, what it counts for now is added.

What a row counts for (its group's key, the group keys and the arguments) lies in the store of the group's task, under
the row's own key: `statestore.layouts.local`. A row that stays in its group is one change of the group, with one
result; one that moves changes the old group first. So Kafka Streams does it (KIP-904).

    row k: a=1 → a=2 in group g     g: -1, then +2, one result
    row k: group g → group h        g: -1, a result      h: +2, a result
    row k: deleted                  g: -1, a result
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.engine.merge import LAST, ROW, ROW_STATE
from pipelines.engine.runs import Bools, Ints, Runs
from pipelines.engine.statecodec import StateCodec, record_times
from statestore.layouts.local import local_keys

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

UNDONE, HALF = "__undone", "__half"
_GROUP = "__key"
States = Callable[[pa.BinaryArray], pa.BinaryArray]


def routed(rows: DataFrame, tasks: int) -> DataFrame:
    """Every row for every task, by `__task`: in full for the task of its group, without a group for the others.

    A dead letter goes to one task.
    """
    everywhere = f"CASE WHEN __dead IS NULL THEN sequence(0, {tasks - 1}) ELSE array(0) END"
    mine = f"pmod(hash({_GROUP}), {tasks}) = __task"
    fixed = ("__dead", "__time", "__partition", "__offset", ROW)
    counting = [f"CASE WHEN {mine} THEN `{name}` END AS `{name}`" for name in rows.columns if name not in fixed]
    return rows.selectExpr("*", f"explode({everywhere}) AS __task").selectExpr(*fixed, *counting, "__task")


class Changes:
    """The operator of one plan: `columns` are what a row counts for besides its group's key."""

    def __init__(self, columns: list[str], types: list[pa.DataType]) -> None:
        self._columns = [_GROUP, *columns]
        self._types = [pa.binary(), *types]
        self._codec = StateCodec(self._types)

    def steps(self, live: pa.Table, states: States) -> tuple[pa.Table, pa.Table]:
        """The changes of groups, and the entries of rows to keep.

        `live` are a task's rows in their order, `__key` null where they count for nothing here. The changes have
        columns `__undone`, whether they take back, and `__half`, whether the other half follows, with which they
        have one result. The entries are `__key`, `__time` and `__row_state`.
        """
        rows = live.column(ROW).combine_chunks().cast(pa.binary()).dictionary_encode()
        runs = Runs(rows.indices.to_numpy().astype(np.int64), len(rows.dictionary))
        names = local_keys(rows.dictionary)
        known = states(names)
        _, stored = self._codec.decode(known)
        counted = self._counted(stored, live)
        before, now = _places(runs)
        changes = _changes(counted, before, now)
        times = live.column("__time").combine_chunks()
        found = counted.take(pa.array(changes.place)).append_column("__time", times.take(pa.array(changes.row)))
        for name, flags in ((UNDONE, changes.undone), (HALF, changes.half)):
            found = found.append_column(name, pa.array(flags))
        return found, self._entries(runs, names, known, counted, times)

    def _counted(self, stored: list[pa.Array], live: pa.Table) -> pa.Table:
        """What the stored rows count for, then what the new ones do."""
        new = [
            live.column(name).combine_chunks().cast(kind) for name, kind in zip(self._columns, self._types, strict=True)
        ]
        return pa.table(dict(zip(self._columns, map(_joined, stored, new), strict=True)))

    def _entries(self, runs: Runs, names: pa.Array, known: pa.Array, counted: pa.Table, times: pa.Array) -> pa.Table:
        """The last row of each key. Of one that counts for nothing an empty state, if there was another."""
        last = np.empty(runs.size, dtype=np.int64)
        last[runs.slots] = np.arange(len(times))
        row = last[runs.ends]
        at = record_times(times.take(pa.array(row)))
        columns = counted.take(pa.array(runs.count + row)).combine_chunks().columns
        parts = [column.combine_chunks() for column in columns]
        counts = parts[0].is_valid()
        states = pc.if_else(counts, self._codec.encode(at, parts), pa.scalar(b"", pa.binary()))
        entries = pa.table({_GROUP: names, "__time": at, ROW_STATE: states, LAST: pa.repeat(True, runs.count)})
        return entries.filter(pc.or_(counts, known.is_valid()))


class _Changes:
    """Places in what is counted, rows and flags of changes, in order."""

    def __init__(self, place: Ints, row: Ints, undone: Bools, half: Bools) -> None:
        self.place, self.row, self.undone, self.half = place, row, undone, half


def _places(runs: Runs) -> tuple[Ints, Ints]:
    """For each row the places, stored rows first, of the row before it with its key, and its own."""
    place = runs.spread(np.arange(runs.count), runs.count + np.arange(len(runs.slots)))
    return place[runs.slots - 1], place[runs.slots]


def _changes(counted: pa.Table, before: Ints, now: Ints) -> _Changes:
    groups = counted.column(_GROUP).combine_chunks().dictionary_encode().indices.fill_null(-1).to_numpy()
    old, new = groups[before], groups[now]
    stays = (old >= 0) & (old == new)
    taken = np.stack([old >= 0, new >= 0], axis=1).ravel()
    place = np.stack([before, now], axis=1).ravel()[taken]
    row = np.repeat(np.arange(len(now)), 2)[taken]
    undone = np.tile([True, False], len(now))[taken]
    half = np.stack([stays, np.zeros(len(now), dtype=np.bool_)], axis=1).ravel()[taken]
    return _Changes(place, row, undone, half)


def _joined(stored: pa.Array, new: pa.Array) -> pa.Array:
    return pa.concat_arrays([stored, new])
