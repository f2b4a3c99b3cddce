"""What window and session stores share: entries in segments by time, expiry, lateness, reads over segments.

Each entry belongs to one time, and its segment is a space of its own. When stream time moves on, segments that are
dead by it are dropped, staged in the open transaction like any other write. Kafka Streams' two backings differ in three
ways, and so do these:

| | persistent | in memory |
|---|---|---|
| too late to be written | when the whole segment is dead | at stream time - retention, exactly |
| order over keys | segment by segment, in one by key, then time | by time, then key |
| a dropped segment under an open iterator | its entries are gone | its entries are still given |

An iterator of the uncommitted version opens a segment when it comes to it, so it sees writes made there until then. One
of the committed version opens all of them at once: it shows one version.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from threading import Lock
from typing import ClassVar
from weakref import WeakSet

import numpy as np
import pyarrow as pa

from statestore.columns import Columns, Entries, integers
from statestore.context import ChangelogRecord
from statestore.iterator import in_pieces
from statestore.kinds.base import Kind
from statestore.layouts.segments import Segments, default_interval_ms
from statestore.spaces.base import Change, ChangeColumns, Changes
from statestore.store import Entry, Isolation, TransactionalMechanism

DROPPED_RECORDS = "dropped-records-total"

Pieces = Iterable[list[Entry]]
OpenSegment = Callable[[int], Pieces]
Placed = tuple[bytes, int, bytes, bytes]
"""Key, time, stored key and value of an entry."""


class SegmentScan:
    """Entries of several segments of a store in memory, one segment after the other."""

    def __init__(self, numbers: Iterable[int], open_segment: OpenSegment, lock: AbstractContextManager[object]) -> None:
        self._waiting = deque(numbers)
        self._open_segment = open_segment
        self._held: dict[int, Pieces] = {}
        self._lock = lock

    def __iter__(self) -> Iterator[list[Entry]]:
        while (segment := self._next()) is not None:
            yield from segment

    def _next(self) -> Pieces | None:
        with self._lock:
            if not self._waiting:
                return None
            number = self._waiting.popleft()
            held = self._held.pop(number, None)
            return self._open_segment(number) if held is None else held

    def hold(self, number: int) -> None:
        """Open a segment now that is still to come, so that what happens to it later does not matter."""
        with self._lock:
            if number in self._waiting and number not in self._held:
                self._held[number] = self._open_segment(number)


class Segmented(Kind):
    """A store whose entries expire by segment. Times and lengths are ms.

    placed_at: where a stored key's 8-byte time is, counted from the key's end.
    """

    loads: ClassVar[bool] = True
    placed_at: ClassVar[tuple[int, int | None]]

    def __init__(
        self,
        name: str,
        *,
        retention_ms: int,
        segment_interval_ms: int | None = None,
        segment_suffix: str = "",
        mechanism: TransactionalMechanism | None = TransactionalMechanism.INDEXED_BATCH,
        persistent: bool = True,
        logged: bool = True,
    ) -> None:
        super().__init__(name, mechanism=mechanism, persistent=persistent, logged=logged)
        interval_ms = default_interval_ms(retention_ms) if segment_interval_ms is None else segment_interval_ms
        # With another interval, segments would be looked for in the wrong places: it is part of the layout.
        self.layout = f"{self.layout}/{interval_ms}"  # type: ignore[misc]
        self.reads_layouts = frozenset(f"{known}/{interval_ms}" for known in self.reads_layouts)  # type: ignore[misc]
        self._segments = Segments(name, retention_ms, interval_ms, segment_suffix)
        self._oldest_live = 0
        # Readers add to it while the writer goes through it.
        self._scans: WeakSet[SegmentScan] = WeakSet()
        self._scanning = Lock()

    @property
    def retention_ms(self) -> int:
        """How long after its time an entry can be read, in stream time."""
        return self._segments.retention_ms

    @abstractmethod
    def _place(self, stored_key: bytes) -> tuple[int, bytes]:
        """Time and key of a stored key. The time decides segment and expiry."""

    # Writing.

    def _opened(self) -> None:
        self._oldest_live = 0
        self._expire(self.transaction.drop)

    def _write(self, stored_key: bytes, value: bytes | None, time_ms: int) -> None:
        """Set or delete one entry, unless it comes too late: then it is counted and nothing is written."""
        self._observe(time_ms)
        if self._is_late(time_ms):
            self.context.count(DROPPED_RECORDS, self.name)
            return
        self._expire(self.transaction.drop)
        self.transaction.put(self._space(time_ms), stored_key, value)

    def _write_all(self, writes: ChangeColumns, times_ms: list[int]) -> None:
        """`_write` of many, with the time of each. What the last of them leaves behind is never written."""
        if not times_ms:
            return
        first, last = min(times_ms), max(times_ms)
        placed: Mapping[int, Changes]
        if self._segments.number(first) == self._segments.number(last) and first >= self._live_from(
            max(last, self._stream_time_ms)
        ):
            # The usual case: one segment takes them all as they are.
            placed, late = {self._segments.number(first): writes}, 0
        else:
            placed, late = self._placed_by_segment(writes, times_ms)
        self._observe(last)
        if late:
            self.context.count(DROPPED_RECORDS, self.name, late)
        self._expire(self.transaction.drop)
        for number, changes in placed.items():
            if number >= self._oldest_live:
                self.transaction.put_all(self._segments.space(number), changes)

    def _placed_by_segment(self, writes: ChangeColumns, times_ms: list[int]) -> tuple[dict[int, list[Change]], int]:
        """The writes of each segment, and how many came too late, by the stream time at which each comes."""
        stream_time_ms, live_ms = self._stream_time_ms, self._live_from(self._stream_time_ms)
        placed: dict[int, list[Change]] = {}
        late = 0
        for change, time_ms in zip(writes, times_ms, strict=True):
            if time_ms > stream_time_ms:
                stream_time_ms, live_ms = time_ms, self._live_from(time_ms)
            if time_ms < live_ms:
                late += 1
                continue
            placed.setdefault(self._segments.number(time_ms), []).append(change)
        return placed, late

    def _live_from(self, stream_time_ms: int) -> int:
        """The first time that is not too late to be written at that stream time."""
        if self._persistent:
            return self._segments.oldest_live(stream_time_ms) * self._segments.interval_ms
        return self._segments.readable_from(stream_time_ms)

    def _space(self, time_ms: int) -> str:
        return self._segments.space(self._segments.number(time_ms))

    def _is_late(self, time_ms: int) -> bool:
        return time_ms < self._live_from(self._stream_time_ms)

    def _expire(self, drop: Callable[[str], None]) -> None:
        """Drop the segments that stream time has left behind."""
        oldest = self._segments.oldest_live(self._stream_time_ms)
        if oldest <= self._oldest_live:
            return
        self._oldest_live = oldest
        for number in self._segments.numbers(self.transaction.spaces()):
            if number < oldest:
                if not self._persistent:
                    self._hold(number)
                drop(self._segments.space(number))

    def _hold(self, number: int) -> None:
        with self._scanning:
            scans = list(self._scans)
        for scan in scans:
            scan.hold(number)

    def _restored(self, records: Sequence[ChangelogRecord]) -> Mapping[str, Changes]:
        """Stream time first moves to the newest of all records, so what is dead by then is never written."""
        for record in records:
            self._observe(self._place(record.key)[0])
        changes: dict[str, list[Change]] = {}
        for record in records:
            time_ms = self._place(record.key)[0]
            if not self._is_late(time_ms):
                changes.setdefault(self._space(time_ms), []).append((record.key, self._restored_value(record)))
        return changes

    def _loaded(self, records: Columns) -> Mapping[str, Entries]:
        """As `_restored`: stream time moves first."""
        times_ms = integers(records.keys, *self.placed_at)
        if not len(times_ms):
            return {}
        self._observe(int(times_ms.max()))
        entries = Entries(records.keys, self._loaded_values(records))
        oldest_ms = self._segments.oldest_live(self._stream_time_ms) * self._segments.interval_ms
        if int(times_ms.min()) >= oldest_ms:
            return self._segments.placed(entries, times_ms)
        kept = np.flatnonzero(times_ms >= oldest_ms)
        return self._segments.placed(entries.taken(kept), times_ms[kept])

    def expired(self, spaces: list[str]) -> list[str]:
        oldest = self._segments.oldest_live(self._stream_time_ms)
        return [self._segments.space(number) for number in self._segments.numbers(spaces) if number < oldest]

    def _loaded_values(self, records: Columns) -> pa.LargeBinaryArray:
        return records.values

    def _restore_ended(self) -> None:
        self._expire(self.transaction.base.drop)

    def _restored_value(self, record: ChangelogRecord) -> bytes | None:
        return record.value

    # Reading.

    def _readable(self, from_ms: int, to_ms: int, stream_time_ms: int) -> tuple[int, range]:
        """The first time that is read of those between two, and the segments that may have entries of them."""
        interval_ms = self._segments.interval_ms
        first = max(from_ms, self._segments.readable_from(stream_time_ms))
        last = min(to_ms, stream_time_ms)
        return first, range(first // interval_ms, last // interval_ms + 1) if first <= last else range(0)

    def _get(self, stored_key: bytes, time_ms: int, isolation: Isolation) -> bytes | None:
        """The value of one entry, if it is not expired."""
        value = self.transaction.get(self._space(time_ms), stored_key, isolation)
        # Stream time comes after the value: by an older one, what a commit changes and lets expire would show.
        return None if time_ms < self._segments.readable_from(self._stream_time(isolation)) else value

    def _scan(
        self,
        bounds: tuple[bytes | None, bytes | None],
        from_ms: int,
        to_ms: int,
        *,
        one_key: bool = False,
        reverse: bool,
        isolation: Isolation,
    ) -> Iterator[list[Placed]]:
        """Entries whose stored key lies in `bounds` and whose time lies between the two, both included.

        What expired before the call is left out; what expires later is not, as far as it is still there.
        """

        def read(stream_time_ms: int) -> Iterator[list[Placed]]:
            first, numbers = self._readable(from_ms, to_ms, stream_time_ms)
            pieces = self._pieces(bounds, numbers, one_key=one_key, reverse=reverse, isolation=isolation)
            return (self._placed(piece, first, to_ms) for piece in pieces)

        return self._of_one_version(isolation, read)

    def _pieces(
        self,
        bounds: tuple[bytes | None, bytes | None],
        numbers: range,
        *,
        one_key: bool,
        reverse: bool,
        isolation: Isolation,
    ) -> Iterator[list[Entry]]:
        """Entries in `bounds` of these segments, piece by piece. No piece is of two segments."""
        transaction = self.transaction
        lower, upper = bounds

        def open_segment(number: int) -> Pieces:
            space = self._segments.space(number)
            if one_key and lower is not None and upper is not None:
                few = transaction.few(space, lower, upper, isolation)
                if few is not None:
                    return (few[::-1] if reverse else few,)
            entries = transaction.scan(space, lower=lower, upper=upper, reverse=reverse, isolation=isolation)
            return in_pieces(entries if one_key or self._persistent else self._by_time(entries, reverse=reverse))

        ordered = numbers[::-1] if reverse else numbers
        if isolation is Isolation.READ_COMMITTED:
            return chain.from_iterable([open_segment(number) for number in ordered])
        if self._persistent:
            return chain.from_iterable(map(open_segment, ordered))
        scan = SegmentScan(ordered, open_segment, self._scan_lock())
        with self._scanning:
            self._scans.add(scan)
        return iter(scan)

    def _scan_lock(self) -> AbstractContextManager[object]:
        """What a scan holds while it opens a segment, and who lets that expire."""
        return Lock()

    def _placed(self, piece: list[Entry], from_ms: int, to_ms: int) -> list[Placed]:
        placed: list[Placed] = []
        for stored_key, value in piece:
            time_ms, key = self._place(stored_key)
            if from_ms <= time_ms <= to_ms:
                placed.append((key, time_ms, stored_key, value))
        return placed

    def _by_time(self, entries: Iterator[Entry], *, reverse: bool) -> Iterator[Entry]:
        return iter(sorted(entries, key=lambda entry: (*self._place(entry[0]), entry[0]), reverse=reverse))
