"""A window store: for each key and start of a window one value, or every value written if it retains duplicates.

Reads name windows by their start; every interval includes both ends. Kafka Streams' change-logging sits above the
store and sees neither a late write that the store drops nor a deletion that a store with duplicates ignores: both are
in the changelog, and so they are in ours. A restore drops and ignores them again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import ClassVar

from statestore import changelog_topic
from statestore.columns import Columns, Entries
from statestore.context import ChangelogRecord
from statestore.iterator import StoreIterator
from statestore.kinds.base import require_key, require_keys
from statestore.kinds.segmented import Segmented
from statestore.layouts import window as layout
from statestore.layouts.bounds import within
from statestore.spaces.base import Change, ChangeColumns, Changes
from statestore.store import Isolation, TransactionalMechanism
from statestore.windows import MAX_TIME_MS, Windowed, window_end

_SEQUENCE = b"sequence"
_UNCOMMITTED = Isolation.READ_UNCOMMITTED

OneKey = StoreIterator[int, bytes]
ManyKeys = StoreIterator[Windowed[bytes], bytes]


class Window(Segmented):
    """Bytes in windows. `retain_duplicates` keeps all values of a key and start, in the order written."""

    layout: ClassVar[str] = "window/1"
    # key · start · sequence
    placed_at: ClassVar[tuple[int, int | None]] = (-12, -4)

    def __init__(
        self,
        name: str,
        *,
        retention_ms: int,
        window_size_ms: int,
        retain_duplicates: bool = False,
        segment_interval_ms: int | None = None,
        segment_suffix: str = "",
        mechanism: TransactionalMechanism | None = TransactionalMechanism.INDEXED_BATCH,
        persistent: bool = True,
        logged: bool = True,
    ) -> None:
        if window_size_ms < 0:
            raise ValueError(f"window size must not be negative: {window_size_ms} ms")
        if 0 <= retention_ms < window_size_ms:
            raise ValueError(f"retention of {retention_ms} ms must not be shorter than the window, {window_size_ms} ms")
        super().__init__(
            name,
            retention_ms=retention_ms,
            segment_interval_ms=segment_interval_ms,
            segment_suffix=segment_suffix,
            mechanism=mechanism,
            persistent=persistent,
            logged=logged,
        )
        self.window_size_ms = window_size_ms
        self.retain_duplicates = retain_duplicates
        self._sequence = 0

    def _place(self, stored_key: bytes) -> tuple[int, bytes]:
        key, start_ms, _ = layout.unpack(stored_key)
        return start_ms, key

    def changelog_config(self) -> dict[str, str]:
        """Topic settings of the changelog."""
        return changelog_topic.windowed(self.retention_ms, retain_duplicates=self.retain_duplicates)

    # The sequence of a store with duplicates is committed with them, so no write ever takes the key of another.

    def _opened(self) -> None:
        super()._opened()
        if self.retain_duplicates and (self.transactional() or not self._sequence):
            raw = self.transaction.get(self.name, _SEQUENCE)
            self._sequence = 0 if raw is None else int.from_bytes(raw, "big")

    def _sequence_entries(self) -> list[Change]:
        return [(_SEQUENCE, self._sequence.to_bytes(4, "big"))]

    def commit(self, offset: int | None) -> None:
        if self.retain_duplicates:
            self.transaction.put_all(self.name, self._sequence_entries())
        super().commit(offset)

    def _restored(self, records: Sequence[ChangelogRecord]) -> Mapping[str, Changes]:
        changes = super()._restored(records)
        if not self.retain_duplicates or not records:
            return changes
        self._sequence = layout.unpack(records[-1].key)[2]
        return {**changes, self.name: self._sequence_entries()}

    def _loaded(self, records: Columns) -> Mapping[str, Entries]:
        if self.retain_duplicates and len(records):
            self._sequence = layout.unpack(records.keys[-1].as_py())[2]
        return super()._loaded(records)

    def loaded(self, *, offset: int, topic_id: str) -> Mapping[str, Changes]:
        changes = super().loaded(offset=offset, topic_id=topic_id)
        return {**changes, self.name: self._sequence_entries()} if self.retain_duplicates else changes

    # Writing.

    def put(self, key: bytes, value: bytes | None, start_ms: int) -> None:
        """Set the value of a key in the window that begins at `start_ms`; None deletes it.

        A write that comes after the window's expiry is counted in `dropped-records-total`. A store that retains
        duplicates ignores None.
        """
        require_key(key)
        if start_ms < 0:
            raise ValueError(f"a window's start must not be negative: {start_ms} ms")
        stored_key = self._stored_key(key, start_ms)
        self._advance_position()
        if value is not None or not self.retain_duplicates:
            self._write(stored_key, value, start_ms)
        self._log_write(stored_key, value)

    def put_all(self, entries: Iterable[tuple[bytes, bytes | None, int]]) -> None:
        """`put` each (key, value, start) in the order given: faster than one after the other."""
        wanted = list(entries)
        keys, values = [key for key, _, _ in wanted], [value for _, value, _ in wanted]
        starts_ms = [start_ms for _, _, start_ms in wanted]
        require_keys(keys)
        if min(starts_ms, default=0) < 0:
            raise ValueError("a window's start must not be negative")
        writes = ChangeColumns(self._stored_keys(keys, starts_ms), values)
        self._advance_position()
        if self.retain_duplicates and None in values:
            kept = [row for row in zip(writes.keys, values, starts_ms, strict=True) if row[1] is not None]
            self._write_all(ChangeColumns([row[0] for row in kept], [row[1] for row in kept]), [row[2] for row in kept])
        else:
            self._write_all(writes, starts_ms)
        if self._logged:
            for stored_key, value in writes:
                self._log_write(stored_key, value)

    def _stored_keys(self, keys: list[bytes], starts_ms: list[int]) -> list[bytes]:
        if self.retain_duplicates:
            return list(map(self._stored_key, keys, starts_ms))
        return layout.pack_all(keys, starts_ms)

    def _stored_key(self, key: bytes, start_ms: int) -> bytes:
        if self.retain_duplicates:
            self._sequence = layout.next_sequence(self._sequence)
        return layout.pack(key, start_ms, self._sequence)

    def _log_write(self, stored_key: bytes, value: bytes | None) -> None:
        self._log(stored_key, value, self._record_time_ms())

    # Reading.

    def fetch_one(self, key: bytes, start_ms: int, isolation: Isolation = _UNCOMMITTED) -> bytes | None:
        """The value of a key in one window, the last written if there are several; None if it has none or is expired."""
        require_key(key)
        if self.retain_duplicates:
            return next((value for _, value in self.backward_fetch(key, start_ms, start_ms, isolation)), None)
        return self._get(layout.pack(key, start_ms), start_ms, isolation)

    def fetch(self, key: bytes, from_ms: int, to_ms: int, isolation: Isolation = _UNCOMMITTED) -> OneKey:
        """(start, value) of one key for starts between the two, ascending."""
        return self._fetch_key(key, from_ms, to_ms, reverse=False, isolation=isolation)

    def backward_fetch(self, key: bytes, from_ms: int, to_ms: int, isolation: Isolation = _UNCOMMITTED) -> OneKey:
        """`fetch`, descending."""
        return self._fetch_key(key, from_ms, to_ms, reverse=True, isolation=isolation)

    def fetch_range(
        self,
        lower: bytes | None,
        upper: bytes | None,
        from_ms: int,
        to_ms: int,
        isolation: Isolation = _UNCOMMITTED,
    ) -> ManyKeys:
        """Entries of all keys between two, for starts between two; a key of None is an open end."""
        return self._fetch_range(lower, upper, from_ms, to_ms, reverse=False, isolation=isolation)

    def backward_fetch_range(
        self,
        lower: bytes | None,
        upper: bytes | None,
        from_ms: int,
        to_ms: int,
        isolation: Isolation = _UNCOMMITTED,
    ) -> ManyKeys:
        """`fetch_range` in the opposite order."""
        return self._fetch_range(lower, upper, from_ms, to_ms, reverse=True, isolation=isolation)

    def fetch_all(self, from_ms: int, to_ms: int, isolation: Isolation = _UNCOMMITTED) -> ManyKeys:
        """Entries of every key for starts between the two."""
        return self.fetch_range(None, None, from_ms, to_ms, isolation)

    def backward_fetch_all(self, from_ms: int, to_ms: int, isolation: Isolation = _UNCOMMITTED) -> ManyKeys:
        """`fetch_all` in the opposite order."""
        return self.backward_fetch_range(None, None, from_ms, to_ms, isolation)

    def all(self, isolation: Isolation = _UNCOMMITTED) -> ManyKeys:
        """Every entry that is not expired."""
        return self.fetch_all(0, MAX_TIME_MS, isolation)

    def backward_all(self, isolation: Isolation = _UNCOMMITTED) -> ManyKeys:
        """`all` in the opposite order."""
        return self.backward_fetch_all(0, MAX_TIME_MS, isolation)

    def _fetch_key(self, key: bytes, from_ms: int, to_ms: int, *, reverse: bool, isolation: Isolation) -> OneKey:
        require_key(key)
        if to_ms < 0:
            return StoreIterator(iter(()))
        if isolation is Isolation.READ_UNCOMMITTED:
            # As below, but at the cost of what is read alone: it is asked for every record.
            now = self._stream_time(isolation)
            pieces = self._starts_of_key(key, from_ms, to_ms, now, reverse=reverse, isolation=isolation)
        else:
            read = partial(self._starts_of_key, key, from_ms, to_ms, reverse=reverse, isolation=isolation)
            pieces = self._of_one_version(isolation, read)
        return self._iterate(pieces, ends_with_store=True)

    def _starts_of_key(
        self, key: bytes, from_ms: int, to_ms: int, stream_time_ms: int, *, reverse: bool, isolation: Isolation
    ) -> Iterator[list[tuple[int, bytes]]]:
        from_ms, numbers = self._readable(from_ms, to_ms, stream_time_ms)
        bounds = layout.key_bounds(key, from_ms, min(to_ms, MAX_TIME_MS))
        if len(numbers) == 1:
            # The usual case: what there is is read at once.
            few = self.transaction.few(self._segments.space(numbers[0]), *bounds, isolation)
            if few is not None:
                found = layout.starts_of_key(key, few)
                return iter((found[::-1] if reverse else found,))
        pieces = self._pieces(bounds, numbers, one_key=True, reverse=reverse, isolation=isolation)
        return map(partial(layout.starts_of_key, key), pieces)

    def _fetch_range(
        self,
        lower: bytes | None,
        upper: bytes | None,
        from_ms: int,
        to_ms: int,
        *,
        reverse: bool,
        isolation: Isolation,
    ) -> ManyKeys:
        if to_ms < 0 or (lower is not None and upper is not None and lower > upper):
            return StoreIterator(iter(()))
        bounds = layout.range_bounds(lower, upper, min(to_ms, MAX_TIME_MS))
        pieces = self._scan(bounds, from_ms, to_ms, reverse=reverse, isolation=isolation)
        size_ms = self.window_size_ms
        windows = (
            [
                (Windowed(key, start_ms, window_end(start_ms, size_ms)), value)
                for key, start_ms, _, value in piece
                if within(key, lower, upper)
            ]
            for piece in pieces
        )
        return self._iterate(windows, ends_with_store=True)
