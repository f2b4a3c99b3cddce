"""What one attempt of a batch has sent for one task: nothing of it is visible before the task commits.

A row carries up to three things: a state change, an output record, a dead letter. Rows arrive in Arrow batches with
the columns of `SCHEMA`; `emit` tells whether the result topic gets nothing, a value or a tombstone for the row's key.
A row without `state` changes none: a stateless query's, of any key or none, and where every record has a result all
but the last of a key. An empty state (`DELETED`) deletes the entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import compress, islice

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statestore.batches import Order
from statestore.columns import RECORDS
from statestore.deadletter import DeadLetter, dead_letter

EMIT_NOTHING = 0
EMIT_VALUE = 1
EMIT_TOMBSTONE = 2
# No state is empty: each begins with its time.
DELETED = b""

SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("state", pa.binary()),
        ("time_ms", pa.int64()),
        ("emit", pa.int8()),
        ("value", pa.binary()),
        ("dead", pa.string()),
    ]
)


@dataclass
class Staged:
    """One attempt. `closed` once the sender has said that it is complete.

    `order` is the task's stream time after it and how many records of the batch came too late, where it has one.
    `expired` are stored keys that the batch deletes because their windows are out of retention by then; `swept` is the
    segment of which it deletes a part, and the last key of that. `changed` are the keys that it changes, each once, with
    their states. `digest` is the store's after it, None if it is not known.
    """

    batch: int
    attempt: int
    token: int
    order: Order | None = None
    keys: list[bytes] = field(default_factory=list)
    states: list[bytes | None] = field(default_factory=list)
    outputs: list[pa.RecordBatch] = field(default_factory=list)
    dead: list[DeadLetter] = field(default_factory=list)
    expired: list[bytes] = field(default_factory=list)
    swept: tuple[str, bytes] | None = None
    rows: int = 0
    closed: bool = False
    changed: list[tuple[pa.BinaryArray, pa.BinaryArray]] = field(default_factory=list)
    digest: str | None = None
    # The same changes as `keys` and `states`, with their times.
    _columns: list[pa.RecordBatch] = field(default_factory=list)

    def add(self, rows: pa.RecordBatch) -> None:
        """Take the rows of one Arrow batch of `SCHEMA`."""
        self.rows += rows.num_rows
        keys, states, times, emits, values, dead = (rows.column(number) for number in range(6))
        if dead.null_count < len(dead):
            self.dead.extend(dead_letter(text) for text in dead.drop_null().to_pylist())
            live = dead.is_null()
            keys, states, times, emits, values = (c.filter(live) for c in (keys, states, times, emits, values))
        # No batch of changes is empty: the last one's last row is the changelog's.
        if states.null_count < len(states):
            changed = states.is_valid()
            self._change(*(c.filter(changed) if states.null_count else c for c in (keys, states, times)))
        results = pc.not_equal(emits, EMIT_NOTHING)
        if results.true_count:
            columns = [c if results.true_count == len(c) else c.filter(results) for c in (keys, values, times)]
            self.outputs.append(pa.RecordBatch.from_arrays(columns, schema=RECORDS))

    def _change(self, keys: pa.BinaryArray, states: pa.BinaryArray, times: pa.Int64Array) -> None:
        deleted = pc.equal(pc.binary_length(states), 0)
        if deleted.true_count:
            states = pc.if_else(deleted, pa.scalar(None, pa.binary()), states)
        self.keys += keys.to_pylist()
        self.states += states.to_pylist()
        self._columns.append(pa.RecordBatch.from_arrays([keys, states, times], schema=RECORDS))

    def keep(self, live: Callable[[pa.BinaryArray], npt.NDArray[np.bool_]]) -> None:
        """Forget the state changes of keys that have expired by the end of the batch; their results stay."""
        masks = [live(rows.column(0)) for rows in self._columns]
        if all(mask.all() for mask in masks):
            return
        kept = np.concatenate(masks).tolist()
        self.keys, self.states = list(compress(self.keys, kept)), list(compress(self.states, kept))
        self._columns = [rows for rows in self._filtered(kept) if len(rows)]

    def changed_columns(self, distinct: int) -> list[tuple[pa.BinaryArray, pa.BinaryArray]]:
        """The keys that the batch changes and their states, null for a deletion, in pieces. `distinct` is how many they are."""
        pieces = self._columns
        if distinct < len(self.keys):
            # Of a key that comes again, the last state counts.
            last = set({key: row for row, key in enumerate(self.keys)}.values())
            pieces = self._filtered(row in last for row in range(len(self.keys)))
        return [(rows.column(0), rows.column(1)) for rows in pieces]

    def _filtered(self, kept: Iterable[bool]) -> list[pa.RecordBatch]:
        """The columns without the changes that are not kept; a batch may have none left."""
        chosen = iter(kept)
        return [rows.filter(pa.array(islice(chosen, len(rows)), pa.bool_())) for rows in self._columns]

    def changelog(self) -> Iterator[pa.RecordBatch]:
        """The state changes as records whose values begin with their time (`timestamped`), which the changelog leaves out."""
        yield from self._columns
        if self.order is not None and self.expired:
            count = len(self.expired)
            times = pa.repeat(pa.scalar(self.order.stream_time_ms, pa.int64()), count)
            yield pa.RecordBatch.from_arrays(
                [pa.array(self.expired, pa.binary()), pa.nulls(count, pa.binary()), times], schema=RECORDS
            )

    @property
    def key_column(self) -> pa.BinaryArray:
        """`keys` as a column."""
        return pa.concat_arrays([rows.column(0) for rows in self._columns] or [pa.array([], pa.binary())])

    @property
    def changes(self) -> int:
        """How many records `changelog` gives."""
        return len(self.keys) + len(self.expired)
