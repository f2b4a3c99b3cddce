"""What one attempt of a batch has sent for one task: nothing of it is visible before the task commits.

A row carries up to three things: a state change, an output record, a dead letter. Rows arrive in Arrow batches with
the columns of `SCHEMA`; `emit` tells whether the result topic gets nothing, a value or a tombstone for the row's key.
A row without `state` changes none: a stateless query's, of any key or none, and where every record has a result all
but the last of a key. An empty state (`DELETED`) deletes the entry.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from statestore.batches import Order
from statestore.kafka import Headers, Timed

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


@dataclass(frozen=True)
class DeadLetter:
    """A record that could not be used, with where it came from and why."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: Headers


@dataclass
class Staged:
    """One attempt. `closed` once the sender has said that it is complete.

    `order` is the task's stream time after it and how many records of the batch came too late, where it has one.
    `expired` are stored keys that the batch deletes because their windows are out of retention by then. `digest` is the
    store's after it, None if it is not known.
    """

    batch: int
    attempt: int
    token: int
    order: Order | None = None
    keys: list[bytes] = field(default_factory=list)
    states: list[bytes | None] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    outputs: list[Timed] = field(default_factory=list)
    dead: list[DeadLetter] = field(default_factory=list)
    expired: list[bytes] = field(default_factory=list)
    rows: int = 0
    closed: bool = False
    digest: str | None = None

    def add(self, rows: pa.RecordBatch) -> None:
        """Take the rows of one Arrow batch of `SCHEMA`."""
        self.rows += rows.num_rows
        keys, states, times, emits, values, dead = (rows.column(number) for number in range(6))
        if dead.null_count < len(dead):
            self.dead.extend(_dead_letter(text) for text in dead.drop_null().to_pylist())
            live = dead.is_null()
            keys, states, times, emits, values = (c.filter(live) for c in (keys, states, times, emits, values))
        key_list, time_list = keys.to_pylist(), times.to_pylist()
        if not states.null_count:
            self._change(key_list, states, time_list)
        elif states.null_count < len(states):
            changes = states.is_valid()
            self._change(keys.filter(changes).to_pylist(), states.filter(changes), times.filter(changes).to_pylist())
        self.outputs += [
            (key, value, time)
            for key, value, time, emit in zip(key_list, values.to_pylist(), time_list, emits.to_pylist(), strict=True)
            if emit
        ]

    def _change(self, keys: list[bytes], states: pa.BinaryArray, times: list[int]) -> None:
        deleted = pc.equal(pc.binary_length(states), 0)
        if deleted.true_count:
            states = pc.if_else(deleted, pa.scalar(None, pa.binary()), states)
        self.keys += keys
        self.states += states.to_pylist()
        self.times += times

    def keep(self, is_live: Callable[[bytes], bool]) -> None:
        """Forget the state changes of keys that have expired by the end of the batch; their results stay."""
        kept = [row for row, key in enumerate(self.keys) if is_live(key)]
        if len(kept) < len(self.keys):
            self.keys, self.states = [self.keys[row] for row in kept], [self.states[row] for row in kept]
            self.times = [self.times[row] for row in kept]

    def changelog(self) -> Iterator[Timed]:
        """The state changes as changelog records: the value without its time, which the record carries itself."""
        for key, state, time_ms in zip(self.keys, self.states, self.times, strict=True):
            yield key, None if state is None else state[8:], time_ms
        if self.order is not None:
            yield from ((key, None, self.order.stream_time_ms) for key in self.expired)

    @property
    def changes(self) -> int:
        """How many records `changelog` gives."""
        return len(self.keys) + len(self.expired)


def _dead_letter(text: str) -> DeadLetter:
    fields = json.loads(text)
    headers = [
        ("reason", str(fields["reason"]).encode()),
        ("source-topic", str(fields["topic"]).encode()),
        ("source-partition", str(fields["partition"]).encode()),
        ("source-offset", str(fields["offset"]).encode()),
    ]
    key, value = fields.get("key"), fields.get("value")
    return DeadLetter(
        None if key is None else b64decode(key),
        None if value is None else b64decode(value),
        int(fields["timestamp_ms"]),
        headers,
    )
