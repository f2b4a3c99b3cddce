"""JSON objects of one shape as columns, by arithmetic on whole blocks: what programs write is mostly that.

    {"auction":17,"price":250,"note":"late"}
    {"auction":4,"price":99,"note":""}
    └─ piece ─┘  └ piece ─┘   └ piece ┘    └┘     in every record the same bytes: the shape
               └ whole numbers, and text without escapes: what differs

A block's first record says the shape, and each of the others is compared with it, byte for byte, between the places that
its quotation marks and its end give. If one record differs in more than its numbers and texts, the whole block is no
block of one shape: then a reader takes it that knows all of JSON. So nothing is accepted here that is no JSON, and what
is accepted means what any reader of JSON says.

Numbers are read eight digits at a time, of all records at once, as words of the processor.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statestore.columns import spans

Places = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

# Numpy's calls cost the same for a few rows.
ROWS_MIN = 500
_WORD = 8
# More may be too large for 64 bits.
_DIGITS_MAX = 18
_FIELD = re.compile(rb'(\s*"([^"\\\x00-\x1f]*)"\s*:\s*)(?:(-?[0-9]+)|"([^"\\]*)")(\s*)([,}])')
_QUOTE, _MINUS, _ZERO, _SPACE, _ESCAPE = b'"- 0\\'[0], b"-"[0], b"0"[0], b" "[0], b"\\"[0]
_RANGES = {pa.int32(): (-(2**31), 2**31 - 1), pa.int64(): (-(2**63), 2**63 - 1)}
# By count: the last so many bytes of a word, which in memory are its first bits' opposite.
_LAST = np.array([0, *((0xFFFFFFFFFFFFFFFF << 8 * (_WORD - n)) & 0xFFFFFFFFFFFFFFFF for n in range(1, 9))], np.uint64)
_ZEROS, _HIGH, _OVER_NINE = (np.uint64(int.from_bytes([byte] * _WORD)) for byte in (_ZERO, 0x80, 0x80 - 10))


@dataclass(frozen=True)
class Field:
    """One field: the bytes between the field before it and its own, and which quotation mark closes its name.

    A text's piece ends with its opening quotation mark, and the next piece begins with the closing one.
    """

    name: str
    type: pa.DataType
    piece: bytes
    mark: int

    @property
    def is_text(self) -> bool:
        return bool(self.type == pa.string())


@dataclass(frozen=True)
class Shape:
    """What is the same in every record: the fields in their order, and the bytes after the last."""

    fields: tuple[Field, ...]
    end: bytes

    @cached_property
    def marks(self) -> int:
        """How many quotation marks a record has."""
        return sum(4 if field.is_text else 2 for field in self.fields)


def shape_of(value: bytes, types: Mapping[str, pa.DataType]) -> Shape | None:
    """The shape of a record, None where it has none: a field that is not in `types` or comes twice, or is of another kind."""
    if value[:1] != b"{":
        return None
    fields: list[Field] = []
    piece, marks, at, separator = b"{", 0, 1, b","
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
        fields.append(Field(name, kind, piece + before + (b'"' if is_text else b""), marks + 1))
        piece = (b'"' if is_text else b"") + space + separator
        marks += 4 if is_text else 2
        at = found.end()
    return Shape(tuple(fields), piece) if at == len(value) else None


def columns_of(values: pa.BinaryArray, shape: Shape) -> dict[str, pa.Array] | None:
    """The fields of the records by name, None if a record is of another shape. No record is null."""
    block = _Block.of(values)
    if len(block.marks) != len(values) * shape.marks or not block.is_plain(any(f.is_text for f in shape.fields)):
        return None
    marks = block.marks.reshape(len(values), shape.marks)
    places = list(_places(block, shape, marks))
    if len(places) < len(shape.fields):
        return None
    found: dict[str, pa.Array] = {}
    for field, (starts, ends) in zip(shape.fields, places, strict=True):
        column = block.texts(starts, ends) if field.is_text else block.numbers(starts, ends, field.type)
        if column is None:
            return None
        found[field.name] = column
    return found


def _places(block: _Block, shape: Shape, marks: Places) -> Iterator[tuple[Places, Places]]:
    """Where each field begins and ends, as long as every record has the shape."""
    begun: tuple[Field, Places] | None = None
    for field in shape.fields:
        closing = field.piece.index(b'"', field.piece.index(b'"' + field.name.encode() + b'"') + 1)
        starts = marks[:, field.mark] + (len(field.piece) - closing)
        before = starts - len(field.piece)
        if not block.has(field.piece, starts):
            return
        if begun is None:
            if (before != block.starts).any():
                return
        elif begun[0].is_text and (before != marks[:, begun[0].mark + 2]).any():
            return
        else:
            yield begun[1], before
        begun = field, starts
    assert begun is not None
    ends = block.ends - len(shape.end)
    if block.has(shape.end, block.ends) and not (begun[0].is_text and (ends != marks[:, begun[0].mark + 2]).any()):
        yield begun[1], ends


@dataclass(frozen=True)
class _Block:
    """The bytes of all records, one after the other behind eight of no meaning, and where each begins and ends."""

    text: npt.NDArray[np.uint8]
    starts: Places
    ends: Places

    @classmethod
    def of(cls, values: pa.BinaryArray) -> _Block:
        _, raw, data = values.buffers()
        offsets = np.frombuffer(raw, np.int32)[values.offset : values.offset + len(values) + 1].astype(np.int64)
        text = np.empty(_WORD + offsets[-1] - offsets[0], np.uint8)
        text[:_WORD] = _SPACE
        text[_WORD:] = np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]
        offsets += _WORD - offsets[0]
        return cls(text, offsets[:-1], offsets[1:])

    @cached_property
    def marks(self) -> Places:
        """Where the quotation marks are."""
        return np.flatnonzero(self.text == _QUOTE)

    @cached_property
    def words(self) -> Words:
        """The eight bytes that begin at each place."""
        return np.ndarray((len(self.text) - _WORD + 1,), "<u8", self.text, strides=(1,))

    def is_plain(self, with_texts: bool) -> bool:
        """Whether texts are what stands between their quotation marks. Where there are only numbers each byte is looked at."""
        if not with_texts:
            return True
        return bool(
            self.text.tobytes().isascii() and not (self.text < _SPACE).any() and not (self.text == _ESCAPE).any()
        )

    def has(self, piece: bytes, ends: Places) -> bool:
        """Whether these bytes stand before each of these places."""
        if (ends < _WORD + len(piece)).any():
            return False
        for end in range(len(piece), 0, -_WORD):
            part = piece[max(0, end - _WORD) : end]
            wanted = np.uint64(int.from_bytes(part.rjust(_WORD, b"\0"), "little"))
            found = self.words[ends - (len(piece) - end + _WORD)]
            if ((found & _LAST[len(part)]) != wanted).any():
                return False
        return True

    def texts(self, starts: Places, ends: Places) -> pa.StringArray | None:
        """The bytes between, as text."""
        if (ends < starts).any():
            return None
        return spans(pa.py_buffer(self.text), starts, ends, pa.string())

    def numbers(self, starts: Places, ends: Places, kind: pa.DataType) -> pa.Array | None:
        """The numbers between; None if one is none, or may be too large."""
        negative = self.text[np.minimum(starts, len(self.text) - 1)] == _MINUS
        starts = starts + negative
        digits = ends - starts
        most = int(digits.max())
        if digits.min() < 1 or most > _DIGITS_MAX or ((digits > 1) & (self.text[starts] == _ZERO)).any():
            return None
        found = np.zeros(len(starts), np.int64)
        for done in range(0, most, _WORD):
            eight = self._eight_digits(ends - done, digits - done)
            if eight is None:
                return None
            found += eight * 10**done
        found = np.where(negative, -found, found)
        lowest, highest = _RANGES[kind]
        if found.min() < lowest or found.max() > highest:
            return None
        return pa.array(found).cast(kind)

    def _eight_digits(self, ends: Places, digits: Places) -> Places | None:
        """Of the last eight of so many digits before these places, the number; None if they are no digits."""
        words = (self.words[np.maximum(ends - _WORD, 0)] ^ _ZEROS) & _LAST[np.clip(digits, 0, _WORD)]
        if (((words + _OVER_NINE) | words) & _HIGH).any():
            return None
        # Two, four, eight neighbours at a time become one number; the first digit is the lowest byte.
        words = words * np.uint64(10) + (words >> np.uint64(8))
        pairs = np.uint64(0x000000FF000000FF)
        low = (words & pairs) * np.uint64(100 + (1_000_000 << 32))
        high = ((words >> np.uint64(16)) & pairs) * np.uint64(1 + (10_000 << 32))
        return ((low + high) >> np.uint64(32)).astype(np.int64)
