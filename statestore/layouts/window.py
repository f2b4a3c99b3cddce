"""The key of a window store's entry, as Kafka Streams stores it and writes it to the changelog.

    key · start of the window, 8 bytes big-endian, ms · sequence, 4 bytes big-endian

The sequence is 0 in a store that keeps one value per key and window. In a store that retains duplicates it counts the
store's writes and wraps after 31 bits, so every write has a key of its own. Times are not negative; with that, the
bytes of one key's entries sort by time.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import add
from struct import Struct

from statestore.layouts.bounds import lower_bound, upper_bound
from statestore.store import Entry

MAX_SEQUENCE = 0x7FFF_FFFF
_SUFFIX = Struct(">qi")
_START = Struct(">q")


def pack(key: bytes, start_ms: int, sequence: int = 0) -> bytes:
    """The stored key."""
    return key + _SUFFIX.pack(start_ms, sequence)


def pack_all(keys: Iterable[bytes], starts_ms: list[int]) -> list[bytes]:
    """`pack` of each, as many have the same start."""
    suffixes = {start_ms: _SUFFIX.pack(start_ms, 0) for start_ms in set(starts_ms)}
    return list(map(add, keys, map(suffixes.__getitem__, starts_ms)))


def unpack(stored: bytes) -> tuple[bytes, int, int]:
    """Key, start and sequence of a stored key."""
    start_ms, sequence = _SUFFIX.unpack_from(stored, len(stored) - _SUFFIX.size)
    return stored[: -_SUFFIX.size], start_ms, sequence


def starts_of_key(key: bytes, entries: list[Entry]) -> list[tuple[int, bytes]]:
    """Start and value of those entries that are of the key; all of them lie within its `key_bounds`."""
    # Whatever lies there begins with the key, so it is another's only if it is longer.
    size, at, start = len(key) + _SUFFIX.size, len(key), _START.unpack_from
    return [(start(stored, at)[0], value) for stored, value in entries if len(stored) == size]


def next_sequence(sequence: int) -> int:
    """The sequence of the write after the one that had `sequence`."""
    return (sequence + 1) & MAX_SEQUENCE


def key_bounds(key: bytes, from_ms: int, to_ms: int) -> tuple[bytes, bytes]:
    """First and last stored key that one key can have between two starts, both included."""
    return key + _SUFFIX.pack(from_ms, 0), key + _SUFFIX.pack(to_ms, MAX_SEQUENCE)


def range_bounds(lower: bytes | None, upper: bytes | None, to_ms: int) -> tuple[bytes | None, bytes | None]:
    """First and last stored key of all keys between two, both included, for starts up to `to_ms`."""
    return lower_bound(lower), upper_bound(upper, _SUFFIX.pack(to_ms, MAX_SEQUENCE))
