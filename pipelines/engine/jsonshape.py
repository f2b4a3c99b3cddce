"""JSON objects of one shape as columns, by one compiled loop over their bytes: what programs write is mostly that.

    {"auction":17,"price":250,"note":"late"}
    {"auction":4,"price":99,"note":""}
    └─ piece ─┘  └ piece ─┘   └ piece ┘    └┘     in every record the same bytes: the shape
               └ whole numbers, and text without escapes: what differs

One record says the shape, and every other is compared with it byte for byte. Those that differ in more than their numbers
and texts, or have null for a text, are left to a reader that knows all of JSON. So nothing is accepted here that is no
JSON, and what is accepted means what any reader of JSON says.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.engine.spans import Places, between
from statestore.compiled import compiled, fixed, inlined

Ends = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]

# More may be too large for 64 bits.
_DIGITS_MAX = 18
# JSON's white space; that of regular expressions has more.
_S = rb"[ \t\n\r]*"
_FIELD = re.compile(rb'(%b"([^"\\\x00-\x1f]*)"%b:%b)(?:(-?[0-9]+|null)|"([^"\\]*)")(%b)([,}])' % (_S, _S, _S, _S))
_QUOTE, _MINUS, _ZERO, _NINE, _SPACE, _ESCAPE = b'"-09 \\'
_NULL = np.frombuffer(b"null", np.uint8)
_ASCII_MAX = 127
_RANGES = {pa.int32(): (-(2**31), 2**31 - 1), pa.int64(): (-(2**63), 2**63 - 1)}


@dataclass(frozen=True)
class Field:
    """One field, and the bytes between the field before it and its own.

    A text's piece ends with its opening quotation mark, and the next piece begins with the closing one.
    """

    name: str
    type: pa.DataType
    piece: bytes

    @property
    def is_text(self) -> bool:
        return bool(self.type == pa.string())


@dataclass(frozen=True)
class Shape:
    """What is the same in every record: the fields in their order, and the bytes after the last."""

    fields: tuple[Field, ...]
    end: bytes

    @cached_property
    def pieces(self) -> tuple[Bytes, Places]:
        """All pieces in one, the bytes after the last among them, and where each ends behind a 0."""
        pieces = [*(field.piece for field in self.fields), self.end]
        return np.frombuffer(b"".join(pieces), np.uint8), np.cumsum([0, *map(len, pieces)])

    @cached_property
    def texts(self) -> Bools:
        """Which fields are texts."""
        return np.array([field.is_text for field in self.fields], np.bool_)

    @cached_property
    def ranges(self) -> Places:
        """The lowest and highest number of each field; of texts it says nothing."""
        return np.array([_RANGES.get(field.type, (0, 0)) for field in self.fields], np.int64)


def shape_of(value: bytes, types: Mapping[str, pa.DataType]) -> Shape | None:
    """The shape of a record, None where it has none: a field that is not in `types` or comes twice, or is of another kind."""
    if value[:1] != b"{":
        return None
    fields: list[Field] = []
    piece, at, separator = b"{", 1, b","
    while separator == b",":
        found = _FIELD.match(value, at)
        if found is None:
            return None
        before, raw, _, text, space, separator = found.groups()
        name = raw.decode(errors="replace")
        kind = types.get(name)
        is_text = text is not None
        if kind is None or name in {field.name for field in fields} or (kind not in _RANGES and kind != pa.string()):
            return None
        if is_text != (kind == pa.string()) or not raw.isascii():
            return None
        mark = b'"' if is_text else b""
        fields.append(Field(name, kind, piece + before + mark))
        piece = mark + space + separator
        at = found.end()
    return Shape(tuple(fields), piece) if at == len(value) else None


@dataclass(frozen=True)
class Shaped:
    """The fields by name of those records that have the shape, and which records those are not, in their order."""

    columns: dict[str, pa.Array]
    others: Places


def columns_of(values: pa.BinaryArray, shape: Shape) -> Shaped | None:
    """The records as columns; None if most are of another shape. No record is null."""
    count, each = len(values), (len(shape.fields), len(values))
    _, raw, held = values.buffers()
    held = held or pa.py_buffer(b"")
    ends = fixed(np.frombuffer(raw, np.int32)[values.offset : values.offset + count + 1])
    data = fixed(np.frombuffer(held, np.uint8))
    begins, stops, nulls, fits = (
        np.empty(each, np.int64),
        np.empty(each, np.int64),
        np.empty(each, np.bool_),
        np.empty(count, np.bool_),
    )
    ascii_only = _read(data, ends, *shape.pieces, shape.texts, shape.ranges, begins, stops, nulls, fits)
    if 2 * np.count_nonzero(fits) < count or not (ascii_only or _is_utf8(data[ends[0] : ends[-1]])):
        return None
    others = np.flatnonzero(~fits)
    if len(others):
        begins, stops, nulls = begins[:, fits], stops[:, fits], nulls[:, fits]
    columns = {
        field.name: between(held, begins[row], stops[row], field.type)
        if field.is_text
        else pa.array(begins[row], mask=nulls[row] if nulls[row].any() else None).cast(field.type)
        for row, field in enumerate(shape.fields)
    }
    return Shaped(columns, others)


@compiled
def _read(
    data: Bytes,
    ends: Ends,
    pieces: Bytes,
    piece_ends: Places,
    texts: Bools,
    ranges: Places,
    found: Places,
    stops: Places,
    nulls: Bools,
    fits: Bools,
) -> bool:
    """Read all records between `ends`: per field and record the number or whether it is null, or where a text begins and stops.

    `fits` says which records have the shape. Gives whether all texts of those are ASCII.
    """
    highest: Any = 0
    for row in range(len(ends) - 1):
        at, end = int(ends[row]), int(ends[row + 1])
        for field in range(len(texts)):
            at = _behind(data, at, end, pieces[piece_ends[field] : piece_ends[field + 1]])
            if at < 0:
                break
            if texts[field]:
                found[field, row] = at
                while at < end and data[at] != _QUOTE:
                    byte = data[at]
                    if byte < _SPACE or byte == _ESCAPE:
                        break
                    highest |= byte
                    at += 1
                stops[field, row] = at
            else:
                at = _number(data, at, end, ranges[field], found[field], nulls[field], row)
                if at < 0:
                    break
        if at >= 0:
            at = _behind(data, at, end, pieces[piece_ends[len(texts)] :])
        fits[row] = at == end
    return bool(highest <= _ASCII_MAX)


@inlined
def _behind(data: Bytes, at: int, end: int, piece: Bytes) -> int:
    """The place after these bytes, if they stand at `at` and before `end`; else -1."""
    if end - at < len(piece):
        return -1
    for place in range(len(piece)):
        if data[at + place] != piece[place]:
            return -1
    return at + len(piece)


@inlined
def _number(data: Bytes, at: int, end: int, bounds: Places, found: Places, nulls: Bools, row: int) -> int:
    """Note the number at `at`, or that null stands there; gives the place after it, -1 if it is neither or may be too large."""
    negative = at < end and data[at] == _MINUS
    first = at + 1 if negative else at
    place = first
    number: Any = 0
    while place < end and _ZERO <= data[place] <= _NINE:
        number = number * 10 + (data[place] - _ZERO)
        place += 1
    nulls[row] = place == at
    if nulls[row]:
        found[row] = 0
        return _behind(data, at, end, _NULL)
    found[row] = -number if negative else number
    digits = place - first
    if digits < 1 or digits > _DIGITS_MAX or (digits > 1 and data[first] == _ZERO):
        return -1
    return place if bounds[0] <= found[row] <= bounds[1] else -1


def _is_utf8(text: Bytes) -> bool:
    try:
        text.tobytes().decode()
    except UnicodeDecodeError:
        return False
    return True


def ready() -> None:
    """Have the machine code of the loop before anybody waits for it."""
    shape = Shape((Field("n", pa.int64(), b"{"),), b"}")
    columns_of(pa.array([b"{1}"], pa.binary()), shape)
