"""JSON objects of one shape as columns, by arithmetic on whole blocks: what programs write is mostly that.

    {"auction":17,"price":250,"note":"late"}
    {"auction":4,"price":99,"note":""}
    └─ piece ─┘  └ piece ─┘   └ piece ┘    └┘     in every record the same bytes: the shape
               └ whole numbers, and text without escapes: what differs

One record says the shape, and every other is compared with it, byte for byte, between the places that its quotation marks
and its end give. Those that differ in more than their numbers and texts, or have null for a text, are left to a reader
that knows all of JSON. So nothing is accepted here that is no JSON, and what is accepted means what any reader of JSON says.

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
Bools = npt.NDArray[np.bool_]

# Numpy's calls cost the same for a few rows.
ROWS_MIN = 500
_WORD = 8
# More may be too large for 64 bits.
_DIGITS_MAX = 18
_FIELD = re.compile(rb'(\s*"([^"\\\x00-\x1f]*)"\s*:\s*)(?:(-?[0-9]+|null)|"([^"\\]*)")(\s*)([,}])')
_QUOTE, _MINUS, _ZERO, _SPACE, _ESCAPE = b'"- 0\\'[0], b"-"[0], b"0"[0], b" "[0], b"\\"[0]
_NULL = b"null"
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


@dataclass(frozen=True)
class Shaped:
    """The fields by name of those records that have the shape, and which records those are not, in their order."""

    columns: dict[str, pa.Array]
    others: Places


def columns_of(values: pa.BinaryArray, shape: Shape) -> Shaped | None:
    """The records as columns; None if most are of another shape. No record is null."""
    block = _Block.of(values)
    rows = block.rows_alike(shape)
    if rows is None:
        return None
    if len(rows) < len(values):
        block = block.only(rows)
    marks = block.marks.reshape(len(rows), shape.marks)
    fits = np.ones(len(rows), np.bool_)
    places = list(_places(block, shape, marks, fits))
    numbers = {
        field.name: block.numbers(starts, ends, field.type, fits) for field, starts, ends in places if not field.is_text
    }
    if not _most(fits, len(values)):
        return None
    if fits.all():
        texts = {field.name: block.texts(starts, ends) for field, starts, ends in places if field.is_text}
    else:
        rows, chosen = rows[fits], pa.array(fits)
        numbers = {name: column.filter(chosen) for name, column in numbers.items()}
        texts = {field.name: block.texts(starts[fits], ends[fits]) for field, starts, ends in places if field.is_text}
    return Shaped(numbers | texts, _others(rows, len(values)))


def _most(rows: Bools, count: int) -> bool:
    return int(np.count_nonzero(rows)) * 2 >= count


def _others(rows: Places, count: int) -> Places:
    left = np.ones(count, np.bool_)
    left[rows] = False
    return np.flatnonzero(left)


def _places(block: _Block, shape: Shape, marks: Places, fits: Bools) -> Iterator[tuple[Field, Places, Places]]:
    """Where each field begins and ends; `fits` becomes false for records that have not its piece there."""
    begun: tuple[Field, Places] | None = None
    for field in shape.fields:
        closing = field.piece.index(b'"', field.piece.index(b'"' + field.name.encode() + b'"') + 1)
        starts = marks[:, field.mark] + (len(field.piece) - closing)
        before = starts - len(field.piece)
        fits &= block.has(field.piece, starts)
        if begun is None:
            fits &= before == block.starts
        else:
            if begun[0].is_text:
                fits &= (before == marks[:, begun[0].mark + 2]) & (begun[1] <= before)
            yield *begun, before
        begun = field, starts
    assert begun is not None
    ends = block.ends - len(shape.end)
    fits &= block.has(shape.end, block.ends)
    if begun[0].is_text:
        fits &= (ends == marks[:, begun[0].mark + 2]) & (begun[1] <= ends)
    yield *begun, ends


@dataclass(frozen=True)
class _Block:
    """The bytes of all records, one after the other behind eight of no meaning, and where each begins and ends.

    `marks` is where their quotation marks are. Places that do not come from a record that fits may lie anywhere.
    """

    text: npt.NDArray[np.uint8]
    starts: Places
    ends: Places
    marks: Places

    @classmethod
    def of(cls, values: pa.BinaryArray) -> _Block:
        _, raw, data = values.buffers()
        offsets = np.frombuffer(raw, np.int32)[values.offset : values.offset + len(values) + 1].astype(np.int64)
        text = np.empty(_WORD + offsets[-1] - offsets[0], np.uint8)
        text[:_WORD] = _SPACE
        text[_WORD:] = np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]
        offsets += _WORD - offsets[0]
        return cls(text, offsets[:-1], offsets[1:], np.flatnonzero(text == _QUOTE))

    @cached_property
    def words(self) -> Words:
        """The eight bytes that begin at each place."""
        return np.ndarray((len(self.text) - _WORD + 1,), "<u8", self.text, strides=(1,))

    @cached_property
    def mark_counts(self) -> Places:
        """How many quotation marks each record has."""
        return np.diff(np.searchsorted(self.marks, np.append(self.starts, self.ends[-1:])))

    def rows_alike(self, shape: Shape) -> Places | None:
        """The records that have the shape's number of quotation marks, and texts that are what stands between them.

        None if those are not most. Where there are only numbers, each byte is looked at later.
        """
        count = len(self.starts)
        alike = np.ones(count, np.bool_)
        if any(field.is_text for field in shape.fields):
            if not _is_utf8(self.text):
                return None
            unlike = np.flatnonzero((self.text < _SPACE) | (self.text == _ESCAPE))
            alike[np.searchsorted(self.starts, unlike, side="right") - 1] = False
        if not self._has_marks(shape.marks):
            alike &= self.mark_counts == shape.marks
        return np.flatnonzero(alike) if _most(alike, count) else None

    def _has_marks(self, each: int) -> bool:
        """Whether every record has so many quotation marks."""
        if len(self.marks) != len(self.starts) * each:
            return False
        marks = self.marks.reshape(len(self.starts), each)
        return bool((marks[:, 0] >= self.starts).all() and (marks[:, -1] < self.ends).all())

    def only(self, rows: Places) -> _Block:
        """Some of the records."""
        chosen = np.zeros(len(self.starts), np.bool_)
        chosen[rows] = True
        return _Block(self.text, self.starts[rows], self.ends[rows], self.marks[np.repeat(chosen, self.mark_counts)])

    def has(self, piece: bytes, ends: Places) -> Bools:
        """Whether these bytes stand before each of these places."""
        found: Bools = (ends >= _WORD + len(piece)) & (ends <= len(self.text))
        for end in range(len(piece), 0, -_WORD):
            part = piece[max(0, end - _WORD) : end]
            wanted = np.uint64(int.from_bytes(part.rjust(_WORD, b"\0"), "little"))
            at = np.clip(ends - (len(piece) - end + _WORD), 0, len(self.words) - 1)
            found &= (self.words[at] & _LAST[len(part)]) == wanted
        return found

    def texts(self, starts: Places, ends: Places) -> pa.StringArray:
        """The bytes between, as text. Every record fits."""
        return spans(pa.py_buffer(self.text), starts, ends, pa.string())

    def numbers(self, starts: Places, ends: Places, kind: pa.DataType, fits: Bools) -> pa.Array:
        """The numbers between, or null where that stands there; it does not fit if it is neither, or may be too large."""
        first = np.minimum(starts, len(self.text) - 1)
        negative = self.text[first] == _MINUS
        digits = ends - starts - negative
        leading = self.text[np.minimum(first + negative, len(self.text) - 1)] == _ZERO
        good = (digits >= 1) & (digits <= _DIGITS_MAX) & ~((digits > 1) & leading)
        found = np.zeros(len(starts), np.int64)
        for done in range(0, int(np.clip(digits.max(initial=0), 0, _DIGITS_MAX)), _WORD):
            eight, are_digits = self._eight_digits(ends - done, digits - done)
            found += eight * 10**done
            good &= are_digits
        found = np.where(negative, -found, found)
        lowest, highest = _RANGES[kind]
        good &= (found >= lowest) & (found <= highest)
        if good.all():
            return pa.array(found).cast(kind)
        null = (ends - starts == len(_NULL)) & self.has(_NULL, ends)
        fits &= good | null
        return pa.array(np.where(good, found, 0), mask=null).cast(kind)

    def _eight_digits(self, ends: Places, digits: Places) -> tuple[Places, Bools]:
        """Of the last eight of so many digits before these places, the number, and whether they are digits."""
        at = np.clip(ends - _WORD, 0, len(self.words) - 1)
        words = (self.words[at] ^ _ZEROS) & _LAST[np.clip(digits, 0, _WORD)]
        are_digits = (((words + _OVER_NINE) | words) & _HIGH) == 0
        # Two, four, eight neighbours at a time become one number; the first digit is the lowest byte.
        words = words * np.uint64(10) + (words >> np.uint64(8))
        pairs = np.uint64(0x000000FF000000FF)
        low = (words & pairs) * np.uint64(100 + (1_000_000 << 32))
        high = ((words >> np.uint64(16)) & pairs) * np.uint64(1 + (10_000 << 32))
        return ((low + high) >> np.uint64(32)).astype(np.int64), are_digits


def _is_utf8(text: npt.NDArray[np.uint8]) -> bool:
    raw = text.tobytes()
    if raw.isascii():
        return True
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True
