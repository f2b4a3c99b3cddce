"""A batch in record order as one Spark job: decode, filter, shuffle the rows themselves, READ in order, WRITE.

Nothing is aggregated before the shuffle: a window may close, and a result is due, at any row. Each task takes all of
its rows of the batch into one Arrow table. The partition after the shuffle is the task, as in `batch.py`.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from pipelines.engine.batch import plain_columns
from pipelines.engine.decode import Count, Reasons, decoded_ddl, decoder, with_columns
from pipelines.engine.exchange import RESULT_DDL, ArrowFunction, Exchange, ordered, writer
from pipelines.engine.job import Job
from pipelines.engine.merge import DROPPED, STREAM_TIME, MergeSql
from pipelines.engine.record_order import RecordOrder
from pipelines.engine.records import COLUMNS, offsets, partitions
from pipelines.plan import Query


class OrderedJob(Job):
    """Of a plan that takes its rows one after the other."""

    def __init__(self, query: Query) -> None:
        super().__init__(query)
        self.order = RecordOrder(query)
        self._sql = MergeSql(query)

    def inputs(self, records: DataFrame, *, count: Count, refused: Reasons | None = None) -> DataFrame:
        """Source records as the columns that `RecordOrder` takes, dead letters among them; not shuffled yet."""
        source = self.query.source
        place = {"__partition": partitions, "__offset": offsets}
        decode = with_columns(decoder(source, plain_columns(self.query), count, refused), place)
        ddl = f"{decoded_ddl(source)}, __partition int, __offset bigint"
        decoded = records.selectExpr(*COLUMNS).mapInArrow(decode, ddl)
        return self._sql.with_keys(decoded).selectExpr(*self.order.inputs())

    def frame(
        self,
        records: DataFrame,
        *,
        count: Count,
        read: ArrowFunction,
        write: ArrowFunction,
        refused: Reasons | None = None,
        result_ddl: str = RESULT_DDL,
    ) -> DataFrame:
        """The whole batch as one frame. Nothing runs yet."""
        # Spark hashes (key, null) as it hashes the key, and a dead letter, which has no key, by itself.
        shuffled = self.inputs(records, count=count, refused=refused).repartition(self.query.tasks, "__key", "__dead")
        ddl = f"{self.order.ddl()}, __token bigint, {STREAM_TIME} bigint, {DROPPED} bigint"
        return self._sql.results(shuffled.mapInArrow(read, ddl)).mapInArrow(write, result_ddl)

    def exchanged(self, exchange: Exchange) -> tuple[ArrowFunction, ArrowFunction]:
        names = [part.name for part in self._sql.parts]
        return ordered(exchange, self.order), writer(exchange, names, self.order.types)
