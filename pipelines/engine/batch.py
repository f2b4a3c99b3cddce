"""One batch as one Spark job: source records in, one row per staged task out. See the drawing in the design."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import Accumulator
from pyspark.sql import DataFrame
from pyspark.sql.functions import expr

from pipelines.engine.decode import Count, Reasons, arrow_type, decoded_ddl, decoder
from pipelines.engine.exchange import RESULT_DDL, ArrowFunction, Exchange, reader, writer
from pipelines.engine.merge import STORED, MergeSql
from pipelines.engine.records import COLUMNS
from pipelines.plan import Query


@dataclass(frozen=True)
class TaskResult:
    """One task's staged attempt: what the driver may commit. `dropped` counts windows that records came too late for."""

    task: int
    attempt: int
    rows: int
    dropped: int


@dataclass(frozen=True)
class StagedBatch:
    """What a successful job has read and staged. `bad_records` did not decode; `read_bytes` are those of all values."""

    records: int
    bad_records: int
    results: tuple[TaskResult, ...]
    read_bytes: int = 0


@dataclass(frozen=True)
class Counts:
    """Counters that Spark adds up over the tasks of one job."""

    records: Accumulator[int]
    bad: Accumulator[int]
    read_bytes: Accumulator[int]

    def add(self, records: int, bad: int, read_bytes: int) -> None:
        """Count one Arrow batch."""
        self.records.add(records)
        self.bad.add(bad)
        self.read_bytes.add(read_bytes)


class BatchJob:
    """The job of one plan. Made once, run for every batch."""

    def __init__(self, query: Query) -> None:
        self.query = query
        self._sql = MergeSql(query)
        self.types = [arrow_type(part.type) for part in self._sql.parts]

    def _grouped(self, decoded: DataFrame) -> DataFrame:
        key, dead = self._sql.keyed()
        keyed = decoded.where(self._sql.filter()).selectExpr("*", key).selectExpr("*", f"{dead} AS __dead")
        aggregates = self._sql.grouped()
        return keyed.groupBy("__key", "__dead").agg(*(expr(text) for text in aggregates))

    def frame(
        self,
        records: DataFrame,
        *,
        count: Count,
        read: ArrowFunction,
        write: ArrowFunction,
        refused: Reasons | None = None,
    ) -> DataFrame:
        """The whole batch as one frame: decode, aggregate and shuffle, READ, merge, WRITE. Nothing runs yet."""
        # The shuffle's partitions are the tasks: Spark hashes (key, null) as it hashes the key.
        records.sparkSession.conf.set("spark.sql.shuffle.partitions", self.query.tasks)
        decode = decoder(self.query.source, plain_columns(self.query), count, refused)
        decoded = records.selectExpr(*COLUMNS).mapInArrow(decode, decoded_ddl(self.query.source))
        grouped = self._grouped(decoded)
        old = ", ".join(f"`{STORED}{part.name}` {part.type}" for part in self._sql.parts)
        known = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in grouped.schema.fields)
        merged = grouped.mapInArrow(read, f"{known}, __token bigint, __old_time bigint, {old}")
        for columns in self._sql.steps():
            merged = merged.selectExpr(*columns)
        return merged.mapInArrow(write, RESULT_DDL)

    def run(self, records: DataFrame, exchange: Exchange, refused: Reasons | None = None) -> StagedBatch:
        """Stage the batch; `refused` become dead letters. Raises what Spark raises; then nothing may be committed."""
        context = records.sparkSession.sparkContext
        counts = Counts(*(context.accumulator(0) for _ in range(3)))
        names = [part.name for part in self._sql.parts]
        read, write = reader(exchange, names, self.types), writer(exchange, names, self.types)
        return staged(self.frame(records, count=counts.add, read=read, write=write, refused=refused), counts)

    def try_out(self, records: DataFrame, exchange: Exchange, refused: Reasons) -> None:
        """Compute everything and stage nothing. Raises what Spark raises."""
        read = reader(exchange, [part.name for part in self._sql.parts], self.types)
        self.frame(records, count=uncounted, read=read, write=drained, refused=refused).collect()


def uncounted(*_counts: int) -> None:
    """Counts nothing: of a trial, or of a plan that is only shown."""


def drained(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """WRITE of a trial: takes every row and stages none."""
    for _ in batches:
        yield from ()


def staged(frame: DataFrame, counts: Counts) -> StagedBatch:
    """Run the job whose last step is WRITE."""
    results = tuple(TaskResult(row.task, row.attempt, row.rows, row.dropped) for row in frame.collect())
    return StagedBatch(counts.records.value, counts.bad.value, results, counts.read_bytes.value)


def plain_columns(query: Query) -> tuple[str, ...] | None:
    """The group keys' columns if every key is a plain column; None if a null key can come from anything else."""
    names = {f"`{column.name}`": column.name for column in query.source.columns}
    names |= {column.name: column.name for column in query.source.columns}
    plain = [names.get(key.expression) for key in query.group_by]
    return None if None in plain else tuple(name for name in plain if name is not None)
