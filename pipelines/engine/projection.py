"""A batch of a stateless query as one Spark job: decode, filter, project, WRITE. No shuffle, no READ.

Task n is source partition n: a partition is read by one Spark task and in its order, so results keep the order of their
input, per key and per partition. Everything else is as in `batch.py`: rows are staged on the task's store server, and
output, dead letters and position leave in one transaction when the driver says so. Where the worker that decodes a row
can make its result, it does (`project.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.functions import expr

from pipelines.engine.decode import Count, Decoder, Reasons, decoded_ddl, decoder, with_columns
from pipelines.engine.encode import value_bytes
from pipelines.engine.exchange import (
    RESULT_DDL,
    ArrowFunction,
    Exchange,
    Exchanges,
    Tasked,
    result,
    task_context,
)
from pipelines.engine.input import Input, Part
from pipelines.engine.job import Job, drained
from pipelines.engine.merge import DEAD, FAILED, key_bytes
from pipelines.engine.project import Project, project_of
from pipelines.engine.records import Records, partitions
from pipelines.engine.small import SmallBatches
from pipelines.engine.statecodec import record_times
from pipelines.engine.windowed_keys import joined_key
from pipelines.plan import Query
from statestore.client import Writing
from statestore.errors import InvalidConfig, InvariantBroken
from statestore.failpoints import reach
from statestore.staging import SCHEMA

_NO_TIME = "result has no time"


class ProjectionJob(Job):
    """Of a stateless plan: it has no READ. With `project` off the JVM is given every row."""

    def __init__(self, query: Query, *, project: bool = True) -> None:
        super().__init__(query)
        self.projected = project_of(query) if project else None
        self.small = None if self.projected is None else SmallBatches(partial(self._by_task, self.projected), _step)

    def _decoder(self, count: Count, refused: Reasons | None) -> Decoder:
        # Any row may turn out to have a result without a time.
        raw_if_null = () if self.query.timestamp is None else None
        return with_partition(decoder(self.query.source, raw_if_null, count, refused))

    def _by_task(self, projected: Project, part: Part, count: Count) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The results of one part with their task, which is the source partition."""
        for rows in map(projected.results, self._decoder(count, None)(part.records())):
            if rows.num_rows:
                yield rows.column("__partition")[0].as_py(), rows

    def frame(
        self,
        records: Input,
        *,
        count: Count,
        read: ArrowFunction,
        write: ArrowFunction,
        refused: Reasons | None = None,
        result_ddl: str = RESULT_DDL,
    ) -> DataFrame:
        """The whole batch as one frame. Nothing runs yet."""
        decode, projected = self._decoder(count, refused), self.projected
        if projected is not None:

            def written(blocks: Iterable[Records]) -> Iterator[pa.RecordBatch]:
                yield from write(map(projected.results, decode(blocks)))

            return records.decoded(written, result_ddl, shared=True)
        decoded = records.decoded(decode, f"{decoded_ddl(self.query.source)}, __partition int")
        return self.project(decoded).mapInArrow(write, result_ddl)

    def project(self, decoded: DataFrame) -> DataFrame:
        """The results of decoded rows in their order: `__key`, `__value`, `__dead`, `__time`, `__partition`.

        A row whose value is null is a result whose value is null, unless WHERE asks about it. In a table's changelog a
        row that WHERE does not let through deletes what was there, and a row without a key is none.
        """
        if self.query.tables:
            decoded = self._exploded(decoded)
        if self.query.changelog:
            decoded = decoded.where(f"({FAILED}) OR {self._known_key()}")
        elif self.query.where is not None:
            decoded = decoded.where(f"({FAILED}) OR (__error IS NULL AND ({self.query.where}))")
        if self.query.timestamp is not None:
            timeless = f"{self._shown()} AND NOT coalesce({self._time()} >= 0, false)"
            decoded = decoded.withColumn("__error", expr(f"CASE WHEN {timeless} THEN '{_NO_TIME}' ELSE __error END"))
        return decoded.selectExpr(*self._emitted())

    def _exploded(self, decoded: DataFrame) -> DataFrame:
        """A row for each item of the arrays, none without items; a bad record as it is."""
        shown = f"__error IS NULL AND ({self.query.where or 'true'})"
        names = [table.name for table in self.query.tables]
        arrays = [
            f"CASE WHEN {shown} THEN coalesce({table.expression}, CAST(array() AS {table.type})) END AS {table.name}"
            for table in self.query.tables
        ]
        rows = f"explode_outer(arrays_zip({', '.join(names)})) AS __items"
        found = decoded.selectExpr("*", *arrays).selectExpr("*", rows).drop(*names)
        items = [f"__items.{name} AS {name}" for name in names]
        return found.where(f"({FAILED}) OR __items IS NOT NULL").selectExpr("*", *items)

    def _time(self) -> str:
        """A result's time; a tombstone and a bad record keep their own."""
        if self.query.timestamp is None:
            return "ROWTIME"
        return f"CASE WHEN {self._shown()} THEN CAST({self.query.timestamp} AS BIGINT) ELSE ROWTIME END"

    def _shown(self) -> str:
        """Whether a row is a result with a value, of those that are left."""
        if self.query.changelog and self.query.where is not None:
            return f"__error IS NULL AND ({self.query.where})"
        return "__error IS NULL"

    def _known_key(self) -> str:
        keys = [f"`{column.name}` IS NOT NULL" for column in self.query.source.columns if column.key]
        return f"({' OR '.join(keys) or 'true'})"

    def _of_values(self) -> bool:
        """Whether the key is computed from columns of the value."""
        values = [f"`{column.name}`" for column in self.query.source.columns if not column.key]
        return any(name in key.expression for name in values for key in self.query.group_by)

    def exchanged(self, exchanges: Exchanges) -> tuple[ArrowFunction, ArrowFunction]:
        return drained, stager(exchanges, lambda: task_context().taskAttemptId())

    def without_states(self) -> ArrowFunction:
        return drained

    def _emitted(self) -> list[str]:
        """Key, dead letter, task, time and value, which WRITE takes by name."""
        query = self.query
        keyed = f"NOT ({FAILED})"
        if not query.changelog and self._of_values():
            keyed = "__error IS NULL"  # a row without a value has no such key
        key = key_bytes(query, query.group_by)
        if query.keeps_window:
            key = joined_key(key, query.source.window_type)
        return [
            f"CASE WHEN {keyed} THEN {key} END AS __key",
            f"CASE WHEN {self._shown()} THEN {value_bytes(query)} END AS __value",
            f"CASE WHEN {FAILED} THEN {DEAD.format(reason='__error')} END AS __dead",
            f"{self._time()} AS __time",
            "__partition",
        ]


