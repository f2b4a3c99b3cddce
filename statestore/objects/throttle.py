"""A bound on bytes per second over everything that asks it."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock


class Throttle:
    """Lets bytes through at a rate; `bytes_per_s` of 0 is no bound. Clock and sleep are given for tests."""

    def __init__(
        self,
        bytes_per_s: int,
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = bytes_per_s
        self._now = now
        self._sleep = sleep
        self._free_at = 0.0
        self._lock = Lock()

    def __bool__(self) -> bool:
        return self._rate > 0

    def take(self, size: int) -> None:
        """Return when `size` more bytes may pass."""
        if not self._rate:
            return
        with self._lock:
            now = self._now()
            start = max(now, self._free_at)
            self._free_at = start + size / self._rate
        if start > now:
            self._sleep(start - now)
