"""A session store: for each key any number of sessions, each with a first and a last time and a value.

A session is named by key, start and end; to grow one is to remove it and to put a longer one. Reads look for sessions
that end late enough and start early enough, so they find every session that a record may belong to. Every interval
includes both ends. Order: by end.
"""

from __future__ import annotations

from collections.abc import Iterator

from statestore import changelog_topic
from statestore.iterator import StoreIterator
from statestore.kinds.base import require_key
from statestore.kinds.segmented import Placed, Segmented
from statestore.layouts import session as layout
from statestore.layouts.bounds import within
from statestore.store import Isolation
from statestore.windows import MAX_TIME_MS, Windowed

_UNCOMMITTED = Isolation.READ_UNCOMMITTED

Sessions = StoreIterator[Windowed[bytes], bytes]


class Session(Segmented):
    """Bytes in sessions."""

    layout = "session/1"
    # key · end · start
    placed_at = (-16, -8)

    def _place(self, stored_key: bytes) -> tuple[int, bytes]:
        key, _, end_ms = layout.unpack(stored_key)
        return end_ms, key

    def changelog_config(self) -> dict[str, str]:
        """Topic settings of the changelog."""
        return changelog_topic.windowed(self.retention_ms)

    # Writing.

    def put(self, session: Windowed[bytes], value: bytes | None) -> None:
        """Set the value of one session; None removes it.

        A session that ends before what the store keeps is counted in `dropped-records-total`; it is in the changelog
        all the same, as Kafka Streams writes it, and a restore drops it again.
        """
        key, start_ms, end_ms = session
        require_key(key)
        if not 0 <= start_ms <= end_ms:
            raise ValueError(f"a session must start at 0 ms or later and not after its end: {start_ms} to {end_ms} ms")
        stored_key = layout.pack(key, start_ms, end_ms)
        self._advance_position()
        self._write(stored_key, value, end_ms)
        self._log(stored_key, value, self._record_time_ms())

    def remove(self, session: Windowed[bytes]) -> None:
        """Remove one session. Harmless if there is none."""
        self.put(session, None)

    # Reading.

    def fetch_session(
        self, key: bytes, start_ms: int, end_ms: int, isolation: Isolation = _UNCOMMITTED
    ) -> bytes | None:
        """The value of the session with exactly this start and end; None if there is none or it is expired."""
        require_key(key)
        return self._get(layout.pack(key, start_ms, end_ms), end_ms, isolation)

    def find_sessions(
        self, key: bytes, earliest_end_ms: int, latest_start_ms: int, isolation: Isolation = _UNCOMMITTED
    ) -> Sessions:
        """Sessions of one key that end at `earliest_end_ms` or later and start at `latest_start_ms` or earlier."""
        return self._find_key(key, earliest_end_ms, latest_start_ms, reverse=False, isolation=isolation)

    def backward_find_sessions(
        self, key: bytes, earliest_end_ms: int, latest_start_ms: int, isolation: Isolation = _UNCOMMITTED
    ) -> Sessions:
        """`find_sessions`, descending."""
        return self._find_key(key, earliest_end_ms, latest_start_ms, reverse=True, isolation=isolation)

    def find_sessions_range(
        self,
        lower: bytes | None,
        upper: bytes | None,
        earliest_end_ms: int,
        latest_start_ms: int,
        isolation: Isolation = _UNCOMMITTED,
    ) -> Sessions:
        """`find_sessions` for all keys between two; a key of None is an open end."""
        return self._find_range(lower, upper, earliest_end_ms, latest_start_ms, reverse=False, isolation=isolation)

    def backward_find_sessions_range(
        self,
        lower: bytes | None,
        upper: bytes | None,
        earliest_end_ms: int,
        latest_start_ms: int,
        isolation: Isolation = _UNCOMMITTED,
    ) -> Sessions:
        """`find_sessions_range` in the opposite order."""
        return self._find_range(lower, upper, earliest_end_ms, latest_start_ms, reverse=True, isolation=isolation)

    def find_ended(self, earliest_end_ms: int, latest_end_ms: int, isolation: Isolation = _UNCOMMITTED) -> Sessions:
        """Sessions of every key that end between the two. (Kafka Streams answers this in memory only.)"""
        entries = self._scan((None, None), earliest_end_ms, latest_end_ms, reverse=False, isolation=isolation)
        return self._sessions(entries, None, None, MAX_TIME_MS)

    def fetch(self, key: bytes, isolation: Isolation = _UNCOMMITTED) -> Sessions:
        """Every session of one key."""
        return self.find_sessions(key, 0, MAX_TIME_MS, isolation)

    def backward_fetch(self, key: bytes, isolation: Isolation = _UNCOMMITTED) -> Sessions:
        """`fetch`, descending."""
        return self.backward_find_sessions(key, 0, MAX_TIME_MS, isolation)

    def fetch_range(self, lower: bytes | None, upper: bytes | None, isolation: Isolation = _UNCOMMITTED) -> Sessions:
        """Every session of all keys between two; None is an open end."""
        return self.find_sessions_range(lower, upper, 0, MAX_TIME_MS, isolation)

    def backward_fetch_range(
        self, lower: bytes | None, upper: bytes | None, isolation: Isolation = _UNCOMMITTED
    ) -> Sessions:
        """`fetch_range` in the opposite order."""
        return self.backward_find_sessions_range(lower, upper, 0, MAX_TIME_MS, isolation)

    def _find_key(
        self, key: bytes, earliest_end_ms: int, latest_start_ms: int, *, reverse: bool, isolation: Isolation
    ) -> Sessions:
        require_key(key)
        bounds = layout.key_bounds(key, min(max(earliest_end_ms, 0), MAX_TIME_MS))
        entries = self._scan(bounds, earliest_end_ms, MAX_TIME_MS, one_key=True, reverse=reverse, isolation=isolation)
        return self._sessions(entries, key, key, latest_start_ms)

    def _find_range(
        self,
        lower: bytes | None,
        upper: bytes | None,
        earliest_end_ms: int,
        latest_start_ms: int,
        *,
        reverse: bool,
        isolation: Isolation,
    ) -> Sessions:
        if lower is not None and upper is not None and lower > upper:
            return StoreIterator(iter(()))
        bounds = layout.range_bounds(lower, upper)
        entries = self._scan(bounds, earliest_end_ms, MAX_TIME_MS, reverse=reverse, isolation=isolation)
        return self._sessions(entries, lower, upper, latest_start_ms)

    def _sessions(
        self,
        pieces: Iterator[list[Placed]],
        lower: bytes | None,
        upper: bytes | None,
        latest_start_ms: int,
    ) -> Sessions:
        found = ([(Windowed(*layout.unpack(stored)), value) for _, _, stored, value in piece] for piece in pieces)
        sessions = (
            [
                (session, value)
                for session, value in piece
                if session.start_ms <= latest_start_ms and within(session.key, lower, upper)
            ]
            for piece in found
        )
        return self._iterate(sessions, ends_with_store=True)
