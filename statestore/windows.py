"""Windows of time: which windows a record falls into, when one is closed, and how long a store has to keep it.

Pure arithmetic, as Kafka Streams does it. Times are ms since the epoch and not negative. A window begins with its
start and ends before its end; a session contains its end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

MAX_TIME_MS = 2**63 - 1

K = TypeVar("K")


class Windowed(NamedTuple, Generic[K]):
    """A key in one window or session."""

    key: K
    start_ms: int
    end_ms: int


def window_end(start_ms: int, size_ms: int) -> int:
    """The end of a window, never past the largest time."""
    return min(start_ms + size_ms, MAX_TIME_MS)


def _at_least(what: str, value_ms: int, least_ms: int) -> None:
    if value_ms < least_ms:
        raise ValueError(f"{what} must be {least_ms} ms or more: {value_ms} ms")


@dataclass(frozen=True)
class TimeWindows:
    """Windows of one size, a new one every `advance_ms`; `grace_ms` is how late a record may still count."""

    size_ms: int
    advance_ms: int
    grace_ms: int = 0

    def __post_init__(self) -> None:
        _at_least("window size", self.size_ms, 1)
        _at_least("grace", self.grace_ms, 0)
        if not 0 < self.advance_ms <= self.size_ms:
            raise ValueError(f"advance must be 1 to {self.size_ms} ms, the window size: {self.advance_ms} ms")

    def starts(self, time_ms: int) -> range:
        """Starts of the windows that contain a time, ascending."""
        first = max(time_ms - self.size_ms + self.advance_ms, 0) // self.advance_ms * self.advance_ms
        return range(first, time_ms + 1, self.advance_ms)

    def is_closed(self, start_ms: int, stream_time_ms: int) -> bool:
        """Whether a record for the window that begins at `start_ms` comes too late."""
        return window_end(start_ms, self.size_ms) <= stream_time_ms - self.grace_ms

    def store_options(self) -> dict[str, int]:
        """What a store of them is made with, unless told otherwise: it keeps a window as long as that accepts records."""
        return {"window_size_ms": self.size_ms, "retention_ms": self.size_ms + self.grace_ms}

    def check_retention(self, retention_ms: int) -> None:
        """Raise `ValueError` if a store would lose windows that still accept records."""
        _at_least("retention of windows (size and grace)", retention_ms, self.size_ms + self.grace_ms)


@dataclass(frozen=True)
class SessionWindows:
    """Sessions that end after `gap_ms` without a record."""

    gap_ms: int
    grace_ms: int = 0

    def __post_init__(self) -> None:
        _at_least("gap", self.gap_ms, 1)
        _at_least("grace", self.grace_ms, 0)

    def is_closed(self, end_ms: int, stream_time_ms: int) -> bool:
        """Whether a record that made a session end at `end_ms` comes too late."""
        return end_ms < stream_time_ms - self.grace_ms - self.gap_ms

    def store_options(self) -> dict[str, int]:
        """What a store of them is made with, unless told otherwise."""
        return {"retention_ms": self.gap_ms + self.grace_ms}

    def check_retention(self, retention_ms: int) -> None:
        """Raise `ValueError` if a store would lose sessions that still accept records."""
        _at_least("retention of sessions (gap and grace)", retention_ms, self.gap_ms + self.grace_ms)


@dataclass(frozen=True)
class SlidingWindows:
    """Windows around records that are at most `difference_ms` apart."""

    difference_ms: int
    grace_ms: int = 0

    def __post_init__(self) -> None:
        _at_least("time difference", self.difference_ms, 0)
        _at_least("grace", self.grace_ms, 0)

    def store_options(self) -> dict[str, int]:
        """What a store of them is made with, unless told otherwise."""
        return {"window_size_ms": self.difference_ms, "retention_ms": 2 * self.difference_ms + self.grace_ms}

    def check_retention(self, retention_ms: int) -> None:
        """Raise `ValueError` if a store would lose windows that still accept records."""
        _at_least(
            "retention of sliding windows (twice the difference, and grace)",
            retention_ms,
            2 * self.difference_ms + self.grace_ms,
        )


Windows = TimeWindows | SessionWindows | SlidingWindows
