"""A value with its time: 8 bytes big-endian, ms since the epoch, then the value; as Kafka Streams stores it.

The changelog has the value alone, and its time as the record's. Values from before a store had times get `UNKNOWN`.
"""

from __future__ import annotations

from struct import Struct

UNKNOWN = -1
_TIME = Struct(">q")
SIZE = _TIME.size


def pack(value: bytes, timestamp_ms: int) -> bytes:
    """The stored value."""
    return _TIME.pack(timestamp_ms) + value


def unpack(stored: bytes) -> tuple[bytes, int]:
    """Value and time."""
    return stored[SIZE:], _TIME.unpack_from(stored)[0]
