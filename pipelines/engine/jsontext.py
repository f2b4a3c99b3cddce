"""JSON texts of columns, byte for byte as Spark's `to_json` writes them: of whole numbers, text and booleans."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statestore.compiled import compiled, fixed, inlined, memcpy
from statestore.errors import InvariantBroken
from statestore.fields import Bools, Ends, Field, column_of, held, nulls_of

Bytes = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int64]

# What Jackson escapes, and how.
_ESCAPES = {code: f"\\u{code:04X}" for code in range(0x20)}
_ESCAPES |= {ord(char): f"\\{letter}" for char, letter in zip('"\\\b\f\n\r\t', '"\\bfnrt', strict=True)}
_MINUS, _ZERO, _NULL, _BACKSLASH = ord("-"), np.uint64(ord("0")), b"null", ord("\\")
# Of 64 bits.
_DIGITS_MAX = 19
_ONE, _TEN = np.uint64(1), np.uint64(10)
_SPECIAL = r'["\\\x00-\x1f]'
# Of each byte how long it is when it is written, and the letter behind the backslash where that is two.
_SIZES = np.array([len(_ESCAPES.get(byte, ".")) for byte in range(256)], np.int64)
_LETTERS = np.array([ord(_ESCAPES.get(byte, "..")[1]) for byte in range(256)], np.uint8)
_HEX = np.frombuffer(b"0123456789ABCDEF", np.uint8)


def json_objects(fields: Sequence[tuple[str, pa.Array]]) -> pa.BinaryArray:
    """One object a row, of these fields in this order, at least one. A null is written as `null`."""
    count = len(fields[0][1])
    columns = [_column(f'{"," if at else "{"}"{name.translate(_ESCAPES)}":', c) for at, (name, c) in enumerate(fields)]
    ends = np.zeros(count + 1, np.int64)
    # Each row's closing brace.
    ends[1:] = 1
    for column in columns:
        column.measure(ends[1:])
    ends = ends.cumsum()
    text, places = np.empty(_size(ends), np.uint8), ends[:-1].copy()
    for column in columns:
        column.write(places, text)
    text[places] = ord("}")
    return column_of(pa.py_buffer(text), ends.astype(np.int32), np.zeros(count, np.bool_))


@dataclass(frozen=True)
class _Wholes:
    """A column of whole numbers as it is written, with what stands in front of each."""

    before: Bytes
    numbers: Places
    nulls: Bools

    def measure(self, sizes: Places) -> None:
        """Add how long each is."""
        _measure_wholes(self.before, self.numbers, self.nulls, sizes)

    def write(self, places: Places, text: Bytes) -> None:
        """Write each at its place, and move the place behind it."""
        _write_wholes(self.before, self.numbers, self.nulls, places, text)


@dataclass(frozen=True)
class _Texts:
    """A column of JSON texts, with what stands in front of each. None is null."""

    before: Bytes
    texts: pa.BinaryArray

    def measure(self, sizes: Places) -> None:
        """Add how long each is."""
        _measure_texts(self.before, held(self.texts), sizes)

    def write(self, places: Places, text: Bytes) -> None:
        """Write each at its place, and move the place behind it."""
        _write_texts(self.before, held(self.texts), places, text)


def _column(before: str, column: pa.Array) -> _Wholes | _Texts:
    piece = fixed(np.frombuffer(before.encode(), np.uint8))
    if not pa.types.is_integer(column.type):
        return _Texts(piece, pc.coalesce(json_texts(column), "null").cast(pa.binary()))
    numbers = column.fill_null(0).cast(pa.int64()).to_numpy()
    return _Wholes(piece, fixed(numbers), fixed(nulls_of(column)))


@inlined
def _magnitude(number: int) -> Any:
    """Without its sign, and without one: the smallest number's is no signed one."""
    return np.uint64(number) if number >= 0 else np.uint64(-(number + 1)) + _ONE


@inlined
def _digits(number: Any) -> int:
    count, limit = 1, _TEN
    while count < _DIGITS_MAX and number >= limit:
        count += 1
        limit *= _TEN
    return count


