"""READ and WRITE: the two places where a batch meets the store servers. They run in Spark's Python workers.

A Python worker cannot tell a failure upstream from the end of its input: in both cases the loop just ends. So WRITE
stages and reports; only the driver, which knows whether the whole job succeeded, commits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from pipelines.engine.merge import DROPPED, LAST, MERGED, ROW_STATE, STORED, STREAM_TIME
from pipelines.engine.record_order import NO_TIME, Ordered, RecordOrder
from pipelines.engine.resultlimit import ANY, ResultLimit
from pipelines.engine.statecodec import StateCodec, record_times
from statestore.batches import Order
from statestore.client import Reading, StoreClient, Writing
from statestore.errors import InvariantBroken, Unavailable
from statestore.failpoints import reach
from statestore.staging import SCHEMA

_ROWS_OUT = 20_000
ArrowFunction = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
# Asked in the worker, by each Spark task.
Exchanges = Callable[[], "Exchange"]
Tasked = Callable[[], "Place"]
RESULT_DDL = "task int, attempt bigint, rows bigint, dropped bigint"


@dataclass(frozen=True)
class Place:
    """Which task READ and WRITE serve, and which attempt of it this is."""

    task: int
    attempt: int


@dataclass(frozen=True)
class Exchange:
    """Where the tasks of one batch are served. `sockets[n]` is the socket of the server that owns task n.

    `epoch` is the driver's: a server refuses the Spark tasks of a driver that another has replaced. `after[n]` is the
    batch that task n has to commit before it is read, -1 for none; where it is empty none has to. `results` is how large
    a result may be. `pipeline` is empty only in tests.
    """

    query: str
    epoch: int
    batch: int
    sockets: tuple[str, ...]
    after: tuple[int, ...] = ()
    results: ResultLimit = ANY
    pipeline: str = ""

    def client(self, task: int) -> StoreClient:
        """A connection to the task's server."""
        return StoreClient(self.sockets[task], pipeline=self.pipeline)

    def task_name(self, task: int) -> str:
        """The task's id."""
        return f"{self.query}-{task}"

    def read(self, client: StoreClient, task: int) -> Reading:
        """READ's stream of one task, once it has committed the batch before."""
        after = self.after[task] if self.after else -1
        return client.read(self.task_name(task), epoch=self.epoch, batch=self.batch, after=after)

    def write(self, client: StoreClient, task: int, *, attempt: int, token: int, order: Order | None = None) -> Writing:
        """WRITE's stream of one attempt, at the version that `token` names."""
        name = self.task_name(task)
        return client.write(name, epoch=self.epoch, batch=self.batch, attempt=attempt, token=token, order=order)


def reader(
    exchanges: Exchanges, parts: list[str], types: list[pa.DataType], tasked: Tasked | None = None
) -> ArrowFunction:
    """READ: adds the committed state of each row's key: `__token`, `__old_time` and the stored parts.

    A task that has committed the batch already gets no rows on, so it stages and commits nothing.
    """

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        exchange, task = exchanges(), (tasked or spark_task)().task
        codec = StateCodec(types)
        reading: Reading | None = None
        with ExitStack() as connected:
            for batch in batches:
                if batch.num_rows == 0:
                    continue
                if reading is None:
                    reading = exchange.read(connected.enter_context(exchange.client(task)), task)
                if reading.already:
                    continue
                live = batch.column("__dead").is_null()
                states, token = reading.states(_live_keys(batch, live))
                times, columns = codec.decode(_spread(states, live))
                token_column = pa.repeat(pa.scalar(token, pa.int64()), batch.num_rows)
                yield _with_states(batch, [token_column, times, *columns], parts)
            if reading is not None:
                reading.close()

    return read


def without_states(parts: list[str], types: list[pa.DataType]) -> ArrowFunction:
    """READ where no key has a state. It gives nothing for dead letters."""

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for live in _live(batches):
            yield _with_states(
                live, [pa.nulls(live.num_rows, kind) for kind in (pa.int64(), pa.int64(), *types)], parts
            )

    return read


def _with_states(batch: pa.RecordBatch, states: list[pa.Array], parts: list[str]) -> pa.RecordBatch:
    """The rows with what READ adds: token, time and parts."""
    names = [*batch.schema.names, "__token", "__old_time", *(f"{STORED}{part}" for part in parts)]
    return pa.RecordBatch.from_arrays([*batch.columns, *states], names=names)


