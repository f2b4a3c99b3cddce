"""The key of a session store's entry, as Kafka Streams stores it and writes it to the changelog.

    key · end of the session, 8 bytes big-endian, ms · start of the session, 8 bytes big-endian, ms

The end comes first because reads ask for sessions that end late enough, and because a session's end names its segment.
"""

from __future__ import annotations

from struct import Struct

from statestore.layouts.bounds import lower_bound, upper_bound
from statestore.windows import MAX_TIME_MS

_SUFFIX = Struct(">qq")
_GREATEST = _SUFFIX.pack(MAX_TIME_MS, MAX_TIME_MS)


def pack(key: bytes, start_ms: int, end_ms: int) -> bytes:
    """The stored key."""
    return key + _SUFFIX.pack(end_ms, start_ms)


def unpack(stored: bytes) -> tuple[bytes, int, int]:
    """Key, start and end of a stored key."""
    end_ms, start_ms = _SUFFIX.unpack_from(stored, len(stored) - _SUFFIX.size)
    return stored[: -_SUFFIX.size], start_ms, end_ms


def key_bounds(key: bytes, earliest_end_ms: int) -> tuple[bytes, bytes]:
    """First and last stored key that one key can have for sessions that end at `earliest_end_ms` or later."""
    return pack(key, 0, earliest_end_ms), key + _GREATEST


def range_bounds(lower: bytes | None, upper: bytes | None) -> tuple[bytes | None, bytes | None]:
    """First and last stored key of all keys between two, both included."""
    return lower_bound(lower), upper_bound(upper, _GREATEST)
