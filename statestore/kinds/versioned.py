"""A key-value store that keeps the versions of a key (KIP-889, KIP-914; range over versions: KIP-968).

The newest version of a key is in the space that has the store's name: time (8 bytes, big-endian), then the value. It
never expires. What it supersedes moves to a segment, a space `<store>.<start of the segment's interval>`, chosen by
the time at which the version ceased to be valid; `history` has the bytes of a row. So a segment that ends before
stream time less the history retention holds nothing that may still be asked for, and is dropped as a whole.

The history retention doubles as grace: an older record is not put. The changelog has every record, the late ones
too, as key, value, time; a restore judges each record by the stream time at its own place in the log.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Final, Protocol

import structlog

from statestore import changelog_topic
from statestore.context import ChangelogRecord
from statestore.kinds.base import Kind, require_key
from statestore.kinds.history import History
from statestore.layouts.segments import Segments
from statestore.spaces.base import Base, Changes
from statestore.store import Isolation, TransactionalMechanism
from statestore.transactions.base import Transaction

NOT_PUT: Final = -(2**63)
"""What `put` gives for a record that is older than the grace allows."""

_TIME = struct.Struct(">q")
_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class VersionedRecord:
    """A value and its validity: from `valid_from_ms`, inclusive, to `valid_to_ms`, exclusive; None for the newest."""

    value: bytes
    valid_from_ms: int
    valid_to_ms: int | None = None


class ResultOrder(Enum):
    """The order of versions in time. ANY is newest first, the cheapest."""

    ANY = "any"
    ASCENDING = "ascending"
    DESCENDING = "descending"


class Readable(Protocol):
    """What a read needs."""

    def get(self, space: str, key: bytes) -> bytes | None: ...


class Cells(Readable, Protocol):
    """What a put reads and writes: the open transaction, or the batch of a restore."""

    def put(self, space: str, key: bytes, value: bytes | None) -> None: ...

    def drop(self, space: str) -> None: ...


def default_segment_interval_ms(history_retention_ms: int) -> int:
    """Kafka Streams' choice: shorter histories have fewer segments."""
    for longest_ms, parts, least_ms in ((60_000, 3, 2_000), (300_000, 5, 20_000), (3_600_000, 12, 60_000)):
        if history_retention_ms <= longest_ms:
            return max(history_retention_ms // parts, least_ms)
    return max(history_retention_ms // 24, 300_000)


class VersionedStore(Kind):
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
        self._segments = Segments(name, history_retention_ms, segment_interval_ms)
        self._known: tuple[int, ...] = ()

    def _opened(self) -> None:
        self._known = self._segment_numbers(Isolation.READ_UNCOMMITTED)

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

    def delete(self, key: bytes, timestamp_ms: int) -> VersionedRecord | None:
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
        self._drop_expired(cells)
        latest = self._latest(cells, key)
        if latest is not None and latest.valid_from_ms <= time_ms:
            if latest.valid_from_ms < time_ms:
                self._archive(cells, key, latest.value, latest.valid_from_ms, time_ms)
            self._put_latest(cells, key, value, time_ms)
            return None
        valid_to = None if latest is None else latest.valid_from_ms
        for segment in reversed(self._known):
            if segment < self._segments.number(time_ms):
                break
            row = self._row(cells, segment, key)
            if row is None:
                continue
            if row.next_ms <= time_ms:
                break
            if row.oldest_ms <= time_ms:
                return self._insert_within(cells, segment, row, key, value, time_ms)
            valid_to = row.oldest_ms
        if valid_to is not None:
            return self._archive(cells, key, value, time_ms, valid_to)
        if value is not None:
            self._put_latest(cells, key, value, time_ms)
        else:
            self._mark_deleted(cells, key, time_ms)
        return None

    def _insert_within(
        self, cells: Cells, segment: int, row: History, key: bytes, value: bytes | None, time_ms: int
    ) -> int:
        index = row.at(time_ms)
        valid_from, superseded = row.versions[index]
        if valid_from == time_ms:
            changed = row.replaced(index, time_ms, value)
        elif self._segments.number(time_ms) == segment:
            changed = row.inserted(index, time_ms, value)
        else:
            # The version ceases to be valid earlier than thought: in an older segment.
            self._archive(cells, key, superseded, valid_from, time_ms)
            changed = row.replaced(index, time_ms, value)
        self._put_row(cells, segment, key, changed)
        return row.valid_to(index)

    def _archive(self, cells: Cells, key: bytes, value: bytes | None, valid_from_ms: int, valid_to_ms: int) -> int:
        segment = self._segments.number(valid_to_ms)
        row = self._row(cells, segment, key)
        if row is None:
            changed = History.of(value, valid_from_ms, valid_to_ms)
        elif row.oldest_ms == valid_to_ms:
            changed = row.with_oldest(valid_from_ms, value)
        else:
            changed = row.with_newest(value, valid_from_ms, valid_to_ms)
        self._put_row(cells, segment, key, changed)
        return valid_to_ms

    def _mark_deleted(self, cells: Cells, key: bytes, time_ms: int) -> None:
        # The newest is a tombstone. It must not lie with the newest values, which never expire.
        segment = self._segments.number(time_ms)
        row = self._row(cells, segment, key)
        if row is None:
            self._put_row(cells, segment, key, History.marker(time_ms))
        elif row.next_ms != time_ms:
            self._put_row(cells, segment, key, row.with_newest(None, row.next_ms, time_ms))

    def _put_latest(self, cells: Cells, key: bytes, value: bytes | None, time_ms: int) -> None:
        cells.put(self._name, key, None if value is None else _TIME.pack(time_ms) + value)

    def _put_row(self, cells: Cells, segment: int, key: bytes, row: History) -> None:
        cells.put(self._segments.space(segment), key, row.to_bytes())
        if segment not in self._known:
            self._known = tuple(sorted((*self._known, segment)))

    # Segments.

    def _drop_expired(self, cells: Cells) -> None:
        oldest = self._segments.oldest_live(self._stream_time_ms)
        if not self._known or self._known[0] >= oldest:
            return
        for segment in self._known:
            if segment < oldest:
                cells.drop(self._segments.space(segment))
        self._known = tuple(segment for segment in self._known if segment >= oldest)

    def _segment_numbers(self, isolation: Isolation) -> tuple[int, ...]:
        return tuple(self._segments.numbers(self.transaction.spaces(isolation)))

    # Reads.

    def get(
        self, key: bytes, as_of_ms: int | None = None, isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> VersionedRecord | None:
        """The newest version, or the one valid at `as_of_ms`.

        None if there was none, or if it is older than the history retention and not the newest of its key.
        """
        require_key(key)
        view = _View(self.transaction, isolation)
        latest = self._latest(view, key)
        if as_of_ms is None or (latest is not None and latest.valid_from_ms <= as_of_ms):
            return latest
        if as_of_ms < self._history_start(isolation):
            return None
        for segment in reversed(self._segment_numbers(isolation)):
            if segment < self._segments.number(as_of_ms):
                return None
            row = self._row(view, segment, key)
            if row is None or as_of_ms < row.oldest_ms:
                continue
            return None if row.next_ms <= as_of_ms else _record(row, row.at(as_of_ms))
        return None

    def versions(
        self,
        key: bytes,
        from_ms: int | None = None,
        to_ms: int | None = None,
        order: ResultOrder = ResultOrder.ANY,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
    ) -> Iterator[VersionedRecord]:
        """The versions that were valid at some time between two, both included; None is an open end.

        If the whole interval is older than the history retention, only the newest version can be among them.
        """
        require_key(key)
        found = [
            record
            for record in self._history(key, to_ms, isolation)
            if (to_ms is None or record.valid_from_ms <= to_ms)
            and (from_ms is None or record.valid_to_ms is None or record.valid_to_ms > from_ms)
        ]
        return iter(found[::-1] if order is ResultOrder.ASCENDING else found)

    def _history(self, key: bytes, to_ms: int | None, isolation: Isolation) -> Iterator[VersionedRecord]:
        view = _View(self.transaction, isolation)
        newer_ms = None
        latest = self._latest(view, key)
        if latest is not None:
            newer_ms = latest.valid_from_ms
            yield latest
        if to_ms is not None and to_ms < self._history_start(isolation):
            return
        for segment in reversed(self._segment_numbers(isolation)):
            row = self._row(view, segment, key)
            if row is None:
                continue
            for index in range(len(row.versions)):
                record = _record(row, index)
                # A commit between two reads may have moved a version that was given already.
                if record is not None and (newer_ms is None or record.valid_from_ms < newer_ms):
                    newer_ms = record.valid_from_ms
                    yield record

    def _history_start(self, isolation: Isolation) -> int:
        committed = isolation is Isolation.READ_COMMITTED and self.transactional()
        stream_time = self._committed.stream_time_ms if committed else self._stream_time_ms
        return stream_time - self.history_retention_ms

    def _latest(self, cells: Readable, key: bytes) -> VersionedRecord | None:
        raw = cells.get(self._name, key)
        return None if raw is None else VersionedRecord(raw[_TIME.size :], _TIME.unpack_from(raw)[0])

    def _row(self, cells: Readable, segment: int, key: bytes) -> History | None:
        raw = cells.get(self._segments.space(segment), key)
        return None if raw is None else History.from_bytes(raw)

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
        return {space: changes.items() for space, changes in batch.changes.items()}


class _RestoreBatch:
    """Committed data under the writes of one restore."""

    def __init__(self, base: Base) -> None:
        self._base = base
        self.changes: dict[str, dict[bytes, bytes | None]] = {}

    def get(self, space: str, key: bytes) -> bytes | None:
        changes = self.changes.get(space, {})
        return changes[key] if key in changes else self._base.get(space, key)

    def put(self, space: str, key: bytes, value: bytes | None) -> None:
        self.changes.setdefault(space, {})[key] = value

    def drop(self, space: str) -> None:
        self.changes.pop(space, None)
        self._base.drop(space)


@dataclass(frozen=True)
class _View:
    """The store at one isolation."""

    transaction: Transaction
    isolation: Isolation

    def get(self, space: str, key: bytes) -> bytes | None:
        return self.transaction.get(space, key, self.isolation)


def _record(row: History, index: int) -> VersionedRecord | None:
    valid_from, value = row.versions[index]
    return None if value is None else VersionedRecord(value, valid_from, row.valid_to(index))
