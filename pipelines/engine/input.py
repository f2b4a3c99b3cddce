"""The input of a batch as a Spark frame: each part is read and decoded by one Spark task, in its Python worker.

    driver    one row a task, its number; a partition of the frame each
    worker    number → its parts → records, in blocks → decoded columns
    JVM       sees decoded rows alone: no raw record is handed over

What a part is, a partition's range in Kafka, its files in an archive, given records, the worker does not ask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from pipelines.engine.decode import Decoder
from pipelines.engine.records import GivenRecords, Records
from pipelines.engine.turn import Turn
from statestore.batches import Range
from statestore.config import KafkaConfig
from statestore.kafka.blocks import BlockReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Part(Protocol):
    """Records of one source partition. It travels to the worker pickled."""

    @property
    def size(self) -> int:
        """How many records there are, or offsets, which are about as many."""
        ...

    def records(self) -> Iterator[Records]:
        """The records in their order. Raises where not all of them are there."""
        ...


@dataclass(frozen=True)
class KafkaPart:
    """A range of a partition in Kafka."""

    kafka: KafkaConfig
    range: Range

    @property
    def size(self) -> int:
        return self.range.offsets

    def records(self) -> Iterator[Records]:
        wanted = self.range
        yield from BlockReader(self.kafka).read(wanted.topic, wanted.partition, start=wanted.start, end=wanted.end)


@dataclass(frozen=True)
class GivenPart:
    """Records that are there already."""

    given: tuple[GivenRecords, ...]

    @property
    def size(self) -> int:
        return sum(map(len, self.given))

    def records(self) -> Iterator[Records]:
        yield from self.given


@dataclass(frozen=True)
class PartsInTurn:
    """One part after the other: what an archive holds of a partition, then what Kafka still has."""

    parts: tuple[Part, ...]

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)

    def records(self) -> Iterator[Records]:
        for part in self.parts:
            yield from part.records()


@dataclass(frozen=True)
class Input:
    """The parts of one batch, in the session that computes it."""

    session: SparkSession
    parts: tuple[Part, ...]

    @property
    def ranges(self) -> tuple[Range, ...] | None:
        """The ranges of the parts, if all of them are in Kafka."""
        kafka = [part for part in self.parts if isinstance(part, KafkaPart)]
        return tuple(part.range for part in kafka) if len(kafka) == len(self.parts) else None

    def given(self) -> Callable[[], tuple[Part, ...]]:
        """What gives the parts in the worker."""
        parts = self.parts
        return lambda: parts

    def decoded(self, decode: Decoder, ddl: str, *, shared: bool = False) -> DataFrame:
        """The decoded rows of all parts, of the columns of `ddl`. Nothing is read yet.

        A Spark task reads one part, or with `shared` as many as leave a task for each core: a task costs some tens of
        milliseconds before and after its work.
        """
        given, most = self.given(), self.session.sparkContext.defaultParallelism
        count = min(len(self.parts), most) if shared else len(self.parts)

        def read(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            hands = dealt(given(), most) if shared else [[part] for part in given()]
            for batch in rows:
                for number in batch.column(0).to_pylist():
                    yield from decode(chain.from_iterable(part.records() for part in hands[number]))

        # Two at the least: of an input that is one partition Spark takes all keys to be together, leaves the shuffle
        # out, and every row would reach task 0.
        return self.session.range(0, count, 1, numPartitions=max(2, count)).mapInArrow(read, ddl)


class InputOfTurn(Input):
    """Of a job that runs again: the ranges are those of the turn, as many as the parts here."""

    def given(self) -> Callable[[], tuple[Part, ...]]:
        kafka = next(part.kafka for part in self.parts if isinstance(part, KafkaPart))
        return lambda: tuple(KafkaPart(kafka, each) for each in Turn.now().ranges)


def dealt(parts: Sequence[Part], most: int) -> list[list[Part]]:
    """The parts in at most so many hands of about one size: each, the largest first, to the hand that has the least."""
    hands: list[list[Part]] = [[] for _ in range(min(len(parts), max(1, most)))]
    for part in sorted(parts, key=lambda part: part.size, reverse=True):
        min(hands, key=lambda hand: sum(each.size for each in hand)).append(part)
    return hands
