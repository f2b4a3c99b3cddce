"""A key-value store that keeps the versions of a key (KIP-889, KIP-914; range over versions: KIP-968).

`layouts.timelines` says where versions are. The history retention doubles as grace: an older record is not put. The
changelog has every record, the late ones too, as key, value, time; a restore judges each record by the stream time at
its own place in the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Final

import structlog

from statestore import changelog_topic
from statestore.context import ChangelogRecord
from statestore.kinds.base import Kind, require_key
from statestore.layouts.segments import Segments
from statestore.layouts.timelines import Cells, Timelines, VersionedRecord
from statestore.spaces.base import Base, Changes
from statestore.store import Isolation, TransactionalMechanism
from statestore.transactions.base import Transaction

NOT_PUT: Final = -(2**63)
"""What `put` gives for a record that is older than the grace allows."""

_log = structlog.get_logger(__name__)


class ResultOrder(Enum):
    """The order of versions in time. ANY is newest first, the cheapest."""

    ANY = "any"
    ASCENDING = "ascending"
    DESCENDING = "descending"


def default_segment_interval_ms(history_retention_ms: int) -> int:
    """Kafka Streams' choice: shorter histories have fewer segments."""
    for longest_ms, parts, least_ms in ((60_000, 3, 2_000), (300_000, 5, 20_000), (3_600_000, 12, 60_000)):
        if history_retention_ms <= longest_ms:
            return max(history_retention_ms // parts, least_ms)
    return max(history_retention_ms // 24, 300_000)


class Versioned(Kind):
    """Keys to histories of values. Times are record times in ms; a value of None deletes from its time on."""

    layout: ClassVar[str] = "versioned/1"

    def __init__(
        self,
        name: str,
        *,
        history_retention_ms: int,
        segment_interval_ms: int | None = None,
        mechanism: TransactionalMechanism | None = TransactionalMechanism.INDEXED_BATCH,
        persistent: bool = True,
        logged: bool = True,
    ) -> None:
        super().__init__(name, mechanism=mechanism, persistent=persistent, logged=logged)
        if segment_interval_ms is None:
            segment_interval_ms = default_segment_interval_ms(history_retention_ms)
        self.history_retention_ms = history_retention_ms
        # With another interval, versions would be looked for in the wrong segments: it is part of the layout.
        self.layout = f"{type(self).layout}/{segment_interval_ms}"  # type: ignore[misc]
        self._segments = Segments(name, history_retention_ms, segment_interval_ms)
        self._timelines = Timelines(self._segments)

    def _opened(self) -> None:
        self._timelines.known = tuple(self._segments.numbers(self.transaction.spaces()))

    # Writes.

    def put(self, key: bytes, value: bytes | None, timestamp_ms: int) -> int | None:
        """Add a version; the same time replaces.

        Returns until when it is valid, None if it is the newest, `NOT_PUT` if it is older than stream time less the
        history retention.
        """
        require_key(key)
        transaction = self.transaction
        if self._is_late(timestamp_ms):
            self._count_late(timestamp_ms)
            valid_to: int | None = NOT_PUT
        else:
            self._observe(timestamp_ms)
            valid_to = self._insert(transaction, key, value, timestamp_ms)
            self._advance_position()
        self._log(key, value, timestamp_ms)
        return valid_to

    def delete(self, key: bytes, timestamp_ms: int) -> VersionedRecord[bytes] | None:
        """Put a tombstone. Returns the version that was valid then; None if there was none or it is too late."""
        late = self._is_late(timestamp_ms)
        existing = None if late else self.get(key, timestamp_ms)
        self.put(key, None, timestamp_ms)
        return existing

    def _is_late(self, timestamp_ms: int) -> bool:
        return timestamp_ms < self._stream_time_ms - self.history_retention_ms

    def _count_late(self, timestamp_ms: int) -> None:
        self.context.count("dropped-records-total", self._name)
        _log.warning("late record dropped", store=self._name, time_ms=timestamp_ms, stream_time_ms=self._stream_time_ms)

    def _insert(self, cells: Cells, key: bytes, value: bytes | None, time_ms: int) -> int | None:
        self._timelines.drop_expired(cells, self._stream_time_ms)
        return self._timelines.insert(cells, key, value, time_ms)

    # Reads.

    def get(
        self, key: bytes, as_of_ms: int | None = None, isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> VersionedRecord[bytes] | None:
        """The newest version, or the one valid at `as_of_ms`.

        None if there was none, or if it is older than the history retention and not the newest of its key.
        """
        require_key(key)
        view = _View(self.transaction, isolation)
        if as_of_ms is None:
            return self._timelines.latest(view, key)

        def read(stream_time_ms: int) -> VersionedRecord[bytes] | None:
            latest = self._timelines.latest(view, key)
            if latest is not None and latest.valid_from_ms <= as_of_ms:
                return latest
            if as_of_ms < stream_time_ms - self.history_retention_ms:
                return None
            return self._timelines.superseded_at(view, self._segment_numbers(isolation), key, as_of_ms)

        # A commit between two reads may move the version from one to the other.
        return self._of_one_version(isolation, read)

    def versions(
        self,
        key: bytes,
        from_ms: int | None = None,
        to_ms: int | None = None,
        order: ResultOrder = ResultOrder.ANY,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
    ) -> Iterator[VersionedRecord[bytes]]:
        """The versions that were valid at some time between two, both included; None is an open end.

        If the whole interval is older than the history retention, only the newest version can be among them.
        """
        require_key(key)
        found = [
            record
            for record in self._of_one_version(isolation, lambda now: list(self._history(key, to_ms, now, isolation)))
            if (to_ms is None or record.valid_from_ms <= to_ms)
            and (from_ms is None or record.valid_to_ms is None or record.valid_to_ms > from_ms)
        ]
        return iter(found[::-1] if order is ResultOrder.ASCENDING else found)

    def _history(
        self, key: bytes, to_ms: int | None, stream_time_ms: int, isolation: Isolation
    ) -> Iterator[VersionedRecord[bytes]]:
        view = _View(self.transaction, isolation)
        newer_ms = None
        latest = self._timelines.latest(view, key)
        if latest is not None:
            newer_ms = latest.valid_from_ms
            yield latest
        if to_ms is not None and to_ms < stream_time_ms - self.history_retention_ms:
            return
        for record in self._timelines.superseded(view, self._segment_numbers(isolation), key):
            # A put between two reads, seen without isolation, may have moved a version that was given already.
            if newer_ms is None or record.valid_from_ms < newer_ms:
                newer_ms = record.valid_from_ms
                yield record

    def _segment_numbers(self, isolation: Isolation) -> tuple[int, ...]:
        if isolation is Isolation.READ_UNCOMMITTED:
            return self._timelines.known
        return tuple(self._segments.numbers(self.transaction.spaces(isolation)))

    # The changelog.

    def changelog_config(self) -> dict[str, str]:
        """Topic settings of the changelog."""
        return changelog_topic.versioned(self.history_retention_ms)

    def _restored(self, records: Sequence[ChangelogRecord]) -> Mapping[str, Changes]:
        batch = _RestoreBatch(self.transaction.base)
        for record in records:
            # Late records are in the changelog although they were never put; no metric counts them again.
            if not self._is_late(record.timestamp_ms):
                self._observe(record.timestamp_ms)
                self._insert(batch, record.key, record.value, record.timestamp_ms)
        self._dead = batch.dropped
        return {space: changes.items() for space, changes in batch.changes.items()}

    def _restore_ended(self) -> None:
        for space in self._dead:
            self.transaction.base.drop(space)


class _RestoreBatch:
    """Committed data under the writes of one restore. Dropped spaces go when the writes are in, not before."""

    def __init__(self, base: Base) -> None:
        self._base = base
        self.changes: dict[str, dict[bytes, bytes | None]] = {}
        self.dropped: set[str] = set()

    def get(self, space: str, key: bytes) -> bytes | None:
        changes = self.changes.get(space, {})
        if key in changes or space in self.dropped:
            return changes.get(key)
        return self._base.get(space, key)

    def put(self, space: str, key: bytes, value: bytes | None) -> None:
        self.changes.setdefault(space, {})[key] = value

    def drop(self, space: str) -> None:
        self.changes.pop(space, None)
        self.dropped.add(space)


@dataclass(frozen=True)
class _View:
    """The store at one isolation."""

    transaction: Transaction
    isolation: Isolation

    def get(self, space: str, key: bytes) -> bytes | None:
        return self.transaction.get(space, key, self.isolation)
