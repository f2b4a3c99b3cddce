"""State columns to bytes and back, a column at a time.

    8 bytes   time, big-endian, milliseconds (the prefix of Kafka Streams' timestamped values); see `record_times`
    1 byte    format, 1
    b bytes   null bits, column i is bit i%8 of byte i//8; set means null
    fixed     each fixed-width column in order, big-endian two's complement or IEEE 754; decimals take 16, little-endian
    lengths   4 bytes, big-endian, for each variable-width column in order
    bytes     the variable-width columns' content in order

A nested value is variable-width: JSON, see `nestedcodec.py`. A null takes its fixed width as zeros, or the length zero. Everything after the time is the changelog record's value.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.engine.nestedcodec import from_bytes, to_bytes
from pipelines.engine.spans import Places, between
from statestore.errors import DataCorrupted, FormatUnsupported, InvalidConfig

FORMAT = 1
_HEAD = 8 + 1
_STATE = pa.binary()
_Bytes = npt.NDArray[np.uint8]


def record_times(times: pa.Int64Array) -> pa.Int64Array:
    """The times of rows as those of their states and records: 1 ms in place of 0.

    Kafka's client takes 0 for the time at which it sends: the changelog would say something else than the store.
    """
    return pc.if_else(pc.equal(times, 0), pa.scalar(1, pa.int64()), times)


@dataclass(frozen=True)
class _Fixed:
    """How a fixed-width type lies in memory (`native`) and in the state (`stored`, one numpy type of the same size)."""

    width: int
    native: str
    stored: str


def _fixed(kind: pa.DataType) -> _Fixed | None:
    if pa.types.is_boolean(kind):
        return _Fixed(1, "u1", "u1")
    if pa.types.is_decimal128(kind):
        return _Fixed(16, "V16", "V16")
    if pa.types.is_date32(kind) or pa.types.is_timestamp(kind) or pa.types.is_primitive(kind):
        width = kind.bit_width // 8
        letter = "f" if pa.types.is_floating(kind) else "i"
        return _Fixed(width, f"<{letter}{width}", f">{letter}{width}")
    if pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_nested(kind):
        return None
    raise InvalidConfig("state column has no codec", type=kind)


class StateCodec:
    """For state columns of the given types, at least one."""

    def __init__(self, types: list[pa.DataType]) -> None:
        self.types = types
        layouts = [_fixed(kind) for kind in types]
        self._null_bytes = (len(types) + 7) // 8
        at = _HEAD + self._null_bytes
        self._fixed: list[tuple[int, int, _Fixed]] = []
        self._variable: list[tuple[int, int]] = []
        for column, layout in enumerate(layouts):
            if layout is not None:
                self._fixed.append((column, at, layout))
                at += layout.width
        for column, layout in enumerate(layouts):
            if layout is None:
                self._variable.append((column, at))
                at += 4
        self.fixed_size = at

    def encode(self, times: pa.Int64Array, columns: list[pa.Array]) -> pa.BinaryArray:
        """One state per row. `times` has no nulls."""
        count = len(times)
        head = np.zeros((count, self.fixed_size), dtype=np.uint8)
        _put(head, 0, times.to_numpy(zero_copy_only=False).astype(">i8"))
        head[:, 8] = FORMAT
        for column, array in enumerate(columns):
            if array.null_count:
                nulls = array.is_null().to_numpy(zero_copy_only=False)
                head[:, _HEAD + column // 8] |= nulls.astype(np.uint8) << np.uint8(column % 8)
        for column, at, layout in self._fixed:
            _put(head, at, _to_stored(columns[column], layout))
        if not self._variable:
            return _rows(head)
        return self._with_variable(head, columns)

    def _with_variable(self, head: _Bytes, columns: list[pa.Array]) -> pa.BinaryArray:
        contents = []
        for column, at in self._variable:
            array = columns[column]
            content = to_bytes(array) if pa.types.is_nested(array.type) else array.cast(_STATE)
            content = content.fill_null(b"") if content.null_count else content
            _put(head, at, pc.binary_length(content).to_numpy().astype(">u4"))
            contents.append(content)
        return pc.binary_join_element_wise(_rows(head), *contents, b"")

    def decode(self, states: pa.BinaryArray) -> tuple[pa.Int64Array, list[pa.Array]]:
        """Times and columns; rows whose state is null are null everywhere. Raises `FormatUnsupported`."""
        present = states.is_valid().to_numpy(zero_copy_only=False)
        starts, sizes, data = _spans(states.drop_null() if states.null_count else states)
        head = self._heads(starts, sizes, data)
        rows = np.cumsum(present) - 1
        times = _take(_from_stored(head, 0, _Fixed(8, "<i8", ">i8"), pa.int64()), rows, present)
        columns: list[pa.Array] = [None] * len(self.types)
        for column, at, layout in self._fixed:
            columns[column] = _from_stored(head, at, layout, self.types[column])
        begins = starts + self.fixed_size
        for column, at in self._variable:
            stops = begins + _get(head, at, 4, ">u4").astype(np.int64)
            if (stops > starts + sizes).any():
                raise DataCorrupted("state is shorter than it says")
            kind = self.types[column]
            if pa.types.is_nested(kind):
                columns[column] = from_bytes(between(data, begins, stops, _STATE), kind)
            else:
                columns[column] = between(data, begins, stops, kind)
            begins = stops
        if len(present) == len(head) and not head[:, _HEAD : _HEAD + self._null_bytes].any():
            return times, columns
        for column in range(len(self.types)):
            nulls = (head[:, _HEAD + column // 8] >> np.uint8(column % 8)) & np.uint8(1)
            known = present.copy()
            known[present] = nulls == 0
            columns[column] = _take(columns[column], rows, known)
        return times, columns

    def _heads(self, starts: Places, sizes: Places, data: pa.Buffer) -> _Bytes:
        """What has the same width in each state. Raises `FormatUnsupported`."""
        count, width = len(starts), self.fixed_size
        if (sizes < width).any():
            raise DataCorrupted("state is too short", bytes=int(sizes.min()))
        if (sizes > width).any():
            heads = between(data, starts, starts + width, _STATE).buffers()[2]
        else:
            # One behind the other.
            heads = data.slice(starts[0] if count else 0, count * width)
        head: _Bytes = np.frombuffer(heads, np.uint8).reshape(count, width)
        if (head[:, 8] != FORMAT).any():
            raise FormatUnsupported("state has another format", found=int(head[:, 8].max()), supported=FORMAT)
        return head


def _put(head: _Bytes, at: int, values: npt.NDArray[np.generic]) -> None:
    width = values.dtype.itemsize
    head[:, at : at + width] = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), width)


def _get(head: _Bytes, at: int, width: int, kind: str) -> npt.NDArray[np.generic]:
    values: npt.NDArray[np.generic] = np.ascontiguousarray(head[:, at : at + width]).view(kind).reshape(-1)
    return values


def _to_stored(array: pa.Array, layout: _Fixed) -> npt.NDArray[np.generic]:
    if pa.types.is_boolean(array.type):
        return array.fill_null(False).to_numpy(zero_copy_only=False).astype("u1")  # type: ignore[no-any-return]
    values = np.frombuffer(array.buffers()[1], dtype=layout.native)[array.offset : array.offset + len(array)]
    if array.null_count:
        values = values.copy()
        values[array.is_null().to_numpy(zero_copy_only=False)] = np.zeros(1, dtype=layout.native)[0]
    return values if layout.native == layout.stored else values.astype(layout.stored)


def _from_stored(head: _Bytes, at: int, layout: _Fixed, kind: pa.DataType) -> pa.Array:
    values = _get(head, at, layout.width, layout.stored)
    if pa.types.is_boolean(kind):
        return pa.array(values.astype(bool), pa.bool_())
    if layout.native != layout.stored:
        values = values.astype(layout.native)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values).tobytes())])


def _take(array: pa.Array, rows: npt.NDArray[np.int64], known: npt.NDArray[np.bool_]) -> pa.Array:
    if known.all() and len(known) == len(array):
        return array
    return array.take(pa.array(np.where(known, rows, 0), mask=~known))


def _spans(array: pa.BinaryArray) -> tuple[Places, Places, pa.Buffer]:
    """Starts and lengths of the elements in the data buffer. None is null."""
    _, ends, data = array.buffers()
    raw = np.frombuffer(ends or bytes(4), dtype=np.int32)
    offsets = raw[array.offset : array.offset + len(array) + 1].astype(np.int64)
    return offsets[:-1], np.diff(offsets), data or pa.py_buffer(b"")


def _rows(head: _Bytes) -> pa.BinaryArray:
    """Each row's bytes."""
    count, width = head.shape
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(width)
    return pa.Array.from_buffers(_STATE, count, [None, pa.py_buffer(offsets), pa.py_buffer(head)])
