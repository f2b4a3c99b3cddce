"""The input of a batch as a Spark frame: each part is read and decoded by one Spark task, in its Python worker.

    driver    one row a part, its number; a partition of the frame each
    worker    part → records, in blocks → decoded columns
    JVM       sees decoded rows alone: no raw record is handed over

What a part is, a partition's range in Kafka, its files in an archive, given records, the worker does not ask.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from pipelines.engine.decode import Decoder
from pipelines.engine.records import GivenRecords, KafkaRecords, Records
from statestore.batches import Range
from statestore.config import KafkaConfig
from statestore.kafkablocks import BlockReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Part(Protocol):
    """What one Spark task reads. It travels to the worker pickled."""

    def records(self) -> Iterator[Records]:
        """The records in their order. Raises where not all of them are there."""
        ...


@dataclass(frozen=True)
class KafkaPart:
    """A range of a partition in Kafka."""

    kafka: KafkaConfig
    range: Range

    def records(self) -> Iterator[Records]:
        wanted = self.range
        reader = BlockReader(self.kafka)
        for block in reader.read(wanted.topic, wanted.partition, start=wanted.start, end=wanted.end):
            yield KafkaRecords(wanted.partition, block)


@dataclass(frozen=True)
class GivenPart:
    """Records that are there already."""

    given: tuple[GivenRecords, ...]

    def records(self) -> Iterator[Records]:
        yield from self.given


@dataclass(frozen=True)
class PartsInTurn:
    """One part after the other: what an archive holds of a partition, then what Kafka still has."""

    parts: tuple[Part, ...]

    def records(self) -> Iterator[Records]:
        for part in self.parts:
            yield from part.records()


@dataclass(frozen=True)
class Input:
    """The parts of one batch, in the session that computes it."""

    session: SparkSession
    parts: tuple[Part, ...]

    def decoded(self, decode: Decoder, ddl: str) -> DataFrame:
        """The decoded rows of all parts, of the columns of `ddl`. Nothing is read yet."""
        parts = self.parts

        def read(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in rows:
                for number in batch.column(0).to_pylist():
                    yield from decode(parts[number].records())

        # Two at the least: of an input that is one partition Spark takes all keys to be together, leaves the shuffle
        # out, and every row would reach task 0.
        return self.session.range(0, len(parts), 1, numPartitions=max(2, len(parts))).mapInArrow(read, ddl)
