"""Window and session stores behind the record cache. Their position is that of what was flushed."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

from statestore.cache.stores import Cached
from statestore.kinds.base import require_key
from statestore.kinds.segmented import Segmented
from statestore.kinds.session import Session
from statestore.kinds.timestamped_window import TimestampedWindow
from statestore.kinds.window import Window
from statestore.layouts import session as session_layout
from statestore.layouts import window as window_layout
from statestore.store import Isolation
from statestore.windows import Windowed


class CachedSegmented(Cached, Segmented):
    """Reads reach as far as the cache; what is late is judged when it is flushed, as if it were written then."""

    def _opened(self) -> None:
        super()._opened()
        self._cached_time_ms = self._stream_time_ms

    def _stream_time(self, isolation: Isolation) -> int:
        known = super()._stream_time(isolation)
        committed = isolation is Isolation.READ_COMMITTED and self.transactional()
        return known if committed else max(known, self._cached_time_ms)

    def _scan_lock(self) -> AbstractContextManager[object]:
        # Who opens a segment asks the cache, and a write that lets one expire has its lock.
        return self._cache.lock

    def _cache_put_at(self, stored_key: bytes, value: bytes | None, time_ms: int) -> None:
        self._cache_put(self._space(time_ms), stored_key, value)
        self._cached_time_ms = max(self._cached_time_ms, time_ms)


class CachedWindow(CachedSegmented, Window):
    """A window store behind the cache. It cannot retain duplicates: the cache keeps one value a key."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if self.retain_duplicates:
            raise ValueError("a store that retains duplicates cannot be cached")

    def put(self, key: bytes, value: bytes | None, start_ms: int) -> None:
        require_key(key)
        if start_ms < 0:
            raise ValueError(f"a window's start must not be negative: {start_ms} ms")
        self._cache_put_at(window_layout.pack(key, start_ms), value, start_ms)

    def put_all(self, entries: Iterable[tuple[bytes, bytes | None, int]]) -> None:
        for key, value, start_ms in entries:
            self.put(key, value, start_ms)

    def _put_beneath(self, key: bytes, value: bytes | None) -> None:
        its_key, start_ms, _ = window_layout.unpack(key)
        super().put(its_key, value, start_ms)


class CachedTimestampedWindow(CachedWindow, TimestampedWindow):
    """A timestamped window store behind the cache."""


class CachedSession(CachedSegmented, Session):
    """A session store behind the cache."""

    def put(self, session: Windowed[bytes], value: bytes | None) -> None:
        key, start_ms, end_ms = session
        require_key(key)
        if not 0 <= start_ms <= end_ms:
            raise ValueError(f"a session must start at 0 ms or later and not after its end: {start_ms} to {end_ms} ms")
        self._cache_put_at(session_layout.pack(key, start_ms, end_ms), value, end_ms)

    def _put_beneath(self, key: bytes, value: bytes | None) -> None:
        super().put(Windowed(*session_layout.unpack(key)), value)