def _live(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows that are no dead letters, without empty batches."""
    for batch in batches:
        live = batch.filter(batch.column("__dead").is_null())
        if live.num_rows:
            yield live


def _live_keys(batch: pa.RecordBatch, live: pa.BooleanArray) -> pa.Array:
    keys = batch.column("__key").cast(pa.binary())
    return keys if live.true_count == len(live) else keys.filter(live)


def _spread(states: pa.Array, live: pa.BooleanArray) -> pa.Array:
    """States of the live rows at their places among all rows; a dead letter's row has none."""
    if live.true_count == len(live):
        return states
    places = pc.subtract(pc.cumulative_sum(live.cast(pa.int64())), 1)
    return states.take(pc.if_else(live, places, pa.scalar(None, pa.int64())))


def ordered(exchanges: Exchanges, order: RecordOrder) -> ArrowFunction:
    """READ in record order: takes in all rows of the task, and gives what `RecordOrder` makes of them and the states.

    Every row says the task's token, its stream time after the batch and how many records came too late. If nothing
    else is left there is one row that has neither key nor dead letter, to say just that.
    """

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        exchange, task = exchanges(), task_context().partitionId()
        taken = [batch for batch in batches if batch.num_rows]
        if not taken:
            return
        with exchange.client(task) as client:
            reading = exchange.read(client, task)
            if reading.already:
                reading.close()
                return
            _, token = reading.states(pa.array([], pa.binary()))

            def states(keys: pa.BinaryArray) -> pa.BinaryArray:
                found, now = reading.states(keys)
                if now != token:
                    raise Unavailable("task went on while rows were read", task=exchange.task_name(task))
                return found

            found = order.rows(pa.Table.from_batches(taken), states, reading.stream_time_ms)
            reading.close()
        yield from ordered_columns(found, token)

    return read


def ordered_without_states(order: RecordOrder) -> ArrowFunction:
    """READ in record order where no key has a state and the task has seen no time. It gives nothing for dead letters."""

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        taken = list(_live(batches))
        if taken:
            found = order.rows(pa.Table.from_batches(taken), lambda keys: pa.nulls(len(keys), pa.binary()), NO_TIME)
            yield from ordered_columns(found, token=0)

    return read


def ordered_columns(found: Ordered, token: int) -> Iterator[pa.RecordBatch]:
    """What READ gives in record order: the rows, each with the token and the task's figures."""
    rows = found.rows if found.rows.num_rows else _only_figures(found.rows.schema)
    for name, value in (("__token", token), (STREAM_TIME, found.stream_time_ms), (DROPPED, found.dropped)):
        rows = rows.append_column(name, pa.repeat(pa.scalar(value, pa.int64()), rows.num_rows))
    yield from rows.combine_chunks().to_batches(max_chunksize=_ROWS_OUT)


def _only_figures(schema: pa.Schema) -> pa.Table:
    return pa.table([pa.nulls(1, field.type) for field in schema], schema=schema)


def writer(
    exchanges: Exchanges, parts: list[str], types: list[pa.DataType], tasked: Tasked | None = None
) -> ArrowFunction:
    """WRITE: stages the rows on the task's server and gives one row of `RESULT_DDL`, or none for a task without rows."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        exchange, place = exchanges(), (tasked or spark_task)()
        task, attempt = place.task, place.attempt
        codec = StateCodec(types)
        writing: Writing | None = None
        token, order, dead = 0, None, 0
        with ExitStack() as connected:
            for batch in batches:
                if batch.num_rows == 0:
                    continue
                if writing is None:
                    client = connected.enter_context(exchange.client(task))
                    token = batch.column("__token")[0].as_py()
                    order = _order(batch)
                    writing = exchange.write(client, task, attempt=attempt, token=token, order=order)
                if pc.any(pc.not_equal(batch.column("__token"), token)).as_py():
                    raise InvariantBroken("one task read two versions of its state", task=exchange.task_name(task))
                rows = staged_rows(batch, parts, codec)
                exchange.results.require(rows.column("key"), rows.column("value"), rows.column("emit"))
                writing.add(rows)
                dead += len(batch) - batch.column("__dead").null_count
            if writing is not None:
                staged = writing.close()
                reach("worker.staged")
                yield result(task, attempt, max(0, staged - dead), 0 if order is None else order.dropped)

    return write


def result(task: int, attempt: int, rows: int, dropped: int = 0) -> pa.RecordBatch:
    """One row of `RESULT_DDL`; `rows` are those that are no dead letters.

    They are counted apart, since a batch that runs again meets all its bad records, but no row of a task that has
    committed it.
    """
    figures = [pa.array([figure], pa.int64()) for figure in (attempt, rows, dropped)]
    names = ["task", "attempt", "rows", "dropped"]
    return pa.RecordBatch.from_arrays([pa.array([task], pa.int32()), *figures], names=names)


def _order(batch: pa.RecordBatch) -> Order | None:
    if STREAM_TIME not in batch.schema.names:
        return None
    return Order(batch.column(STREAM_TIME)[0].as_py(), batch.column(DROPPED)[0].as_py())


def staged_rows(batch: pa.RecordBatch, parts: list[str], codec: StateCodec) -> pa.RecordBatch:
    """The rows as `staging.SCHEMA` has them."""
    if LAST in batch.schema.names:
        batch = batch.filter(pc.or_(batch.column("__key").is_valid(), batch.column("__dead").is_valid()))
    times = record_times(batch.column("__time"))
    states = codec.encode(times, [batch.column(f"{MERGED}{part}") for part in parts])
    if LAST in batch.schema.names:
        states = pc.if_else(batch.column(LAST), states, pa.scalar(None, pa.binary()))
    if ROW_STATE in batch.schema.names:
        states = pc.coalesce(batch.column(ROW_STATE).cast(pa.binary()), states)
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


def spark_task() -> Place:
    """The Spark task that runs here."""
    context = task_context()
    return Place(context.partitionId(), context.taskAttemptId())


def task_context() -> TaskContext:
    """Which task of the job runs here."""
    context = TaskContext.get()
    if context is None:
        raise InvariantBroken("exchange runs outside of a Spark task")
    return context
