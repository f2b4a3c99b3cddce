"""How typed keys and values become bytes: the formats of Kafka's own serializers, big-endian.

None stays None both ways: it is a missing value, never bytes. Bytes sort like the values for strings (by UTF-8), bytes
and numbers that are not negative; a negative integer sorts after the positive ones.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from statestore.errors import InvalidInput
from statestore.layouts.timestamped import UNKNOWN, pack, unpack

T = TypeVar("T")


@dataclass(frozen=True)
class Serde(Generic[T]):
    """A pair of functions. `name` appears in errors."""

    name: str
    encode: Callable[[T], bytes | None]
    decode: Callable[[bytes], T]

    def serialize(self, value: T | None) -> bytes | None:
        """Bytes of a value. Raises `TypeError` or `ValueError` for one that is not of the type."""
        return None if value is None else self.encode(value)

    def deserialize(self, raw: bytes | None) -> T | None:
        """The value of bytes. Raises `InvalidInput` for bytes that are not of the format."""
        return None if raw is None else self.read(raw)

    def read(self, raw: bytes) -> T:
        """`deserialize` of bytes that are there."""
        try:
            return self.decode(raw)
        except (ValueError, struct.error) as error:
            raise InvalidInput("bytes are not of the serde's format", serde=self.name, bytes=raw.hex()) from error


def _packed(name: str, form: str, accepts: tuple[type, ...]) -> Serde[Any]:
    packer = struct.Struct(form)

    def encode(value: Any) -> bytes:
        if not isinstance(value, accepts) or isinstance(value, bool):
            raise TypeError(f"{name} expected, not {type(value).__name__}")
        try:
            return packer.pack(value)
        except struct.error as error:
            raise ValueError(f"{name} out of range: {value}") from error

    return Serde(name, encode, lambda raw: packer.unpack(raw)[0])


def _bytes(value: bytes) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError(f"bytes expected, not {type(value).__name__}")
    return value


def _text(value: str) -> bytes:
    if not isinstance(value, str):
        raise TypeError(f"string expected, not {type(value).__name__}")
    return value.encode()


INTEGER: Serde[int] = _packed("integer", ">i", (int,))
LONG: Serde[int] = _packed("long", ">q", (int,))
DOUBLE: Serde[float] = _packed("double", ">d", (int, float))
STRING: Serde[str] = Serde("string", _text, lambda raw: raw.decode())
BYTES: Serde[bytes] = Serde("bytes", _bytes, lambda raw: raw)
JSON: Serde[Any] = Serde("json", lambda value: json.dumps(value, separators=(",", ":")).encode(), json.loads)


@dataclass(frozen=True)
class ValueAndTimestamp(Generic[T]):
    """A value and the time in ms of the record it came with; -1 when that is not known."""

    value: T
    timestamp_ms: int


def timestamped(serde: Serde[T]) -> Serde[ValueAndTimestamp[T]]:
    """An 8-byte time, then the value. A value that the inner serde turns into None is a deletion."""

    def encode(value: ValueAndTimestamp[T]) -> bytes | None:
        raw = serde.serialize(value.value)
        return None if raw is None else pack(raw, value.timestamp_ms)

    def decode(raw: bytes) -> ValueAndTimestamp[T]:
        plain, timestamp_ms = unpack(raw)
        return ValueAndTimestamp(serde.decode(plain), timestamp_ms)

    return Serde(f"timestamped {serde.name}", encode, decode)


def without_time(serde: Serde[T]) -> Serde[ValueAndTimestamp[T]]:
    """The value alone: its time is dropped, and -1 when it is read."""
    return Serde(
        f"{serde.name} without time",
        lambda value: serde.serialize(value.value),
        lambda raw: ValueAndTimestamp(serde.decode(raw), UNKNOWN),
    )