@compiled
def _measure_wholes(before: Bytes, numbers: Places, nulls: Bools, sizes: Places) -> None:
    for row in range(len(numbers)):
        if nulls[row]:
            sizes[row] += len(before) + len(_NULL)
        else:
            sizes[row] += len(before) + (numbers[row] < 0) + _digits(_magnitude(numbers[row]))


@compiled
def _write_wholes(before: Bytes, numbers: Places, nulls: Bools, places: Places, text: Bytes) -> None:
    start, piece = text.ctypes.data, before.ctypes.data
    for row in range(len(numbers)):
        at = places[row]
        memcpy(start + at, piece, len(before))
        at += len(before)
        if nulls[row]:
            for byte in _NULL:
                text[at] = byte
                at += 1
        else:
            if numbers[row] < 0:
                text[at] = _MINUS
                at += 1
            number = _magnitude(numbers[row])
            end = at + _digits(number)
            for place in range(end - 1, at - 1, -1):
                rest = number // _TEN
                text[place] = _ZERO + number - rest * _TEN
                number = rest
            at = end
        places[row] = at


@compiled
def _measure_texts(before: Bytes, texts: Field, sizes: Places) -> None:
    (_, ends, _) = texts
    for row in range(len(sizes)):
        sizes[row] += len(before) + ends[row + 1] - ends[row]


@compiled
def _write_texts(before: Bytes, texts: Field, places: Places, text: Bytes) -> None:
    (data, ends, _) = texts
    start, piece = text.ctypes.data, before.ctypes.data
    for row in range(len(places)):
        at, size = places[row] + len(before), ends[row + 1] - ends[row]
        memcpy(start + places[row], piece, len(before))
        memcpy(start + at, data + ends[row], size)
        places[row] = at + size


def base64_texts(column: pa.BinaryArray) -> pa.StringArray:
    """Bytes in base64, without line breaks; null where they are null."""
    return pa.array([None if each is None else b64encode(each).decode() for each in column.to_pylist()], pa.string())


def json_texts(column: pa.Array) -> pa.StringArray:
    """The text of every value; null for null."""
    if not pa.types.is_string(column.type):
        return column.cast(pa.string())
    special = pc.match_substring_regex(column, _SPECIAL)
    if special.true_count:
        column = _escaped(column)
    return pc.binary_join_element_wise('"', column, '"', "")


def _escaped(column: pa.StringArray) -> pa.StringArray:
    """The texts as they stand between quotation marks."""
    _, raw, written = column.buffers()
    ends = fixed(np.frombuffer(raw, np.int32)[column.offset : column.offset + len(column) + 1])
    data = fixed(np.frombuffer(written, np.uint8))
    places = np.zeros(len(column) + 1, np.int64)
    _measure_escaped(data, ends, places[1:])
    places = places.cumsum()
    text = np.empty(_size(places), np.uint8)
    _write_escaped(data, ends, text)
    return column_of(pa.py_buffer(text), places.astype(np.int32), nulls_of(column)).view(pa.string())


@compiled
def _measure_escaped(data: Bytes, ends: Ends, sizes: Places) -> None:
    for row in range(len(sizes)):
        for at in range(ends[row], ends[row + 1]):
            sizes[row] += _SIZES[data[at]]


@compiled
def _write_escaped(data: Bytes, ends: Ends, text: Bytes) -> None:
    """All texts, one after the other."""
    to = 0
    for at in range(ends[0], ends[-1]):
        byte = data[at]
        size = _SIZES[byte]
        if size == 1:
            text[to] = byte
        else:
            text[to], text[to + 1] = _BACKSLASH, _LETTERS[byte]
            if size > 2:  # \u and four digits
                text[to + 2] = text[to + 3] = _HEX[0]
                text[to + 4], text[to + 5] = _HEX[byte >> 4], _HEX[byte & 15]
        to += size


def _size(places: Places) -> int:
    """How many bytes end at the last of these places. Raises `InvariantBroken` if a column cannot hold them."""
    size = int(places[-1])
    if size > np.iinfo(np.int32).max:
        raise InvariantBroken("results are larger than a column can hold", bytes=size)
    return size


def ready() -> None:
    """Have the machine code of all loops."""
    json_objects([("n", pa.array([1])), ("t", pa.array(['"']))])
