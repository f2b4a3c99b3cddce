"""Bringing the projection up to the log: what to read, what to apply, and when not to trust the log.

A log that has lost its end and was written again may be as long as it was, so a writer looks at the newest command once
more. A follower also remembers that it has met a log and what it has applied: a log that is gone is no new one, and a
database that was lost is made again from a log that has all of that and from no other.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipelines.metastore.command import CHECKPOINT, VERSION, Unreadable, decode, hash_of
from pipelines.metastore.degraded import Fault, Reason
from pipelines.metastore.log import CommandLog
from pipelines.metastore.projection import Position, Projection
from statestore.kafka.admin import Topic
from statestore.kafka.reader import OffsetsGone, Record

_TRIES = 3
# A command and the end of its transaction.
_LAST_OFFSETS = 2


class Follower:
    """Keeps one projection at one log. Safe to use from several threads and beside other processes."""

    def __init__(self, log: CommandLog, projection: Projection) -> None:
        self._log = log
        self._projection = projection
        self._seen = Position()
        self._met = False

    @property
    def knows(self) -> bool:
        """Whether there was ever a log to be seen."""
        return self._met or bool(self._projection.position().topic_id)

    def catch_up(self, *, writer: bool = False) -> Fault | None:
        """Apply everything that was committed before now; gives what is wrong. Raises `Unavailable` without Kafka.

        It stops at the first open transaction, whose writer may be dead: waiting would take until its time-out. A
        `writer` knows that every transaction has ended or is ending, so it waits, and looks at the newest applied command
        again. A log that was never written and never seen has nothing to apply and nothing wrong.
        """
        for _ in range(_TRIES - 1):
            try:
                return self._catch_up(writer)
            except OffsetsGone:
                # A checkpoint took the place of what was about to be read: look again.
                continue
        return self._catch_up(writer)

    def _catch_up(self, writer: bool) -> Fault | None:
        position = self._projection.position()
        self._seen = position if position.topic_id else self._seen
        topic = self._log.topic()
        self._met = self._met or topic is not None or bool(position.topic_id)
        if topic is None:
            return Fault(Reason.MISSING) if self._met else None
        start, end = self._log.bounds()
        if position.topic_id == topic.topic_id and end < position.next_offset:
            return Fault(Reason.SHORTER, f"it ends at {end}, applied up to {position.next_offset}")
        if not writer:
            end = min(end, max(start, self._log.stable_end()))
        fault = self._apply(position, topic, start, end, writer)
        if fault is None and self._projection.has_newer():
            return Fault(Reason.NEWER)
        return fault

    def _apply(self, position: Position, topic: Topic, start: int, end: int, writer: bool) -> Fault | None:
        if not position.topic_id and not self._seen.topic_id:
            return self._begin(topic, start, end)
        if not position.topic_id:
            return self.rebuild(topic, start, end, known=self._seen)
        same = position.topic_id == topic.topic_id
        if not same or position.version != VERSION or position.next_offset < start:
            return self.rebuild(topic, start, end)
        if start > position.start:
            fault = self._head_fault(start, end)
            if fault is not None:
                return fault
            self._projection.found_whole(start)
        records = self._read(position, start, end, again=writer)
        fault = _newest_fault(position, start, records) if writer else None
        if fault is not None or end <= position.next_offset:
            return fault
        return self._projection.apply(records, topic_id=topic.topic_id, start=start, end=end)

    def _read(self, position: Position, start: int, end: int, *, again: bool) -> list[Record]:
        """What follows what is applied, with `again` from the newest applied command on."""
        at, back = position.next_offset, _LAST_OFFSETS
        records: list[Record] = []
        if not again or not position.head.hash or at <= start:
            return self._log.read(at, end)
        while at > start and not (records and records[0].offset < position.next_offset):
            # Behind the command there may be any number of transactions that failed.
            at, back = max(start, position.next_offset - back), back * 8
            records = self._log.read(at, max(end, position.next_offset))
        return records

    def applied(self, written: Sequence[Record], position: Position) -> Fault | None:
        """Apply what this process has written at this position and committed: nobody can have written in between."""
        end = written[-1].offset + 1
        return self._projection.apply(written, topic_id=position.topic_id, start=position.start, end=end)

    def _begin(self, topic: Topic, start: int, end: int) -> Fault | None:
        """The first look of this projection at a log: of a broken one it takes the part that is whole."""
        records = self._log.read(start, end)
        if start > 0 and not records:
            return Fault(Reason.TRUNCATED, f"it begins and ends at offset {start}")
        return self._projection.apply(records, topic_id=topic.topic_id, start=start, end=end)

    def rebuild(
        self, topic: Topic, start: int, end: int, *, accept_loss: bool = False, known: Position | None = None
    ) -> Fault | None:
        """Apply the whole log to an empty projection, which takes the old one's place if all is well.

        The log must have what is applied, as `known` says or else the database.
        """
        records = self._log.read(start, end)
        if start > 0 and not records:
            return Fault(Reason.TRUNCATED, f"it begins and ends at offset {start}")
        fault = self._projection.rebuild(
            records, topic_id=topic.topic_id, start=start, end=end, accept_loss=accept_loss, known=known
        )
        if fault is None:
            # A loss that was accepted is not to be missed again.
            self._seen = Position()
        return fault

    def _head_fault(self, start: int, end: int) -> Fault | None:
        """Records before `start` are gone: right if a checkpoint begins there."""
        record = self._log.first(start, end)
        if record is not None:
            try:
                command = decode(record.value)
                if command.kind == CHECKPOINT and command.other.get("part") == 0:
                    return None
            except Unreadable:
                pass
        return Fault(Reason.TRUNCATED, f"it begins at offset {start}")


def _newest_fault(position: Position, start: int, records: Sequence[Record]) -> Fault | None:
    """Whether the newest applied command is among the records, unless a checkpoint has taken its place."""
    end = position.next_offset
    before = [record for record in records if record.offset < end]
    if not position.head.hash or start >= end or (before and hash_of(before[-1].value) == position.head.hash):
        return None
    return Fault(Reason.REPLACED, f"the newest command before offset {end} was not applied here")
