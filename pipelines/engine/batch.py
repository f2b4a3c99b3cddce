"""One batch as one Spark job: source records in, one row per staged task out. See the drawing in the design."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql.functions import expr

from pipelines.engine.decode import Count, Reasons, arrow_type, decoded_ddl, decoder
from pipelines.engine.exchange import RESULT_DDL, ArrowFunction, Exchange, reader, without_states, writer
from pipelines.engine.input import Input
from pipelines.engine.job import Job
from pipelines.engine.merge import STORED, MergeSql
from pipelines.plan import Query


class BatchJob(Job):
    """Of a plan whose aggregates are merged batch by batch."""

    def __init__(self, query: Query) -> None:
        super().__init__(query)
        self._sql = MergeSql(query)
        self.types = [arrow_type(part.type) for part in self._sql.parts]

    def _grouped(self, decoded: DataFrame) -> DataFrame:
        aggregates = self._sql.grouped()
        return self._sql.with_keys(decoded).groupBy("__key", "__dead").agg(*(expr(text) for text in aggregates))

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
        """The whole batch as one frame: decode, aggregate and shuffle, READ, merge, WRITE. Nothing runs yet."""
        # The shuffle's partitions are the tasks: Spark hashes (key, null) as it hashes the key.
        records.session.conf.set("spark.sql.shuffle.partitions", self.query.tasks)
        decode = decoder(self.query.source, plain_columns(self.query), count, refused)
        decoded = records.decoded(decode, decoded_ddl(self.query.source))
        grouped = self._grouped(decoded)
        old = ", ".join(f"`{STORED}{part.name}` {part.type}" for part in self._sql.parts)
        known = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in grouped.schema.fields)
        merged = grouped.mapInArrow(read, f"{known}, __token bigint, __old_time bigint, {old}")
        return self._sql.results(merged).mapInArrow(write, result_ddl)

    def exchanged(self, exchange: Exchange) -> tuple[ArrowFunction, ArrowFunction]:
        names = [part.name for part in self._sql.parts]
        return reader(exchange, names, self.types), writer(exchange, names, self.types)

    def without_states(self) -> ArrowFunction:
        return without_states([part.name for part in self._sql.parts], self.types)


def plain_columns(query: Query) -> tuple[str, ...] | None:
    """The group keys' columns if every key is a plain column; None if a null key can come from anything else."""
    names = {f"`{column.name}`": column.name for column in query.source.columns}
    names |= {column.name: column.name for column in query.source.columns}
    plain = [names.get(key.expression) for key in query.group_by]
    return None if None in plain else tuple(name for name in plain if name is not None)
