"""Where the versions of a key are, and how a new one finds its place.

The newest version of a key is in the space that has the store's name: time (8 bytes, big-endian), then the value. What
it supersedes moves to a segment, chosen by the time at which the version ceased to be valid (`history` has a row's
bytes). The newest never expires; a segment that ends before stream time less the history holds nothing that may still
be asked for, and is dropped as a whole. A tombstone is never among the newest, where it would stay for ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from statestore.layouts.history import History
from statestore.layouts.segments import Segments
from statestore.layouts.timestamped import pack, unpack

V = TypeVar("V")


@dataclass(frozen=True)
class VersionedRecord(Generic[V]):
    """A value and its validity: from `valid_from_ms`, inclusive, to `valid_to_ms`, exclusive; None for the newest."""

    value: V
    valid_from_ms: int
    valid_to_ms: int | None = None


class Readable(Protocol):
    """What a read needs."""

    def get(self, space: str, key: bytes) -> bytes | None: ...


class Cells(Readable, Protocol):
    """What a put reads and writes: the open transaction, or the batch of a restore."""

    def put(self, space: str, key: bytes, value: bytes | None) -> None: ...

    def drop(self, space: str) -> None: ...


class Timelines:
    """The versions of one store. `known` are the segments that exist for its writer, ascending."""

    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        self.known: tuple[int, ...] = ()

    # Reading.

    def latest(self, cells: Readable, key: bytes) -> VersionedRecord[bytes] | None:
        """The newest version of a key."""
        raw = cells.get(self._segments.store, key)
        return None if raw is None else VersionedRecord(*unpack(raw))

    def superseded_at(
        self, cells: Readable, numbers: tuple[int, ...], key: bytes, as_of_ms: int
    ) -> VersionedRecord[bytes] | None:
        """The version that was valid at a time, among those that are not the newest. `numbers` are segments."""
        for segment in reversed(numbers):
            if segment < self._segments.number(as_of_ms):
                return None
            row = self._row(cells, segment, key)
            if row is None or as_of_ms < row.oldest_ms:
                continue
            return None if row.next_ms <= as_of_ms else _record(row, row.at(as_of_ms))
        return None

    def superseded(self, cells: Readable, numbers: tuple[int, ...], key: bytes) -> Iterator[VersionedRecord[bytes]]:
        """The versions of a key that are not the newest, youngest first."""
        for segment in reversed(numbers):
            row = self._row(cells, segment, key)
            if row is None:
                continue
            for index in range(len(row.versions)):
                record = _record(row, index)
                if record is not None:
                    yield record

    def _row(self, cells: Readable, segment: int, key: bytes) -> History | None:
        raw = cells.get(self._segments.space(segment), key)
        return None if raw is None else History.from_bytes(raw)

    # Writing.

    def drop_expired(self, cells: Cells, stream_time_ms: int) -> None:
        """Drop the segments that the history has left behind."""
        oldest = self._segments.oldest_live(stream_time_ms)
        if not self.known or self.known[0] >= oldest:
            return
        for segment in self.known:
            if segment < oldest:
                cells.drop(self._segments.space(segment))
        self.known = tuple(segment for segment in self.known if segment >= oldest)

    def insert(self, cells: Cells, key: bytes, value: bytes | None, time_ms: int) -> int | None:
        """Add a version, or replace the one of the same time. Gives until when it is valid, None for the newest."""
        latest = self.latest(cells, key)
        if latest is not None and latest.valid_from_ms <= time_ms:
            if latest.valid_from_ms < time_ms:
                self._archive(cells, key, latest.value, latest.valid_from_ms, time_ms)
            self._put_latest(cells, key, value, time_ms)
            return None
        valid_to = None if latest is None else latest.valid_from_ms
        for segment in reversed(self.known):
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
            self._archive(cells, key, value, time_ms, valid_to)
        elif value is not None:
            self._put_latest(cells, key, value, time_ms)
        else:
            self._mark_deleted(cells, key, time_ms)
        return valid_to

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

    def _archive(self, cells: Cells, key: bytes, value: bytes | None, valid_from_ms: int, valid_to_ms: int) -> None:
        segment = self._segments.number(valid_to_ms)
        row = self._row(cells, segment, key)
        if row is None:
            changed = History.of(value, valid_from_ms, valid_to_ms)
        elif row.oldest_ms == valid_to_ms:
            changed = row.with_oldest(valid_from_ms, value)
        else:
            changed = row.with_newest(value, valid_from_ms, valid_to_ms)
        self._put_row(cells, segment, key, changed)

    def _mark_deleted(self, cells: Cells, key: bytes, time_ms: int) -> None:
        segment = self._segments.number(time_ms)
        row = self._row(cells, segment, key)
        if row is None:
            self._put_row(cells, segment, key, History.marker(time_ms))
        elif row.next_ms != time_ms:
            self._put_row(cells, segment, key, row.with_newest(None, row.next_ms, time_ms))

    def _put_latest(self, cells: Cells, key: bytes, value: bytes | None, time_ms: int) -> None:
        cells.put(self._segments.store, key, None if value is None else pack(value, time_ms))

    def _put_row(self, cells: Cells, segment: int, key: bytes, row: History) -> None:
        cells.put(self._segments.space(segment), key, row.to_bytes())
        if segment not in self.known:
            self.known = tuple(sorted((*self.known, segment)))


def _record(row: History, index: int) -> VersionedRecord[bytes] | None:
    valid_from, value = row.versions[index]
    return None if value is None else VersionedRecord(value, valid_from, row.valid_to(index))
