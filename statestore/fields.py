"""A column of bytes as compiled loops take it: where it lies, and nothing copied."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statestore.compiled import fixed
from statestore.errors import InvariantBroken

Bools = npt.NDArray[np.bool_]
Ends = npt.NDArray[np.int32]
# One field of some records: where its bytes are, where each ends behind where the first begins, and which are null.
Field = tuple[int, Ends, Bools]

_BINARY = pa.binary()
_NOTHING = pa.py_buffer(b"\0")


def held(column: pa.BinaryArray) -> Field:
    """The column where it lies; to be kept for as long as the field is used. Raises `InvariantBroken` for another type."""
    if column.type != _BINARY:
        raise InvariantBroken("column is not binary", type=column.type)
    _, ends, data = column.buffers()
    # What is empty is somewhere: at address 0 would be null.
    address = data.address if data is not None and data.address else _NOTHING.address
    rows = np.frombuffer(ends, np.int32)[column.offset : column.offset + len(column) + 1]
    return address, fixed(rows), fixed(nulls_of(column))


def column_of(data: pa.Buffer, ends: Ends, nulls: Bools) -> pa.BinaryArray:
    """The column of what a loop has written: its bytes, each end behind the 0 at which the first begins, and nulls."""
    valid = pa.array(~nulls).buffers()[1] if nulls.any() else None
    return pa.Array.from_buffers(_BINARY, len(nulls), [valid, pa.py_buffer(ends), data])


def nulls_of(column: pa.Array) -> Bools:
    """Which values are null."""
    if not column.null_count:
        return np.zeros(len(column), np.bool_)
    bits = np.frombuffer(column.buffers()[0], np.uint8)
    nulls: Bools = np.unpackbits(bits, count=column.offset + len(column), bitorder="little")[column.offset :] == 0
    return nulls
