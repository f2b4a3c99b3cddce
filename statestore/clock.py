"""Wall time, as records and manifests carry it, and how long ago something was."""

from __future__ import annotations

import time


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def up_ms() -> int:
    """Milliseconds since the machine's start, those included in which it slept: the monotonic clock stands still then."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


class Moment:
    """The time at which it is made, by both clocks.

    A virtual machine's own clock stands still while it is paused, and its wall clock is put right afterwards; that one may
    be put back as well. So the larger difference counts: who must not do something too late does it too early at worst.
    """

    def __init__(self) -> None:
        self.at_ms = now_ms()
        self._up_ms = up_ms()

    def age_s(self) -> float:
        """Seconds since then."""
        return max(now_ms() - self.at_ms, up_ms() - self._up_ms) / 1000
