"""A batch in record order as one Spark job: decode, filter, shuffle the rows themselves, READ in order, WRITE.

Nothing is aggregated before the shuffle: a window may close, and a result is due, at any row. Each task takes all of
its rows of the batch into one Arrow table. The partition after the shuffle is the task, as in `batch.py`.

A table's row goes to every task, in full to that of its group: the others may hold what the row counted for before. So
each task knows by itself what to take back, and its part of the batch is one transaction as ever.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from pipelines.engine.batch import plain_columns
from pipelines.engine.changes import routed
from pipelines.engine.decode import Count, Decoder, Reasons, decoded_ddl, decoder, with_columns
from pipelines.engine.exchange import RESULT_DDL, ArrowFunction, Exchanges, ordered, ordered_without_states, writer
from pipelines.engine.input import Input
from pipelines.engine.job import Job
from pipelines.engine.merge import DROPPED, ROW, STREAM_TIME, MergeSql
from pipelines.engine.record_order import RecordOrder
from pipelines.engine.records import keys, offsets, partitions
from pipelines.plan import Query


class OrderedJob(Job):
    """Of a plan that takes its rows one after the other."""

    def __init__(self, query: Query) -> None:
        super().__init__(query)
        self.order = RecordOrder(query)
        self._sql = MergeSql(query)

    def inputs(self, records: Input, *, count: Count, refused: Reasons | None = None) -> DataFrame:
        """Source records as the columns that `RecordOrder` takes, dead letters among them; not shuffled yet."""
        source = self.query.source
        may_be_dead = () if self.query.changelog else plain_columns(self.query)
        decode = with_places(decoder(source, may_be_dead, count, refused), raw_keys=self.query.changelog)
        ddl = f"{decoded_ddl(source)}, __partition int, __offset bigint"
        if self.query.changelog:
            ddl = f"{ddl}, {ROW} binary"
        decoded = records.decoded(decode, ddl)
        return self._sql.with_keys(decoded).selectExpr(*self.order.inputs())

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
        inputs = self.inputs(records, count=count, refused=refused)
        if self.query.changelog:
            shuffled = routed(inputs, self.query.tasks).repartitionById(self.query.tasks, "__task")
        else:
            # Spark hashes (key, null) as it hashes the key, and a dead letter, which has no key, by itself.
            shuffled = inputs.repartition(self.query.tasks, "__key", "__dead")
        ddl = f"{self.order.ddl()}, __token bigint, {STREAM_TIME} bigint, {DROPPED} bigint"
        return self._sql.results(shuffled.mapInArrow(read, ddl)).mapInArrow(write, result_ddl)

    def exchanged(self, exchanges: Exchanges) -> tuple[ArrowFunction, ArrowFunction]:
        names = [part.name for part in self._sql.parts]
        return ordered(exchanges, self.order), writer(exchanges, names, self.order.types)

    def without_states(self) -> ArrowFunction:
        return ordered_without_states(self.order)


def with_places(decode: Decoder, *, raw_keys: bool) -> Decoder:
    """The decoder with each record's partition and offset behind the row, and where it is asked for the raw key."""
    extra = {"__partition": partitions, "__offset": offsets}
    return with_columns(decode, {**extra, ROW: keys} if raw_keys else extra)
