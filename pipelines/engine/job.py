"""What the ways to run a plan's batches have in common: one Spark job that stages a batch, or only tries it out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import sub
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import Accumulator
from pyspark.sql import DataFrame, Row

from pipelines.engine.decode import Count, Reasons
from pipelines.engine.exchange import RESULT_DDL, ArrowFunction, Exchange, Exchanges
from pipelines.engine.input import Input, InputOfTurn
from pipelines.engine.resultlimit import ResultLimit
from pipelines.engine.turn import Turn, exchange_of_turn
from pipelines.plan import Query

if TYPE_CHECKING:
    from pipelines.engine.small import SmallBatches


_ARROW_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_LARGE_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True)
class TaskResult:
    """One task's staged attempt: what the driver may commit.

    `rows` are those that are no dead letters; `dropped` counts windows that records came too late for.
    """

    task: int
    attempt: int
    rows: int
    dropped: int


@dataclass(frozen=True)
class StagedBatch:
    """What a successful job has read and staged. `dead_letters` did not decode; `read_bytes` are those of the `values`.

    `values` leaves out records whose value is null. `by_spark` is false where no job was needed.
    """

    records: int
    dead_letters: int
    results: tuple[TaskResult, ...]
    values: int = 0
    read_bytes: int = 0
    by_spark: bool = True


@dataclass(frozen=True)
class Counts:
    """Counters that Spark adds up over the tasks of one job."""

    records: Accumulator[int]
    bad: Accumulator[int]
    values: Accumulator[int]
    read_bytes: Accumulator[int]

    @property
    def so_far(self) -> tuple[int, int, int, int]:
        """What is counted so far."""
        return self.records.value, self.bad.value, self.values.value, self.read_bytes.value

    @classmethod
    def of(cls, records: Input) -> Counts:
        """New ones, for a job over these records."""
        context = records.session.sparkContext
        return cls(*(context.accumulator(0) for _ in range(4)))

    def add(self, records: int, bad: int, values: int, read_bytes: int) -> None:
        """Count one Arrow batch."""
        self.records.add(records)
        self.bad.add(bad)
        self.values.add(values)
        self.read_bytes.add(read_bytes)

    def staged(self, rows: list[Row], before: tuple[int, int, int, int] = (0, 0, 0, 0)) -> StagedBatch:
        """The result of a job, from its rows of `RESULT_DDL`, and from what was counted `before` it."""
        results = tuple(TaskResult(row.task, row.attempt, row.rows, row.dropped) for row in rows)
        records, bad, values, read_bytes = map(sub, self.so_far, before)
        return StagedBatch(records, bad, results, values, read_bytes)


@dataclass(frozen=True)
class Prepared:
    """A job that Spark has analysed, for inputs of one number of ranges."""

    frame: DataFrame
    counts: Counts
    large_rows: bool = False

    def run(self, turn: Turn) -> StagedBatch:
        """Run it for a turn."""
        before = self.counts.so_far
        turn.announce(self.frame.sparkSession.sparkContext)
        # A frame of its own each time: one that has run keeps its plan, the files of its shuffle and so its results.
        return self.counts.staged(collected(self.frame.select("*"), large=self.large_rows), before)


class Job(ABC):
    """The job of one plan. Made once, run for every batch."""

    def __init__(self, query: Query) -> None:
        self.query = query
        # Whether rows of its frame are whole columns.
        self.large_rows = False
        # How small batches are computed without Spark; None where they are not.
        self.small: SmallBatches | None = None
        self._prepared: dict[int, Prepared] = {}

    @abstractmethod
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
        """The whole batch as one frame, READ and WRITE, whose rows are `result_ddl`, in their places."""

    @abstractmethod
    def exchanged(self, exchanges: Exchanges) -> tuple[ArrowFunction, ArrowFunction]:
        """READ and WRITE of a batch with the store servers, whose exchange they ask for when they run."""

    @abstractmethod
    def without_states(self) -> ArrowFunction:
        """READ where no key has a state and no server is asked. It gives nothing for dead letters."""

    def run(self, records: Input, exchange: Exchange, refused: Reasons | None = None) -> StagedBatch:
        """Stage the batch; `refused` become dead letters. Raises what Spark raises; then nothing may be committed."""
        ranges = records.ranges
        if refused or not ranges:
            job, counts = self._job(records, lambda: exchange, refused)
            return counts.staged(collected(job, large=self.large_rows))
        # Tasks of a job that has failed may go on counting: it is not used again.
        prepared = self._prepared.pop(len(ranges), None)
        if prepared is None:
            prepared = Prepared(
                *self._job(InputOfTurn(records.session, records.parts), exchange_of_turn, None), self.large_rows
            )
        staged = prepared.run(Turn(exchange, ranges))
        self._prepared[len(ranges)] = prepared
        return staged

    def _job(self, records: Input, exchanges: Exchanges, refused: Reasons | None) -> tuple[DataFrame, Counts]:
        counts = Counts.of(records)
        read, write = self.exchanged(exchanges)
        return self.frame(records, count=counts.add, read=read, write=write, refused=refused), counts

    def try_out(self, records: Input, exchange: Exchange, refused: Reasons) -> None:
        """Compute everything and stage nothing. Raises what Spark raises."""
        read, _ = self.exchanged(lambda: exchange)
        frame = self.frame(records, count=uncounted, read=read, write=fitting(exchange.results), refused=refused)
        collected(frame, large=self.large_rows)


def collected(frame: DataFrame, *, large: bool) -> list[Row]:
    """Run the frame. With `large` rows the JVM bounds the Arrow batches that it makes of them in bytes.

    Spark reads that setting of the session when a frame runs. One frame of a session runs at a time.
    """
    if not large:
        return frame.collect()
    conf = frame.sparkSession.conf
    before = str(conf.get(_ARROW_BYTES))
    conf.set(_ARROW_BYTES, _LARGE_BYTES)
    try:
        return frame.collect()
    finally:
        conf.set(_ARROW_BYTES, before)


def uncounted(*_counts: int) -> None:
    """Counts nothing: of a trial, or of a plan that is only shown."""


def fitting(results: ResultLimit) -> ArrowFunction:
    """WRITE of a trial: takes every row whose result is not too large, and stages none."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for rows in batches:
            keys, values = (rows.column(name).cast(pa.binary()) for name in ("__key", "__value"))
            results.require(keys, values, rows.column("__emit") if "__emit" in rows.schema.names else None)
            yield from ()

    return write


def drained(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Takes every row and stages none."""
    for _ in batches:
        yield from ()
