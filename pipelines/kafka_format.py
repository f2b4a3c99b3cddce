"""The KAFKA format of one value, as Kafka's own serializers write it.

    INT      4 bytes, two's complement, the highest first
    BIGINT   8 bytes, the same
    DOUBLE   8 bytes, IEEE 754, the highest first
    STRING   UTF-8
    BYTES    as they are

See IntegerSerializer, LongSerializer, DoubleSerializer, StringSerializer and BytesSerializer of kafka-clients.
"""

from __future__ import annotations

import struct

from pipelines.sql.types import parse_type

_WIDTHS = {"int": 4, "bigint": 8}
_DOUBLE = struct.Struct(">d")

Plain = str | bytes | int | float


def encode(value: Plain, type_: str) -> bytes:
    """The bytes of a value, or of a number's text, as the plan's `type_`. Raises ValueError if it does not fit."""
    try:
        if type_ in _WIDTHS:
            return int(value).to_bytes(_WIDTHS[type_], "big", signed=True)
        if type_ == "double":
            return _DOUBLE.pack(float(value))
    except (TypeError, OverflowError) as error:
        raise ValueError(str(error)) from error
    return value if isinstance(value, bytes) else str(value).encode()


def decode(raw: bytes, type_: str) -> Plain:
    """The value of the bytes. Raises ValueError if there are too many or too few, or the text is no UTF-8."""
    if type_ == "string":
        return raw.decode()
    if type_ == "bytes":
        return raw
    if type_ == "double" and len(raw) == _DOUBLE.size:
        return float(_DOUBLE.unpack(raw)[0])
    if len(raw) != _WIDTHS.get(type_):
        raise ValueError(f"{len(raw)} bytes are no {parse_type(type_).sql}")
    return int.from_bytes(raw, "big", signed=True)