def with_partition(decode: Decoder) -> Decoder:
    """The decoder with the source partition of each row as a last column."""
    return with_columns(decode, {"__partition": partitions})


def _step(exchanges: Exchanges, tasked: Tasked) -> ArrowFunction:
    """WRITE outside of Spark."""
    return stager(exchanges, lambda: tasked().attempt)


def stager(exchanges: Exchanges, attempt: Callable[[], int]) -> ArrowFunction:
    """WRITE: stages rows on their task's server and gives one row of `RESULT_DDL` a task, none for a task without rows.

    Rows of a task lie together. A task that has committed the batch already stages nothing. `attempt` is asked where
    this runs.
    """

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        stage: _Stage | None = None
        for batch in batches:
            if batch.num_rows == 0:
                continue
            task = batch.column("__partition")[0].as_py()
            if stage is None or stage.task != task:
                if stage is not None:
                    yield from stage.close()
                stage = _Stage(exchanges(), task, attempt())
            stage.add(batch)
        if stage is not None:
            yield from stage.close()

    return write


class _Stage:
    """One attempt of one task's rows."""

    def __init__(self, exchange: Exchange, task: int, attempt: int) -> None:
        if task >= len(exchange.sockets):
            raise InvalidConfig(
                "source has more partitions than the query has tasks",
                query=exchange.query,
                partition=task,
                tasks=len(exchange.sockets),
                hint="deploy the query under another name",
            )
        self.task, self._exchange = task, exchange
        self._attempt, self._dead = attempt, 0
        self._client = exchange.client(task)
        self._writing = self._begin()

    def _begin(self) -> Writing | None:
        """The stream to write to, at the version that the task stands at; None if the batch is committed already."""
        reading = self._exchange.read(self._client, self.task)
        if reading.already:
            return None
        _, token = reading.states(pa.array([], pa.binary()))
        reading.close()
        return self._exchange.write(self._client, self.task, attempt=self._attempt, token=token)

    def add(self, rows: pa.RecordBatch) -> None:
        """Stage rows, which must all be of one source partition."""
        if pc.any(pc.not_equal(rows.column("__partition"), self.task)).as_py():
            raise InvariantBroken(
                "rows of two source partitions came at once", task=self._exchange.task_name(self.task)
            )
        if self._writing is not None:
            staged = _staged_rows(rows)
            self._exchange.results.require(staged.column("key"), staged.column("value"))
            self._writing.add(staged)
            self._dead += len(rows) - rows.column("__dead").null_count

    def close(self) -> Iterator[pa.RecordBatch]:
        """End the attempt; gives what the driver may commit."""
        if self._writing is not None:
            rows = self._writing.close()
            reach("worker.staged")
            yield result(self.task, self._attempt, max(0, rows - self._dead))
        self._client.close()


def _staged_rows(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows without state: only their output and their dead letters count."""
    count = rows.num_rows
    return pa.RecordBatch.from_arrays(
        [
            rows.column("__key").cast(pa.binary()),
            pa.nulls(count, pa.binary()),
            record_times(rows.column("__time")),
            pa.repeat(pa.scalar(1, pa.int8()), count),
            rows.column("__value").cast(pa.binary()),
            rows.column("__dead").cast(pa.string()),
        ],
        schema=SCHEMA,
    )
