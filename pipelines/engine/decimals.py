"""Decimal columns as whole numbers of Python's own, and back: sums and comparisons of them are exact.

A decimal is its unscaled number: 16 bytes, little-endian, two's complement. -1.25 with two places is -125.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_WIDTH = 16
_LOW = 2**64


def unscaled(array: pa.Array, null: int) -> npt.NDArray[Any]:
    """The unscaled numbers as objects, `null` where there is none."""
    raw = np.frombuffer(array.buffers()[1] or b"", dtype="<u8,<i8")[array.offset : array.offset + len(array)]
    numbers = raw["f1"].astype(object) * _LOW + raw["f0"].astype(object)
    if array.null_count:
        numbers[array.is_null().to_numpy(zero_copy_only=False)] = null
    found: npt.NDArray[Any] = numbers
    return found


def from_unscaled(numbers: npt.NDArray[Any], nulls: npt.NDArray[np.bool_], kind: pa.DataType) -> pa.Array:
    """A column of the numbers; null where `nulls` says so, and where a number has too many digits for its type."""
    limit = 10**kind.precision
    nulls = nulls | np.array([not -limit < number < limit for number in numbers], dtype=np.bool_)
    numbers = np.where(nulls, 0, numbers)
    raw = b"".join(number.to_bytes(_WIDTH, "little", signed=True) for number in numbers)
    known = np.packbits(~nulls, bitorder="little").tobytes()
    return pa.Array.from_buffers(kind, len(numbers), [pa.py_buffer(known), pa.py_buffer(raw)])
