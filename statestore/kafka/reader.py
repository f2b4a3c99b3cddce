"""Logs read to their ends, record by record.

The end offset is captured as `read_uncommitted` (an open transaction must not hide committed records behind it),
records are read as `read_committed`, and reading stops on the partition-EOF event at or past the captured end, never by
comparing with a message's offset: markers, aborted and compacted records take offsets too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import Enum
from operator import methodcaller
from typing import NamedTuple

import confluent_kafka as ck
from confluent_kafka.admin import OffsetSpec

from statestore.config import KafkaConfig
from statestore.errors import RollforwardError, Unavailable
from statestore.kafka.connection import DEFINITE, LOST_ITS_PLACE, PARTITION_END, Asking, client_settings, unavailable
from statestore.kafka.offsets import list_all_offsets, list_offsets

_REPLAY_CHUNK = 10_000
# A reader learns that a log has ended when the broker has waited so long for more: behind the marker of a transaction
# there is no record that would tell.
END_WAIT_MS = 2


class OffsetsGone(RollforwardError):
    """The offset asked for lies outside of the log."""


class Record(NamedTuple):
    """One committed record. `timestamp_ms` is its CreateTime."""

    key: bytes | None
    value: bytes | None
    offset: int
    timestamp_ms: int
    headers: tuple[tuple[str, bytes], ...] = ()


_ERROR = methodcaller("error")


class _Ended(Enum):
    """Why no more records of a chunk count: the end that was asked for, or the client has lost its place."""

    AT_STOP = "at stop"
    ASTRAY = "astray"


@dataclass
class _Span:
    """What is left to read of a partition: from `next`, included, to `stop`, not included."""

    next: int
    stop: int


def _assign(consumer: ck.Consumer, topic: str, spans: Mapping[int, _Span]) -> None:
    consumer.assign([ck.TopicPartition(topic, partition, span.next) for partition, span in spans.items()])


def _by_partition(
    messages: list[ck.Message], spans: Mapping[int, _Span], *, alone: bool
) -> dict[int, list[ck.Message]]:
    """Those of spans that are still read, in their order. An error that names no partition counts for each.

    `alone` says that no other partition was ever assigned: one that has been read to its end goes on sending.
    """
    if alone:
        return dict.fromkeys(spans, messages) if messages else {}
    found: dict[int, list[ck.Message]] = {}
    for message in messages:
        partition = message.partition()
        for one in spans if partition is None or partition < 0 else [partition]:
            if one in spans:
                found.setdefault(one, []).append(message)
    return found


class Reader(Asking):
    """Reads logs from given offsets to their ends. Belongs to no group and commits nothing. For any number of threads."""

    def __init__(self, config: KafkaConfig, beside: Asking | None = None) -> None:
        super().__init__(config, beside)
        self._keeping = threading.Lock()
        self._keepers = 0
        # Those that read nothing just now, by isolation level.
        self._idle: list[tuple[str, ck.Consumer]] = []

    @contextmanager
    def kept(self) -> Iterator[None]:
        """The consumer of one read is kept for the next until the end: a new one makes three connections."""
        with self._keeping:
            self._keepers += 1
        try:
            yield
        finally:
            with self._keeping:
                self._keepers -= 1
                ended = [] if self._keepers else self._idle
                self._idle = self._idle if self._keepers else []
            for _, consumer in ended:
                consumer.close()

    @contextmanager
    def _consumer(self, isolation: str) -> Iterator[ck.Consumer]:
        """One that has no partition. After an error, and where nobody keeps it, it is closed."""
        with self._keeping:
            found = next((kept for kept in self._idle if kept[0] == isolation), None)
            if found is not None:
                self._idle.remove(found)
        consumer = found[1] if found is not None else self._new_consumer(isolation)
        with ExitStack() as closing:
            closing.callback(consumer.close)
            yield consumer
            with self._keeping:
                if self._keepers:
                    consumer.unassign()
                    self._idle.append((isolation, consumer))
                    closing.pop_all()

    def _new_consumer(self, isolation: str) -> ck.Consumer:
        return ck.Consumer(
            {
                **client_settings(self._config),
                "group.id": "rollforward-reader",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "isolation.level": isolation,
                "auto.offset.reset": "error",
                "allow.auto.create.topics": False,
                "queued.max.messages.kbytes": 64 * 1024,
                "fetch.wait.max.ms": END_WAIT_MS,
                "fetch.message.max.bytes": 4 * 1024 * 1024,
            }
        )

    def begin_and_end(self, topic: str, partition: int) -> tuple[int, int]:
        """First offset present and the offset after the last, open transactions included."""
        return self.begins_and_ends(topic, [partition])[partition]

    def begins_and_ends(self, topic: str, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        """`begin_and_end` of each partition."""
        where = [ck.TopicPartition(topic, partition) for partition in partitions]
        wanted = [dict.fromkeys(where, spec()) for spec in (OffsetSpec.earliest, OffsetSpec.latest)]
        first, last = list_all_offsets(self._admin, self._config, wanted)
        return {partition: (first[topic, partition], last[topic, partition]) for partition in partitions}

    def require_reach(self, committed: Mapping[tuple[str, int], int]) -> None:
        """Raise `Unavailable` if a log (topic, partition) ends before what was committed of it: brokers have lost its end.

        Ask before writing there. What is written lies where the lost records were, and stays if it is aborted: the log is
        as long again, and nobody can see that it lacks something.
        """
        wanted = {ck.TopicPartition(*where): OffsetSpec.latest() for where, offset in committed.items() if offset > 0}
        ends = list_offsets(self._admin, self._config, wanted) if wanted else {}
        for (topic, partition), end in ends.items():
            offset = committed[topic, partition]
            if end < offset:
                raise Unavailable(
                    "kafka has lost committed records",
                    topic=topic,
                    partition=partition,
                    committed=offset,
                    end=end,
                    hint="look at the brokers: an unclean election, or a machine that has lost its power",
                )

    def stable_end(self, topic: str, partition: int) -> int:
        """The offset where the first open transaction begins; the log's end if none is open."""
        where = ck.TopicPartition(topic, partition)
        wanted = {where: OffsetSpec.latest()}
        return list_offsets(self._admin, self._config, wanted, committed=True)[(topic, partition)]

    def read(
        self,
        topic: str,
        partition: int,
        *,
        start: int,
        end: int | None = None,
        uncommitted: bool = False,
    ) -> Iterator[list[Record]]:
        """Chunks of the committed records from `start` up to `end` (exclusive), or to the log's end.

        With `uncommitted` those of aborted and of open transactions are among them.

        Raises `Unavailable` when Kafka stays silent for the time limit or the log ends before `end`, and
        `TaskCorrupted`'s cause, `OffsetsGone`, when `start` lies before the log.
        """
        isolation = "read_uncommitted" if uncommitted else "read_committed"
        for messages in self._messages(topic, partition, start, end, isolation, _REPLAY_CHUNK):
            yield [_record(message) for message in messages]

    def newest(
        self, topic: str, partitions: Sequence[int], *, uncommitted: bool = False
    ) -> dict[int, dict[bytes, Record]]:
        """The last record of each key in each partition, of the committed ones unless `uncommitted`."""
        found: dict[int, dict[bytes, Record]] = {partition: {} for partition in partitions}
        spans = {n: _Span(*span) for n, span in self.begins_and_ends(topic, partitions).items()}
        isolation = "read_uncommitted" if uncommitted else "read_committed"
        for messages in self._consumed(topic, spans, isolation, _REPLAY_CHUNK):
            newest = found[messages[0].partition()]  # type: ignore[index]
            newest.update((record.key or b"", record) for record in map(_record, messages))
        return found

    def _messages(
        self, topic: str, partition: int, start: int, end: int | None, isolation: str, most: int
    ) -> Iterator[list[ck.Message]]:
        """At most so many at a time, none of them an event or at the end or after it."""
        if end is not None and start >= end:
            return
        first, last = self.begin_and_end(topic, partition)
        if end is not None and last < end:
            # To read what there is would pass for all of it.
            raise Unavailable(
                "log ends too early", topic=topic, partition=partition, last=last, wanted=end, hint="ask again"
            )
        if start < first:
            raise OffsetsGone(
                "records are gone from the log", topic=topic, partition=partition, wanted=start, first=first
            )
        yield from self._consumed(topic, {partition: _Span(start, last if end is None else end)}, isolation, most)

    def _consumed(self, topic: str, spans: dict[int, _Span], isolation: str, most: int) -> Iterator[list[ck.Message]]:
        """The messages of all spans, each chunk of one partition."""
        spans = {partition: span for partition, span in spans.items() if span.next < span.stop}
        if not spans:
            return
        with self._consumer(isolation) as consumer:
            _assign(consumer, topic, spans)
            alone = len(spans) == 1
            deadline = time.monotonic() + self._config.request_timeout_s
            while spans:
                # The client waits its whole time for a full chunk: so for one first, then a moment for those behind it.
                messages = consumer.consume(1, timeout=0.2)
                messages += consumer.consume(most - 1, timeout=0.001) if messages else []
                for partition, chunk in _by_partition(messages, spans, alone=alone).items():
                    span = spans[partition]
                    taken, ended_by = self._taken(chunk, span.stop)
                    if taken:
                        span.next = taken[-1].offset() + 1  # type: ignore[operator]
                        yield taken
                        # Behind that: how long the caller takes is not Kafka's silence.
                        deadline = time.monotonic() + self._config.request_timeout_s
                    if ended_by is _Ended.AT_STOP:
                        del spans[partition]
                    if ended_by is _Ended.ASTRAY:
                        self._require_present(topic, partition, span.next)
                        _assign(consumer, topic, spans)
                if spans and time.monotonic() >= deadline:
                    raise unavailable(
                        "read to the end of the log",
                        "time-out",
                        self._config,
                        topic=topic,
                        partitions=sorted(spans),
                        ends=[span.stop for _, span in sorted(spans.items())],
                    )

    def _taken(self, messages: list[ck.Message], stop: int) -> tuple[list[ck.Message], _Ended | None]:
        """The records among one partition's messages up to `stop`, and what ended them before the messages did."""
        # An error is true, whatever it says; comparing one with None would raise.
        if not any(map(_ERROR, messages)) and (last := messages[-1].offset()) < stop:  # type: ignore[operator]
            return messages, _Ended.AT_STOP if last == stop - 1 else None
        taken: list[ck.Message] = []
        ended_by = None
        for message in messages:
            error = message.error()
            offset: int = message.offset()  # type: ignore[assignment]
            if error is None:
                if offset >= stop:
                    return taken, _Ended.AT_STOP
                taken.append(message)
            elif error.code() == PARTITION_END:
                ended_by = _Ended.AT_STOP if offset >= stop else ended_by
            elif error.code() == LOST_ITS_PLACE:
                return taken, _Ended.ASTRAY
            elif error.code() in DEFINITE or error.fatal():
                topic, partition = message.topic(), message.partition()
                raise unavailable("read", error.str(), self._config, topic=topic, partition=partition)
            # Anything else, a broken connection above all, may pass: the deadline bounds it.
        return taken, ended_by

    def _require_present(self, topic: str, partition: int, wanted: int) -> None:
        """The client gives its place up too when a broker comes back; only the log can tell."""
        first, _ = self.begin_and_end(topic, partition)
        if wanted < first:
            raise OffsetsGone(
                "records are gone from the log", topic=topic, partition=partition, wanted=wanted, first=first
            )


def _record(message: ck.Message) -> Record:
    headers = tuple(message.headers() or ())
    offset, time_ms = message.offset(), message.timestamp()[1]
    return Record(message.key(), message.value(), offset, time_ms, headers)  # type: ignore[arg-type]
