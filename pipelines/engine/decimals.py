"""Sums of decimals: exact, and an error where the digits of their type do not suffice, never null.

    rows one by one    columns as whole numbers of Python's own, and back
    a batch's sum      Spark adds up two halves of every amount: each has room for ten digits more
    with the state     Arrow adds the halves and the stored sum, in 256 bits

Spark's own `+` of two decimals of 38 digits rounds the last one away. Its `sum` does not, but is null if that of one part
of the input has too many digits, whatever the other parts take away.

A decimal is its unscaled number: 16 bytes, little-endian, two's complement. -1.25 with two places is -125.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.sql.types import PRECISION_MAX

_WIDTH = 16
_LOW = 2**64
# Digits of the lower half of an amount. The upper one has 18, which are whole numbers of 64 bits.
_LOWER_DIGITS = 20
# Of sums on the way: 10 billion amounts of 38 digits, and more.
_DIGITS = 60


def unscaled(array: pa.Array, null: int) -> npt.NDArray[Any]:
    """The unscaled numbers as objects, `null` where there is none."""
    raw = np.frombuffer(array.buffers()[1] or b"", dtype="<u8,<i8")[array.offset : array.offset + len(array)]
    numbers = raw["f1"].astype(object) * _LOW + raw["f0"].astype(object)
    if array.null_count:
        numbers[array.is_null().to_numpy(zero_copy_only=False)] = null
    found: npt.NDArray[Any] = numbers
    return found


def from_unscaled(numbers: npt.NDArray[Any], nulls: npt.NDArray[np.bool_], kind: pa.DataType) -> pa.Array:
    """A column of the numbers, null where `nulls` says so. Raises `OverflowError` of one with too many digits for its type."""
    limit = 10**kind.precision
    numbers = np.where(nulls, 0, numbers)
    if np.any(np.abs(numbers) >= limit):
        raise OverflowError(_too_large(kind))
    raw = b"".join(number.to_bytes(_WIDTH, "little", signed=True) for number in numbers)
    known = np.packbits(~nulls, bitorder="little").tobytes()
    return pa.Array.from_buffers(kind, len(numbers), [pa.py_buffer(known), pa.py_buffer(raw)])


def is_halved(kind: pa.DataType) -> bool:
    """Whether amounts are added up in halves: a sum of fewer digits has ten more than what it is of."""
    return bool(kind.precision == PRECISION_MAX)


def halves(argument: str, kind: pa.DataType) -> tuple[str, str]:
    """Spark SQL of the lower and the upper half of an amount, which have its sign."""
    amount, unit = f"CAST({argument} AS DECIMAL({kind.precision}, {kind.scale}))", _unit(kind)
    one = f"CAST('{unit.as_py():f}' AS DECIMAL({unit.type.precision}, {unit.type.scale}))"
    return f"{amount} % {one}", f"CAST({amount} div {one} AS DECIMAL({PRECISION_MAX - _LOWER_DIGITS}, 0))"


def total(old: pa.Array, new: pa.Array, upper: pa.Array | None = None) -> pa.Array:
    """Both sums added, null where both are, of the type of `old`. Where it `is_halved`, `new` is the lower half of a sum.

    Raises `OverflowError` of a total with too many digits for its type.
    """
    kind = old.type
    wide = pa.decimal256(_DIGITS, kind.scale)
    added = new.cast(wide)
    if upper is not None:
        units = pc.multiply(upper.cast(pa.decimal256(upper.type.precision, 0)), _unit(kind))
        added = pc.add(added, units.cast(wide)).cast(wide)
    before = old.cast(wide)
    after = pc.coalesce(pc.add(before, added).cast(wide), added, before)
    try:
        return after.cast(kind)
    except pa.ArrowInvalid as error:
        raise OverflowError(_too_large(kind)) from error


def _unit(kind: pa.DataType) -> pa.Scalar:
    """What the upper half of an amount counts."""
    places = kind.scale - _LOWER_DIGITS
    return pa.scalar(Decimal((0, (1,), -places)), pa.decimal256(max(abs(places), 1 - places), max(places, 0)))


def _too_large(kind: pa.DataType) -> str:
    """What is wrong with a sum that has too many digits for the type."""
    return f"sum does not fit into DECIMAL({kind.precision}, {kind.scale})"
