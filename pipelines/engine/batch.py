"""One batch as one Spark job: source records in, one row per staged task out. See the drawing in the design."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.functions import expr

from pipelines.engine.arrowtypes import arrow_type
from pipelines.engine.combine import Combine, combine_of
from pipelines.engine.decode import Count, Decoder, Reasons, decoded_ddl, decoder
from pipelines.engine.exchange import RESULT_DDL, ArrowFunction, Exchanges, Tasked, reader, without_states, writer
from pipelines.engine.input import Input, Part
from pipelines.engine.job import Job
from pipelines.engine.keybytes import key_bytes_of
from pipelines.engine.merge import GROUPED, STORED, MergeSql
from pipelines.engine.shuffle import PACKED_DDL, TASK, Shuffle, unpacked
from pipelines.engine.small import SmallBatches
from pipelines.engine.update import Update, update_of
from pipelines.plan import Query


class BatchJob(Job):
    """Of a plan whose aggregates are merged batch by batch. With `combine` off the JVM is given every row."""

    def __init__(self, query: Query, *, combine: bool = True) -> None:
        super().__init__(query)
        self.sql = MergeSql(query)
        self.combine = combine_of(query) if combine else None
        self.update = update_of(query) if combine else None
        self.large_rows = self.update is not None
        self.types = [arrow_type(part.type) for part in self.sql.parts]
        self.small = None if self.combine is None or self.update is None else self._small(self.combine, self.update)

    def _grouped(self, records: Input, count: Count, refused: Reasons | None) -> DataFrame:
        """One row a key, and one a dead letter."""
        source, combine = self.query.source, self.combine
        if combine is None:
            decode = decoder(source, plain_columns(self.query), count, refused)
            rows, aggregates = self.sql.with_keys(records.decoded(decode, decoded_ddl(source))), self.sql.grouped()
        else:
            combined = records.decoded(self._combined(combine, count, refused), combine.ddl, shared=True)
            rows, aggregates = self.sql.combined_keys(combined), self.sql.combined()
        return rows.groupBy("__key", "__dead").agg(*(expr(text) for text in aggregates))

    def _combined(self, combine: Combine, count: Count, refused: Reasons | None) -> Decoder:
        """What the workers combine."""
        return combine.after(decoder(self.query.source, combine.needs_raw, count, refused))

    def _shuffle(self, update: Update) -> Shuffle:
        """How combined rows come to their tasks."""
        groups = tuple(f"{GROUPED}{key}" for key in update.keys)
        return Shuffle(self.query.tasks, groups, key_bytes_of(self.query), update.columns())

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
        """The whole batch as one frame: decode, combine, aggregate and shuffle, READ, merge, WRITE. Nothing runs yet."""
        if self.combine is not None and self.update is not None:
            packed = self._shuffle(self.update).packed(self._combined(self.combine, count, refused))
            shuffled = records.decoded(packed, PACKED_DDL, shared=True).repartitionById(self.query.tasks, TASK)
            step = updated(self.update, read, write)
            return shuffled.mapInArrow(lambda batches: step(unpacked(batches)), result_ddl)
        # The shuffle's partitions are the tasks: Spark hashes (key, null) as it hashes the key.
        records.session.conf.set("spark.sql.shuffle.partitions", self.query.tasks)
        grouped = self._grouped(records, count, refused)
        old = ", ".join(f"`{STORED}{part.name}` {part.type}" for part in self.sql.parts)
        known = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in grouped.schema.fields)
        merged = grouped.mapInArrow(self.sql.adding(read), f"{known}, __token bigint, __old_time bigint, {old}")
        return self.sql.results(merged).mapInArrow(write, result_ddl)

    def exchanged(self, exchanges: Exchanges) -> tuple[ArrowFunction, ArrowFunction]:
        names = [part.name for part in self.sql.parts]
        return reader(exchanges, names, self.types), writer(exchanges, names, self.types)

    def _small(self, combine: Combine, update: Update) -> SmallBatches:
        names, shuffle = [part.name for part in self.sql.parts], self._shuffle(update)

        def by_task(part: Part, count: Count) -> Iterator[tuple[int, pa.RecordBatch]]:
            for rows in self._combined(combine, count, None)(part.records()):
                yield from shuffle.by_task(rows)

        def step(exchanges: Exchanges, tasked: Tasked) -> ArrowFunction:
            read = reader(exchanges, names, self.types, tasked)
            return updated(update, read, writer(exchanges, names, self.types, tasked))

        return SmallBatches(by_task, step)

    def without_states(self) -> ArrowFunction:
        return without_states([part.name for part in self.sql.parts], self.types)


def updated(update: Update, read: ArrowFunction, write: ArrowFunction) -> ArrowFunction:
    """READ and WRITE and what lies between them as one function over a task's combined rows."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from write(update.results(rows) for rows in read(update.grouped(batches)))

    return run


def plain_columns(query: Query) -> tuple[str, ...] | None:
    """The group keys' columns if every key is a plain column; None if a null key can come from anything else."""
    names = {f"`{column.name}`": column.name for column in query.source.columns}
    names |= {column.name: column.name for column in query.source.columns}
    plain = [names.get(key.expression) for key in query.group_by]
    return None if None in plain else tuple(name for name in plain if name is not None)
