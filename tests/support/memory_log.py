"""Kafka's logs of one task in memory, with what tests of recovery need of Kafka's rules: markers, aborts, compaction.

A transaction takes one more offset of each partition that it wrote to, its marker. Compaction takes away records that
a newer one of their key follows, and then deletions that are older than `retention_s`; offsets stay.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from statestore.kafka.admin import Topic
from statestore.kafka.reader import Record

Change = tuple[bytes, bytes | None]
Where = tuple[str, int]


class MemoryLogs:
    """Stands in for `Reader` and `Admin`. `topics` are names with topic ids; `clock` gives the seconds of the epoch."""

    def __init__(self, topics: Mapping[str, str], clock: Callable[[], float], *, retention_s: float) -> None:
        self._clock = clock
        self.retention_s = retention_s
        self._ids = dict(topics)
        self._committed: defaultdict[Where, list[Record]] = defaultdict(list)
        self._aborted: defaultdict[Where, list[Record]] = defaultdict(list)
        self._ends: defaultdict[Where, int] = defaultdict(int)

    # Writing.

    def transaction(self, records: Mapping[Where, Sequence[Change]], *, commits: bool = True) -> None:
        """Write to several partitions."""
        for where, changes in records.items():
            log = (self._committed if commits else self._aborted)[where]
            for key, value in changes:
                log.append(Record(key, value, self._ends[where], int(self._clock() * 1000)))
                self._ends[where] += 1
            if changes:
                self._ends[where] += 1

    def end(self, topic: str, partition: int) -> int:
        """The offset after the last."""
        return self._ends[topic, partition]

    def lose(self, topic: str, partition: int, *, end: int) -> None:
        """All from this offset on: what no broker's disk had."""
        for log in (self._committed[topic, partition], self._aborted[topic, partition]):
            log[:] = [record for record in log if record.offset < end]
        self._ends[topic, partition] = min(end, self._ends[topic, partition])

    def compact(self, topic: str, partition: int, dice: random.Random) -> None:
        """Take away some of what compaction may; aborted records go first.

        A deletion outlives every older record of its key: Kafka's cleaner works its way from the oldest segment on.
        """
        log = self._committed[topic, partition]
        newest = {record.key: record.offset for record in log}
        kept: list[Record] = []
        older: set[bytes | None] = set()
        for record in log:
            deletes = record.value is None and self._clock() - record.timestamp_ms / 1000 > self.retention_s
            may_go = newest[record.key] > record.offset or (deletes and record.key not in older)
            if not may_go or dice.random() >= 0.7:
                kept.append(record)
                older.add(record.key)
        log[:] = kept
        self._aborted[topic, partition].clear()

    # As a reader.

    def begin_and_end(self, topic: str, partition: int) -> tuple[int, int]:
        """Compaction never moves a log's beginning."""
        return 0, self._ends[topic, partition]

    def stable_end(self, topic: str, partition: int) -> int:
        """No transaction stays open."""
        return self._ends[topic, partition]

    def read(
        self, topic: str, partition: int, *, start: int, end: int | None = None, uncommitted: bool = False
    ) -> Iterator[list[Record]]:
        """In chunks of three."""
        records = [*self._committed[topic, partition], *(self._aborted[topic, partition] if uncommitted else ())]
        stop = self._ends[topic, partition] if end is None else end
        wanted = sorted((r for r in records if start <= r.offset < stop), key=lambda record: record.offset)
        for at in range(0, len(wanted), 3):
            yield wanted[at : at + 3]

    def newest(
        self, topic: str, partitions: Sequence[int], *, uncommitted: bool = False
    ) -> dict[int, dict[bytes, Record]]:
        """The last record of each key."""
        return {
            partition: {
                record.key or b"": record
                for chunk in self.read(topic, partition, start=0, uncommitted=uncommitted)
                for record in chunk
            }
            for partition in partitions
        }

    # As an admin.

    def describe(self, names: Iterable[str]) -> dict[str, Topic]:
        """All topics have two partitions."""
        return {name: Topic(name, self._ids[name], 2) for name in names if name in self._ids}

    def configs(self, _topic: str) -> dict[str, str]:
        """What recovery asks for."""
        return {"cleanup.policy": "compact", "delete.retention.ms": str(int(self.retention_s * 1000))}
