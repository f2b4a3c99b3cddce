"""The keys of a windowed topic, as Kafka Streams writes them.

    tumbling, hopping   key, start (8 bytes)
    session             key, end (8 bytes), start (8 bytes)

Bounds are ms since 1970, big-endian. The end of a tumbling or hopping window is its start and the size, which the reader
has to know. See WindowKeySchema and SessionKeySchema of kafka-streams.
"""

from __future__ import annotations

from pipelines.plan import Source
from statestore.layouts import session

SESSION = "session"
_BOUND = 8


def split_key(raw: bytes, source: Source) -> tuple[bytes, int, int]:
    """Key, start and end. Raises ValueError if the bytes are too few."""
    bounds = 2 * _BOUND if source.window_type == SESSION else _BOUND
    if len(raw) < bounds:
        raise ValueError(f"{len(raw)} bytes are no key with a window")
    if source.window_type == SESSION:
        return session.unpack(raw)
    start = int.from_bytes(raw[-_BOUND:], "big", signed=True)
    return raw[:-_BOUND], start, start + source.window_ms


def join_key(key: bytes, start: int, end: int, window_type: str) -> bytes:
    """Inverse of `split_key`."""
    if window_type == SESSION:
        return session.pack(key, start, end)
    return key + start.to_bytes(_BOUND, "big", signed=True)


def joined_key(expression: str, window_type: str) -> str:
    """The same as Spark SQL, from a row's key and its bounds. Null for a null key."""
    bounds = ("WINDOWEND", "WINDOWSTART") if window_type == SESSION else ("WINDOWSTART",)
    return f"concat({expression}, {', '.join(f'CAST({bound} AS BINARY)' for bound in bounds)})"
