"""A store that keeps every value of a key, in the order of the puts: the side buffer of an outer stream-stream join.

The stored value is the list of the key's values, and so is the changelog's, as Kafka Streams' list serde writes it
for values of varying size: 1 (one byte) · number of values (4) · { length (4) · value }, big-endian. A put appends, a
put of None deletes the whole list; reads give the values one by one.
"""

from __future__ import annotations

import struct
from typing import ClassVar

from statestore.errors import DataCorrupted
from statestore.iterator import StoreIterator, in_pieces
from statestore.kinds.base import Kind, require_key
from statestore.store import Isolation

_VARIABLE_SIZE = b"\x01"
_INT = struct.Struct(">i")


def pack_values(values: list[bytes]) -> bytes:
    """A list of values as one."""
    parts = [_VARIABLE_SIZE, _INT.pack(len(values))]
    for value in values:
        parts += [_INT.pack(len(value)), value]
    return b"".join(parts)


def unpack_values(raw: bytes) -> list[bytes]:
    """Reads what `pack_values` wrote. Raises `DataCorrupted` for anything else."""
    if raw[:1] != _VARIABLE_SIZE:
        raise DataCorrupted("not a list of values", starts_with=raw[:1].hex())
    values, at = [], 1 + _INT.size
    try:
        for _ in range(_INT.unpack_from(raw, 1)[0]):
            (size,) = _INT.unpack_from(raw, at)
            values.append(raw[at + _INT.size : at + _INT.size + size])
            at += _INT.size + size
    except struct.error as error:
        raise DataCorrupted("a list of values is cut off", bytes=len(raw)) from error
    if at != len(raw):
        raise DataCorrupted("a list of values has the wrong length", bytes=len(raw), expected=at)
    return values


class ListValue(Kind):
    """Keys to lists of values. It has no range, no delete and no put if absent, as Kafka Streams' has none."""

    layout: ClassVar[str] = "list/1"
    loads: ClassVar[bool] = True

    def put(self, key: bytes, value: bytes | None) -> None:
        """Append a value to those of the key; None removes them all."""
        require_key(key)
        packed = None if value is None else pack_values([*self.get(key), value])
        self.transaction.put(self._name, key, packed)
        self._advance_position()
        self._log(key, packed, self._record_time_ms())

    def get(self, key: bytes, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> list[bytes]:
        """The values of a key in the order of their puts; empty if there are none."""
        require_key(key)
        raw = self.transaction.get(self._name, key, isolation)
        return [] if raw is None else unpack_values(raw)

    def all(self, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> StoreIterator[bytes, bytes]:
        """Each value with its key, keys ascending, values of a key in the order of their puts."""
        lists = self.transaction.scan(self._name, isolation=isolation)
        return self._iterate(in_pieces((key, value) for key, raw in lists for value in unpack_values(raw)))
