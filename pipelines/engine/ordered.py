"""A batch in record order as one Spark job: decode, filter, shuffle the rows themselves, READ in order, WRITE.

Nothing is aggregated before the shuffle: a window may close, and a result is due, at any row. Each task takes all of
its rows of the batch into one Arrow table. The partition after the shuffle is the task, as in `batch.py`.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from pipelines.engine.batch import Counts, StagedBatch, drained, plain_columns, staged, uncounted
from pipelines.engine.decode import Count, Reasons, decoded_ddl, decoder, with_columns
from pipelines.engine.exchange import RESULT_DDL, ArrowFunction, Exchange, ordered, writer
from pipelines.engine.merge import DROPPED, STREAM_TIME, MergeSql
from pipelines.engine.record_order import RecordOrder
from pipelines.engine.records import COLUMNS, offsets, partitions
from pipelines.plan import Query


class OrderedJob:
    """The job of one plan. Made once, run for every batch."""

    def __init__(self, query: Query) -> None:
        self.query = query
        self.order = RecordOrder(query)
        self._sql = MergeSql(query)

    def inputs(self, records: DataFrame, *, count: Count, refused: Reasons | None = None) -> DataFrame:
        """Source records as the columns that `RecordOrder` takes, dead letters among them; not shuffled yet."""
        source = self.query.source
        place = {"__partition": partitions, "__offset": offsets}
        decode = with_columns(decoder(source, plain_columns(self.query), count, refused), place)
        ddl = f"{decoded_ddl(source)}, __partition int, __offset bigint"
        decoded = records.selectExpr(*COLUMNS).mapInArrow(decode, ddl)
        key, dead = self._sql.keyed()
        keyed = decoded.where(self._sql.filter()).selectExpr("*", key).selectExpr("*", f"{dead} AS __dead")
        return keyed.selectExpr(*self.order.inputs())

    def results(self, rows: DataFrame) -> DataFrame:
        """What `RecordOrder` gives, with token and figures, as the rows that WRITE takes."""
        for columns in self._sql.steps():
            rows = rows.selectExpr(*columns)
        return rows

    def frame(
        self,
        records: DataFrame,
        *,
        count: Count,
        read: ArrowFunction,
        write: ArrowFunction,
        refused: Reasons | None = None,
    ) -> DataFrame:
        """The whole batch as one frame. Nothing runs yet."""
        # Spark hashes (key, null) as it hashes the key, and a dead letter, which has no key, by itself.
        shuffled = self.inputs(records, count=count, refused=refused).repartition(self.query.tasks, "__key", "__dead")
        ddl = f"{self.order.ddl()}, __token bigint, {STREAM_TIME} bigint, {DROPPED} bigint"
        return self.results(shuffled.mapInArrow(read, ddl)).mapInArrow(write, RESULT_DDL)

    def run(self, records: DataFrame, exchange: Exchange, refused: Reasons | None = None) -> StagedBatch:
        """Stage the batch; `refused` become dead letters. Raises what Spark raises; then nothing may be committed."""
        context = records.sparkSession.sparkContext
        counts = Counts(*(context.accumulator(0) for _ in range(3)))
        names = [part.name for part in self._sql.parts]
        read, write = ordered(exchange, self.order), writer(exchange, names, self.order.types)
        return staged(self.frame(records, count=counts.add, read=read, write=write, refused=refused), counts)

    def try_out(self, records: DataFrame, exchange: Exchange, refused: Reasons) -> None:
        """Compute everything and stage nothing. Raises what Spark raises."""
        read = ordered(exchange, self.order)
        self.frame(records, count=uncounted, read=read, write=drained, refused=refused).collect()
