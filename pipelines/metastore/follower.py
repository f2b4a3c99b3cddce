"""Bringing the projection up to the log: what to read, what to apply, and when not to trust the log.

A log that has lost its end and was written again may be as long as it was, so a writer looks at the newest command once
more. A follower also remembers what it has applied: a database that was lost is made again from a log that has all of
it and from no other.
"""

from __future__ import annotations

from pipelines.metastore.command import CHECKPOINT, VERSION, Unreadable, decode, hash_of
from pipelines.metastore.degraded import Fault, Reason
from pipelines.metastore.log import CommandLog
from pipelines.metastore.projection import Position, Projection
from statestore.kafka import OffsetsGone, Record, Topic

_TRIES = 3
# A command and the end of its transaction.
_LAST_OFFSETS = 2


class Follower:
    """Keeps one projection at one log. Safe to use from several threads and beside other processes."""

    def __init__(self, log: CommandLog, projection: Projection) -> None:
        self._log = log
        self._projection = projection
        self._seen = Position()

    def catch_up(self, *, to: int = 0, thorough: bool = False) -> Fault | None:
        """Apply everything that was committed before now; gives what is wrong. Raises `Unavailable` without Kafka.

        It stops at the first open transaction, whose writer may be dead: waiting would take until its time-out. Up to
        offset `to` it waits: a writer knows that what is there has ended or is ending. `thorough` reads the newest
        applied command again even where nothing follows it. A log that was never written and never seen has nothing to
        apply and nothing wrong.
        """
        for _ in range(_TRIES - 1):
            try:
                return self._catch_up(to, thorough)
            except OffsetsGone:
                # A checkpoint took the place of what was about to be read: look again.
                continue
        return self._catch_up(to, thorough)

    def _catch_up(self, to: int, thorough: bool) -> Fault | None:
        position = self._projection.position()
        self._seen = position if position.topic_id else self._seen
        topic = self._log.topic()
        if topic is None:
            return Fault(Reason.MISSING) if self._seen.topic_id else None
        start, end = self._log.bounds()
        if position.topic_id == topic.topic_id and end < position.next_offset:
            return Fault(Reason.SHORTER, f"it ends at {end}, applied up to {position.next_offset}")
        end = min(end, max(start, to, self._log.stable_end()))
        fault = self._apply(position, topic, start, end, thorough)
        if fault is None and self._projection.has_newer():
            return Fault(Reason.NEWER)
        return fault

    def _apply(self, position: Position, topic: Topic, start: int, end: int, thorough: bool) -> Fault | None:
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
        records = self._log.read(position.next_offset, end)
        fault = self._newest_fault(position, start) if thorough and not records else None
        if fault is not None or end <= position.next_offset:
            return fault
        return self._projection.apply(records, topic_id=topic.topic_id, start=start, end=end)

    def _newest_fault(self, position: Position, start: int) -> Fault | None:
        """Whether the newest applied command is still there, unless a checkpoint has taken its place.

        What follows it names its hash, so this is to be asked only where nothing does.
        """
        end, back = position.next_offset, _LAST_OFFSETS
        if not position.head.hash or start >= end:
            return None
        records: list[Record] = []
        at = end
        while at > start and not records:
            # Behind the command there may be any number of transactions that failed.
            at, back = max(start, end - back), back * 8
            records = self._log.read(at, end)
        if records and hash_of(records[-1].value) == position.head.hash:
            return None
        return Fault(Reason.REPLACED, f"the newest command before offset {end} was not applied here")

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
