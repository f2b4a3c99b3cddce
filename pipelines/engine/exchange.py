"""READ and WRITE: the two places where a batch meets the store servers. They run in Spark's Python workers.

A Python worker cannot tell a failure upstream from the end of its input: in both cases the loop just ends. So WRITE
stages and reports; only the driver, which knows whether the whole job succeeded, commits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from pipelines.engine.merge import STORED
from pipelines.engine.statecodec import StateCodec
from statestore.client import Reading, StoreClient, Writing
from statestore.errors import InvariantBroken
from statestore.staging import SCHEMA

ArrowFunction = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
RESULT_DDL = "task int, attempt bigint, rows bigint"


@dataclass(frozen=True)
class Exchange:
    """Where the tasks of one batch are served. `sockets[n]` is the socket of the server that owns task n."""

    query: str
    batch: int
    sockets: tuple[str, ...]

    def client(self, task: int) -> StoreClient:
        """A connection to the task's server."""
        return StoreClient(self.sockets[task])

    def task_name(self, task: int) -> str:
        """The task's id."""
        return f"{self.query}-{task}"


def reader(exchange: Exchange, parts: list[str], types: list[pa.DataType]) -> ArrowFunction:
    """READ: adds the committed state of each row's key: `__token`, `__old_time` and the stored parts.

    A task that has committed the batch already gets no rows on, so it stages and commits nothing.
    """

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = _context().partitionId()
        codec = StateCodec(types)
        reading: Reading | None = None
        with exchange.client(task) as client:
            for batch in batches:
                if batch.num_rows == 0:
                    continue
                if reading is None:
                    reading = client.read(exchange.task_name(task), exchange.batch)
                if reading.already:
                    continue
                live = batch.column("__dead").is_null()
                states, token = reading.states(_live_keys(batch, live))
                times, columns = codec.decode(_spread(states, live))
                token_column = pa.repeat(pa.scalar(token, pa.int64()), batch.num_rows)
                yield pa.RecordBatch.from_arrays(
                    [*batch.columns, token_column, times, *columns],
                    names=[*batch.schema.names, "__token", "__old_time", *(f"{STORED}{part}" for part in parts)],
                )
            if reading is not None:
                reading.close()

    return read


def _live_keys(batch: pa.RecordBatch, live: pa.BooleanArray) -> pa.Array:
    keys = batch.column("__key").cast(pa.binary())
    return keys if live.true_count == len(live) else keys.filter(live)


def _spread(states: pa.Array, live: pa.BooleanArray) -> pa.Array:
    """States of the live rows at their places among all rows; a dead letter's row has none."""
    if live.true_count == len(live):
        return states
    places = pc.subtract(pc.cumulative_sum(live.cast(pa.int64())), 1)
    return states.take(pc.if_else(live, places, pa.scalar(None, pa.int64())))


def writer(exchange: Exchange, types: list[pa.DataType]) -> ArrowFunction:
    """WRITE: stages the rows on the task's server and gives one row of `RESULT_DDL`, or none for a task without rows."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = _context()
        task, attempt = context.partitionId(), context.taskAttemptId()
        codec = StateCodec(types)
        writing: Writing | None = None
        token = 0
        with exchange.client(task) as client:
            for batch in batches:
                if batch.num_rows == 0:
                    continue
                if writing is None:
                    token = batch.column("__token")[0].as_py()
                    name = exchange.task_name(task)
                    writing = client.write(name, batch=exchange.batch, attempt=attempt, token=token)
                if pc.any(pc.not_equal(batch.column("__token"), token)).as_py():
                    raise InvariantBroken("one task read two versions of its state", task=exchange.task_name(task))
                writing.add(_staged_rows(batch, codec))
            if writing is not None:
                rows = writing.close()
                yield pa.RecordBatch.from_arrays(
                    [pa.array([task], pa.int32()), pa.array([attempt], pa.int64()), pa.array([rows], pa.int64())],
                    names=["task", "attempt", "rows"],
                )

    return write


def _staged_rows(batch: pa.RecordBatch, codec: StateCodec) -> pa.RecordBatch:
    times = batch.column("__time")
    states = codec.encode(times, batch.columns[6:])
    return pa.RecordBatch.from_arrays(
        [
            batch.column("__key").cast(pa.binary()),
            states,
            times,
            batch.column("__emit"),
            batch.column("__value").cast(pa.binary()),
            batch.column("__dead").cast(pa.string()),
        ],
        schema=SCHEMA,
    )


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise InvariantBroken("exchange runs outside of a Spark task")
    return context
