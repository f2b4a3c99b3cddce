"""The shuffle of combined rows: a worker gives each task's rows as a whole, and the JVM moves bytes.

    combined rows ─ key, dead letter, task ─► of each task a row: its number, its rows as an Arrow stream
                                                          └─ Spark's shuffle ─► columns again

What the JVM would do otherwise is make a row of its own of each row of the columns, find its task, and make columns of
the rows again: a tenth of all CPU with many keys, and as much for compiling the code that does so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipelines.engine.deadletters import dead_letters
from pipelines.engine.decode import Decoder
from pipelines.engine.keybytes import KeyBytes
from pipelines.engine.records import Records
from statestore.partitioner import tasks_of

# What is shuffled, by its first column.
TASK = "__task"
PACKED_DDL = f"{TASK} int, __rows binary"
_PACKED = pa.schema([(TASK, pa.int32()), ("__rows", pa.binary())])


@dataclass(frozen=True)
class Shuffle:
    """How the combined rows of one plan come to its tasks.

    groups: the columns that `keys` makes the key of.
    carried: the columns that are needed behind the shuffle, beside `__key` and `__dead`.
    """

    tasks: int
    groups: tuple[str, ...]
    keys: KeyBytes
    carried: tuple[str, ...]

    def by_task(self, rows: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The rows of each task that has any, in their order, with key and dead letter in front."""
        found = self._keyed(rows)
        are_dead = found.column("__dead").null_count == 0
        # A dead letter has no key: it goes where its own text says, as Spark's hash of both has it.
        tasks = tasks_of(found.column("__dead").cast(pa.binary()) if are_dead else found.column("__key"), self.tasks)
        order = np.argsort(tasks, kind="stable")
        ends = np.cumsum(np.bincount(tasks, minlength=self.tasks))
        found = found.take(pa.array(order))
        for task, (start, end) in enumerate(zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True)):
            if start < end:
                yield task, found.slice(start, end - start)

    def _keyed(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Key, dead letter and what is carried. Combined rows are all dead letters, or none is."""
        if rows.column("__raw").null_count:
            key = self.keys([rows.column(name) for name in self.groups])
            dead = pa.nulls(rows.num_rows, pa.string())
        else:
            key = pa.nulls(rows.num_rows, pa.binary())
            dead = dead_letters(rows.column("__error"), rows.column("__raw"))
        carried = [rows.column(name) for name in self.carried]
        return pa.RecordBatch.from_arrays([key, dead, *carried], names=["__key", "__dead", *self.carried])

    def packed(self, decode: Decoder) -> Decoder:
        """The decoder's combined rows as rows of `PACKED_DDL`."""

        def run(blocks: Iterable[Records]) -> Iterator[pa.RecordBatch]:
            for rows in decode(blocks):
                if rows.num_rows:
                    yield _packed(list(self.by_task(rows)))

        return run


def _packed(by_task: list[tuple[int, pa.RecordBatch]]) -> pa.RecordBatch:
    sink, ends = pa.BufferOutputStream(), [0]
    for _, rows in by_task:
        with pa.ipc.new_stream(sink, rows.schema) as stream:
            stream.write_batch(rows)
        ends.append(sink.tell())
    tasks = pa.array([task for task, _ in by_task], pa.int32())
    places = pa.array(ends, pa.int32()).buffers()[1]
    streams = pa.Array.from_buffers(pa.binary(), len(tasks), [None, places, sink.getvalue()])
    return pa.RecordBatch.from_arrays([tasks, streams], schema=_PACKED)


def unpacked(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of which `Shuffle.packed` made these, where they lie."""
    for batch in batches:
        for rows in batch.column(1):
            yield from pa.ipc.open_stream(rows.as_buffer())
