"""A batch of a stateless query as one Spark job: decode, filter, project, WRITE. No shuffle, no READ.

Task n is source partition n: Spark reads a partition in one task and in its order, so results keep the order of their
input, per key and per partition. Everything else is as in `batch.py`: rows are staged on the task's store server, and
output, dead letters and position leave in one transaction when the driver says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import DataFrame

from pipelines.engine.batch import BatchJob, Counts, StagedBatch, drained, uncounted
from pipelines.engine.decode import Count, Decoder, Reasons, decoded_ddl, decoder
from pipelines.engine.exchange import RESULT_DDL, ArrowFunction, Exchange
from pipelines.engine.merge import DEAD, key_bytes
from pipelines.engine.records import COLUMNS, partitions
from pipelines.plan import Query
from statestore.client import StoreClient, Writing
from statestore.errors import InvalidConfig, InvariantBroken
from statestore.staging import SCHEMA


def job_of(query: Query) -> BatchJob | ProjectionJob:
    """The job of a plan, by whether it keeps state."""
    return ProjectionJob(query) if query.stateless else BatchJob(query)


class ProjectionJob:
    """The job of one stateless plan. Made once, run for every batch."""

    def __init__(self, query: Query) -> None:
        self.query = query

    def frame(
        self,
        records: DataFrame,
        *,
        count: Count,
        write: ArrowFunction,
        refused: Reasons | None = None,
    ) -> DataFrame:
        """The whole batch as one frame. Nothing runs yet."""
        source = self.query.source
        decode = with_partition(decoder(source, (), count, refused))
        ddl = f"{decoded_ddl(source)}, __partition int"
        decoded = records.selectExpr(*COLUMNS).mapInArrow(decode, ddl)
        kept = decoded.where(self._filter()) if self.query.where is not None else decoded
        return kept.selectExpr(*self._emitted()).mapInArrow(write, RESULT_DDL)

    def run(self, records: DataFrame, exchange: Exchange, refused: Reasons | None = None) -> StagedBatch:
        """Stage the batch; `refused` become dead letters. Raises what Spark raises; then nothing may be committed."""
        context = records.sparkSession.sparkContext
        counts = Counts(*(context.accumulator(0) for _ in range(3)))
        rows = self.frame(records, count=counts.add, write=stager(exchange), refused=refused).collect()
        return counts.staged(rows)

    def try_out(self, records: DataFrame, exchange: Exchange, refused: Reasons) -> None:
        """Compute everything and stage nothing. Raises what Spark raises."""
        self.frame(records, count=uncounted, write=drained, refused=refused).collect()

    def _filter(self) -> str:
        return f"__error IS NOT NULL OR ({self.query.where})"

    def _emitted(self) -> list[str]:
        """Key, dead letter, task, time and value, which WRITE takes by name."""
        query = self.query
        key = key_bytes(query, query.group_by) if query.group_by else "CAST(NULL AS BINARY)"
        fields = ", ".join(f"{out.expression} AS `{out.name}`" for out in query.outputs)
        value = f"CAST(to_json(struct({fields}), map('ignoreNullFields', 'false')) AS BINARY)"
        return [
            f"CASE WHEN __error IS NULL THEN {key} END AS __key",
            f"CASE WHEN __error IS NULL THEN {value} END AS __value",
            f"CASE WHEN __error IS NOT NULL THEN {DEAD.format(reason='__error')} END AS __dead",
            "ROWTIME AS __time",
            "__partition",
        ]


def with_partition(decode: Decoder) -> Decoder:
    """The decoder with the source partition of each row as a last column."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for rows in decode(iter([batch])):
                columns = [*rows.columns, partitions(batch)]
                yield pa.RecordBatch.from_arrays(columns, names=[*rows.schema.names, "__partition"])

    return run


def stager(exchange: Exchange) -> ArrowFunction:
    """WRITE: stages the rows on their task's server and gives one row of `RESULT_DDL`, or none without rows.

    A task that has committed the batch already stages nothing.
    """

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        stage: _Stage | None = None
        for batch in batches:
            if batch.num_rows == 0:
                continue
            if stage is None:
                stage = _Stage(exchange, batch.column("__partition")[0].as_py())
            stage.add(batch)
        if stage is not None:
            yield from stage.close()

    return write


class _Stage:
    """One attempt of one task's rows."""

    def __init__(self, exchange: Exchange, task: int) -> None:
        if task >= len(exchange.sockets):
            raise InvalidConfig(
                "source has more partitions than the query has tasks",
                query=exchange.query,
                partition=task,
                tasks=len(exchange.sockets),
                hint="deploy the query under another name",
            )
        context = TaskContext.get()
        if context is None:
            raise InvariantBroken("stage runs outside of a Spark task")
        self._task, self._name = task, exchange.task_name(task)
        self._attempt = context.taskAttemptId()
        self._client = exchange.client(task)
        self._writing = self._begin(self._client, exchange.batch)

    def _begin(self, client: StoreClient, batch: int) -> Writing | None:
        """The stream to write to, at the version that the task stands at; None if the batch is committed already."""
        reading = client.read(self._name, batch)
        if reading.already:
            return None
        _, token = reading.states(pa.array([], pa.binary()))
        reading.close()
        return client.write(self._name, batch=batch, attempt=self._attempt, token=token)

    def add(self, rows: pa.RecordBatch) -> None:
        """Stage rows, which must all be of one source partition."""
        if pc.any(pc.not_equal(rows.column("__partition"), self._task)).as_py():
            raise InvariantBroken("a spark task read two source partitions", task=self._name)
        if self._writing is not None:
            self._writing.add(_staged_rows(rows))

    def close(self) -> Iterator[pa.RecordBatch]:
        """End the attempt; gives what the driver may commit."""
        if self._writing is not None:
            rows = self._writing.close()
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array([self._task], pa.int32()),
                    pa.array([self._attempt], pa.int64()),
                    pa.array([rows], pa.int64()),
                ],
                names=["task", "attempt", "rows"],
            )
        self._client.close()


def _staged_rows(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows without state: only their output and their dead letters count."""
    count = rows.num_rows
    return pa.RecordBatch.from_arrays(
        [
            rows.column("__key").cast(pa.binary()),
            pa.nulls(count, pa.binary()),
            rows.column("__time"),
            pa.repeat(pa.scalar(1, pa.int8()), count),
            rows.column("__value").cast(pa.binary()),
            rows.column("__dead").cast(pa.string()),
        ],
        schema=SCHEMA,
    )
