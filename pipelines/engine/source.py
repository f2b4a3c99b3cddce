"""The source topic of one query, read by explicit offsets: what there is, what is gone, and the input of given ranges.

A batch ends at the last stable offset of each partition, as `read_committed` sees it: no batch waits for a transaction
of a producer, and none takes a part of one that a single producer writes to a partition.

Offsets that Kafka has deleted are read from the topic's archive, where there is one that holds them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from statistics import fmean
from typing import TYPE_CHECKING

import structlog

from pipelines.archive import Spans, archived_spans, holds, open_archive
from pipelines.engine.input import Input, KafkaPart, Part, PartsInTurn
from pipelines.engine.recordtimes import RecordTimes
from pipelines.plan import Query
from statestore.batches import Planned, Range
from statestore.config import KafkaConfig, ObjectsConfig
from statestore.errors import InvalidConfig, Unrecoverable
from statestore.kafka.admin import Admin, Topic
from statestore.kafka.reader import Reader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipelines.engine.archivedtimes import ArchivedTimes

log = structlog.get_logger()
# How much is looked at to learn how large records are.
_SAMPLED_PARTITIONS = 4
_SAMPLED_RECORDS = 16
# A leader that is just being replaced may tell of an old end. Nobody has to wait for a log that is whole.
_LOOK_AGAIN_S = 1.0
_FOR_EVER = -1
# By how much a broker's clock may be ahead of ours.
_CLOCKS_APART_MS = 5 * 60_000


class SourceTopic:
    """Follows the topic of `query`. `look` has to be called before the rest."""

    def __init__(
        self, query: Query, kafka: KafkaConfig, *, accept_loss: bool, archive: ObjectsConfig | None = None
    ) -> None:
        self._query = query
        self._kafka = kafka
        self._admin = Admin(kafka)
        self._accept_loss = accept_loss
        self._archive = archive
        self._topic: Topic | None = None
        self._times: ArchivedTimes | None = None
        self._sampled: RecordTimes | None = None

    @property
    def topic(self) -> Topic:
        """The topic as it was last seen."""
        assert self._topic is not None
        return self._topic

    def look(self) -> None:
        """See the topic and its partitions anew. Raises `InvalidConfig` or `Unrecoverable` if it cannot be read."""
        name = self._query.source.topic
        found = self._admin.describe([name]).get(name)
        if found is None:
            raise InvalidConfig(
                "source topic does not exist", topic=name, hint="create it, or stop the pipeline that reads it"
            )
        if self._query.stateless and found.partitions > self._query.tasks:
            raise InvalidConfig(
                "source topic got partitions since the deploy, and a stateless query has one task for each",
                topic=name,
                partitions=found.partitions,
                tasks=self._query.tasks,
                hint="deploy the query under another name",
            )
        if self._topic is not None:
            self._require_same(found, self._topic.topic_id)
        self._topic = found

    def require_same(self, planned: Planned) -> None:
        """Raise `Unrecoverable` if the batch was planned over another topic of this name."""
        for planned_range in planned.ranges:
            self._require_same(self.topic, planned_range.topic_id)

    def _require_same(self, found: Topic, recorded: str) -> None:
        if found.topic_id != recorded:
            raise Unrecoverable(
                "source topic was deleted and created again: its offsets mean other records now",
                topic=found.name,
                recorded_topic_id=recorded,
                topic_id=found.topic_id,
                hint="deploy the pipeline under another name to start anew",
            )

    def begins(self) -> dict[int, int]:
        """The first offset present in every partition."""
        return self._admin.begins(self.topic.name, partitions=self.topic.partitions)

    def stable_ends(self) -> dict[int, int]:
        """Up to where every partition can be read, not included: an open transaction hides what is behind it."""
        return self._admin.stable_ends(self.topic.name, partitions=self.topic.partitions)

    def at_time(self, time_ms: int) -> dict[int, int]:
        """The first offset of every partition whose record is of that time or later; the log's end where there is none."""
        return self._admin.at_time(self.topic.name, time_ms, partitions=self.topic.partitions)

    def first_at(self, time_ms: int, starts: Mapping[int, int], most: int) -> dict[int, int]:
        """`at_time` of the records from `starts` on, also of those that only the archive has.

        Brokers tell of a whole partition, and of one record that was ahead of its time, long ago, if they are asked for any
        time before that record's. There a few records are looked at, and times between them are taken to go on. There, and
        in the archive, no more than `most` and the next offset are looked at: what is behind is given if none is of that time.
        """
        found = self.at_time(time_ms)
        begins = {} if self._archive is None else self.begins()
        reached = [partition for partition, start in starts.items() if found[partition] < start]
        ends = self.stable_ends() if reached else {}
        for partition, start in starts.items():
            begin, end = begins.get(partition, 0), start + most + 1
            if start < begin:
                archived = self._archived_times().first(partition, start, min(end, begin), time_ms)
                if archived is not None or end < begin:
                    found[partition] = end if archived is None else archived
            elif partition in reached:
                found[partition] = self._record_times().first(partition, start, min(end, ends[partition]), time_ms)
        return found

    def _record_times(self) -> RecordTimes:
        if self._sampled is None:
            self._sampled = RecordTimes(Reader(self._kafka), self.topic.name)
        return self._sampled

    def _archived_times(self) -> ArchivedTimes:
        # Imports Parquet's reader, which few queries need.
        from pipelines.engine.archivedtimes import ArchivedTimes

        if self._times is None or self._times.topic != self.topic:
            assert self._archive is not None
            self._times = ArchivedTimes(self._archive, self.topic)
        return self._times

    def is_compacted(self) -> bool:
        """Whether Kafka drops records that a newer one of their key has followed."""
        return self._admin.is_compacted(self.topic.name)

    def kept_from(self, now_ms: int) -> int | None:
        """From which time on, in ms, records cannot have been deleted by the topic's retention; None if that is not known.

        Kafka deletes a segment by its newest record, so that retention by time takes none that is younger than
        `retention.ms`, however late others came. Retention by size takes records of any time. Where there is neither, what
        is gone was deleted by hand. Whether that was, or whether retention was shorter before, no client can tell.
        """
        configs = self._admin.configs(self.topic.name)
        retention_ms = int(configs.get("retention.ms", _FOR_EVER))
        if retention_ms < 0 or int(configs.get("retention.bytes", _FOR_EVER)) >= 0:
            return None
        return now_ms - retention_ms + _CLOCKS_APART_MS

    def lags(self, positions: dict[int, int]) -> dict[int, int]:
        """How many offsets lie behind `positions`, open transactions included; empty before the first look."""
        if self._topic is None:
            return {}
        ends = self._admin.ends(self._topic.name, partitions=self._topic.partitions)
        return {partition: end - positions.get(partition, 0) for partition, end in ends.items()}

    def range(self, partition: int, start: int, end: int) -> Range:
        """Offsets of one partition of the topic."""
        return Range(self.topic.name, self.topic.topic_id, partition, start, end)

    def value_bytes(self, ranges: tuple[Range, ...]) -> float | None:
        """About how many bytes a value in these ranges has, by a few records of them; None where none was met, 0 for nulls.

        Looks at the beginning and the end of the ranges that hold most, and gives the larger mean.
        """
        begins, reader, means = self.begins(), Reader(self._kafka), []
        with reader.kept():
            for r in sorted(ranges, key=lambda r: -r.offsets)[:_SAMPLED_PARTITIONS]:
                # What lies in the archive alone is not looked at.
                begin = min(max(r.start, begins[r.partition]), r.end)
                for start in {begin, max(begin, r.end - _SAMPLED_RECORDS)}:
                    end = min(start + _SAMPLED_RECORDS, r.end)
                    chunks = reader.read(r.topic, r.partition, start=start, end=end) if end > start else ()
                    values = [record.value for chunk in chunks for record in chunk]
                    # A few among many nulls are as large as they are.
                    means += [fmean(map(len, filter(None, values)))] if any(values) else [0.0] if values else []
        return max(means, default=None)

    def deleted(self, starts: dict[int, int], begins: dict[int, int]) -> tuple[Range, ...]:
        """Records from `starts` on that are gone. Raises `Unrecoverable` unless the operator accepts the loss."""
        lost = tuple(
            self.range(partition, start, begins[partition])
            for partition, start in starts.items()
            if start < begins.get(partition, 0)
        )
        held = self.archived() if lost else {}
        lost = tuple(gone for gone in lost if not holds(held, gone.partition, gone.start, gone.end))
        if lost and not self._accept_loss:
            raise Unrecoverable(
                "source records were deleted before they were read",
                topic=self.topic,
                lost=", ".join(f"partition {gone.partition} from {gone.start} to {gone.end - 1}" for gone in lost),
                hint="restore them and raise the topic's retention; to go on without them start with --accept-loss",
            )
        for gone in lost:
            log.error("source records are lost, as accepted", query=self._query.name, lost=asdict(gone))
        return lost

    def cut_off(self, positions: Mapping[int, int], ends: Mapping[int, int]) -> tuple[Range, ...]:
        """Records before `positions` that the log has lost at its end, by the stable `ends`.

        A partition gets shorter where its leader loses what no other replica has: by an unclean election, or a disk. What
        is written next has the lost records' offsets, and would pass for what was read. Raises `Unrecoverable` unless the
        operator accepts the loss, and whatever he accepts if it is another topic. Sees the topic anew where one is shorter.
        """
        if all(ends.get(partition, at) >= at for partition, at in positions.items()):
            return ()
        time.sleep(_LOOK_AGAIN_S)
        # One that was made again is short as well, and none of its records is ours.
        self.look()
        # Of all records: an open transaction hides some, which are not lost.
        again = self._admin.ends(self.topic.name, partitions=self.topic.partitions)
        cut = tuple(
            self.range(partition, again[partition], at)
            for partition, at in positions.items()
            if again.get(partition, at) < at
        )
        if cut and not self._accept_loss:
            raise Unrecoverable(
                "source topic has lost records that were read: it ends before the position of the query",
                topic=self.topic.name,
                lost=", ".join(f"partition {r.partition} at {r.end} ends at {r.start}" for r in cut),
                hint="what is written next has the lost records' offsets; to read on from the end start with --accept-loss",
            )
        for gone in cut:
            log.error("source topic ends before the position, as accepted", query=self._query.name, lost=asdict(gone))
        return cut

    def archived(self) -> Spans:
        """First and end of the offsets that the archive holds, by partition; empty without an archive."""
        return archived_spans(self._archive, self.topic)

    def input(self, session: SparkSession, ranges: tuple[Range, ...]) -> Input:
        """Exactly the records of `ranges`: from Kafka, and from the archive what it has no more. Nothing is read yet."""
        return Input(session, self.parts(ranges))

    def parts(self, ranges: tuple[Range, ...]) -> tuple[Part, ...]:
        """The same, one part a partition that has any."""
        begins = {} if self._archive is None else self.begins()
        return tuple(self._part(r, begins.get(r.partition, 0)) for r in ranges if r.end > r.start)

    def _part(self, wanted: Range, begin: int) -> Part:
        """One range: one task reads a partition, so that its records stay in their order."""
        if wanted.start >= begin:
            return KafkaPart(self._kafka, wanted)
        assert self._archive is not None
        # Imports Parquet's reader, which few queries need.
        from pipelines.engine.archived import archived_part

        gone = replace(wanted, end=min(wanted.end, begin))
        archived = archived_part(self._archive, open_archive(self._archive, self.topic), gone)
        return PartsInTurn((archived, KafkaPart(self._kafka, replace(wanted, start=gone.end))))


def without_lost(planned: Planned, deleted: tuple[Range, ...], cut: tuple[Range, ...]) -> Planned:
    """The batch over what is left of its input, `deleted` before it and `cut` off behind, to be planned anew under its number.

    A task that had committed it before has recorded the end that is lost, so that only the next batch's positions are sure.
    """
    begins = {gone.partition: gone.end for gone in deleted}
    ends = {gone.partition: gone.start for gone in cut}
    ranges = []
    for r in planned.ranges:
        begin = max(r.start, begins.get(r.partition, 0))
        end = ends.get(r.partition, max(r.end, begin))
        ranges.append(replace(r, start=min(begin, end), end=end))
    left = replace(planned, ranges=tuple(ranges), lost=deleted + cut)
    return replace(left, floor=planned.batch, cut=planned.batch + 1) if cut else left
