"""Bringing the projection up to the log: what to read, what to apply, and when not to trust the log."""

from __future__ import annotations

from pipelines.metastore.command import CHECKPOINT, VERSION, Unreadable, decode
from pipelines.metastore.degraded import Fault, Reason
from pipelines.metastore.log import CommandLog
from pipelines.metastore.projection import Position, Projection
from statestore.kafka import OffsetsGone, Topic

_TRIES = 3


class Follower:
    """Keeps one projection at one log. Safe to use from several threads and beside other processes."""

    def __init__(self, log: CommandLog, projection: Projection) -> None:
        self._log = log
        self._projection = projection

    def catch_up(self, *, to: int = 0) -> Fault | None:
        """Apply everything that was committed before now; gives what is wrong. Raises `Unavailable` without Kafka.

        It stops at the first open transaction, whose writer may be dead: waiting would take until its time-out. Up to
        offset `to` it waits: a writer knows that what is there has ended or is ending. A log that was never written and
        never seen has nothing to apply and nothing wrong.
        """
        for _ in range(_TRIES - 1):
            try:
                return self._catch_up(to)
            except OffsetsGone:
                # A checkpoint took the place of what was about to be read: look again.
                continue
        return self._catch_up(to)

    def _catch_up(self, to: int) -> Fault | None:
        position = self._projection.position()
        topic = self._log.topic()
        if topic is None:
            return Fault(Reason.MISSING) if position.topic_id else None
        start, end = self._log.bounds()
        if position.topic_id == topic.topic_id and end < position.next_offset:
            return Fault(Reason.SHORTER, f"it ends at {end}, applied up to {position.next_offset}")
        end = min(end, max(start, to, self._log.stable_end()))
        fault = self._apply(position, topic, start, end)
        if fault is None and self._projection.has_newer():
            return Fault(Reason.NEWER)
        return fault

    def _apply(self, position: Position, topic: Topic, start: int, end: int) -> Fault | None:
        if not position.topic_id:
            return self._begin(topic, start, end)
        same = position.topic_id == topic.topic_id
        if not same or position.version != VERSION or position.next_offset < start:
            return self.rebuild(topic, start, end)
        if start > position.start:
            fault = self._head_fault(start, end)
            if fault is not None:
                return fault
            self._projection.found_whole(start)
        if end <= position.next_offset:
            return None
        records = self._log.read(position.next_offset, end)
        return self._projection.apply(records, topic_id=topic.topic_id, start=start, end=end)

    def _begin(self, topic: Topic, start: int, end: int) -> Fault | None:
        """The first look of this projection at a log: of a broken one it takes the part that is whole."""
        records = self._log.read(start, end)
        if start > 0 and not records:
            return Fault(Reason.TRUNCATED, f"it begins and ends at offset {start}")
        return self._projection.apply(records, topic_id=topic.topic_id, start=start, end=end)

    def rebuild(self, topic: Topic, start: int, end: int, *, accept_loss: bool = False) -> Fault | None:
        """Apply the whole log to an empty projection, which takes the old one's place if all is well."""
        records = self._log.read(start, end)
        if start > 0 and not records:
            return Fault(Reason.TRUNCATED, f"it begins and ends at offset {start}")
        return self._projection.rebuild(records, topic_id=topic.topic_id, start=start, end=end, accept_loss=accept_loss)

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
