"""The keys of a windowed topic, as Kafka Streams writes them.

    tumbling, hopping   key, start (8 bytes)
    session             key, end (8 bytes), start (8 bytes)

Bounds are ms since 1970, big-endian. The end of a tumbling or hopping window is its start and the size, which the reader
has to know. See WindowKeySchema and SessionKeySchema of kafka-streams.
"""

from __future__ import annotations

from pipelines.plan import Source

SESSION = "session"
_BOUND = 8


def split_key(raw: bytes, source: Source) -> tuple[bytes, int, int]:
    """Key, start and end. Raises ValueError if the bytes are too few."""
    bounds = 2 * _BOUND if source.window_type == SESSION else _BOUND
    if len(raw) < bounds:
        raise ValueError(f"{len(raw)} bytes are no key with a window")
    key, suffix = raw[:-bounds], raw[-bounds:]
    start = _number(suffix[-_BOUND:])
    return key, start, _number(suffix[:_BOUND]) if source.window_type == SESSION else start + source.window_ms


def join_key(key: bytes, start: int, end: int, window_type: str) -> bytes:
    """Inverse of `split_key`."""
    bounds = (end, start) if window_type == SESSION else (start,)
    return key + b"".join(bound.to_bytes(_BOUND, "big", signed=True) for bound in bounds)


def joined_key(expression: str, window_type: str) -> str:
    """The same as Spark SQL, from a row's key and its bounds. Null for a null key."""
    bounds = ("WINDOWEND", "WINDOWSTART") if window_type == SESSION else ("WINDOWSTART",)
    return f"concat({expression}, {', '.join(f'CAST({bound} AS BINARY)' for bound in bounds)})"


def _number(bound: bytes) -> int:
    return int.from_bytes(bound, "big", signed=True)
