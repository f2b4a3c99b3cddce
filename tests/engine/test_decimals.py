"""Sums of decimals are exact, whatever the type, and an error where its digits do not suffice; nothing stays null."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.engine.decimals import from_unscaled, is_halved, total, unscaled

KINDS = [pa.decimal128(12, 2), pa.decimal128(37, 9), *(pa.decimal128(38, scale) for scale in (0, 2, 18, 20, 21, 38))]
UNIT = 10**20
TRUE = np.array([True])


def column(number: int | None, kind: pa.DataType) -> pa.Array:
    """A decimal of these digits, of which Python's own arithmetic would keep 28."""
    return pa.array([None if number is None else Decimal(f"{number}e-{kind.scale}")], kind)


def summed(old: int | None, amounts: list[int], kind: pa.DataType) -> int | None:
    """The unscaled total of a stored sum and a batch, as it comes from both."""
    if not is_halved(kind):
        new = column(sum(amounts) if amounts else None, kind)
        found = total(column(old, kind), new)
    else:
        # As `div` and `%` cut: towards zero, so that both halves have the amount's sign.
        signs = [(-1 if amount < 0 else 1, abs(amount)) for amount in amounts]
        lower = sum(sign * (amount % UNIT) for sign, amount in signs) if amounts else None
        upper = sum(sign * (amount // UNIT) for sign, amount in signs) if amounts else None
        found = total(column(old, kind), column(lower, kind), column(upper, pa.decimal128(28, 0)))
    assert found.type == kind
    return None if found.null_count else int(unscaled(found, 0)[0])


@pytest.mark.parametrize("kind", KINDS, ids=str)
@given(data=st.data())
def test_a_total_is_that_of_whole_numbers(kind: pa.DataType, data: st.DataObject) -> None:
    most = 10**kind.precision - 1
    old = data.draw(st.none() | st.integers(-most, most))
    amounts = data.draw(st.lists(st.integers(-most, most), max_size=1 if not is_halved(kind) else 5))
    expected = sum(amounts) + (old or 0)
    if abs(expected) > most:
        with pytest.raises(OverflowError, match="sum does not fit into DECIMAL"):
            summed(old, amounts, kind)
    else:
        assert (None if old is None and not amounts else expected) == summed(old, amounts, kind)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_what_is_too_large_is_no_null(kind: pa.DataType) -> None:
    for number in (10**kind.precision, -(10**kind.precision)):
        with pytest.raises(OverflowError, match="sum does not fit into DECIMAL"):
            from_unscaled(np.array([number], dtype=object), ~TRUE, kind)
        assert [None] == from_unscaled(np.array([number], dtype=object), TRUE, kind).to_pylist()
        fits = from_unscaled(np.array([abs(number) - 1], dtype=object), ~TRUE, kind)
        assert [abs(number) - 1] == unscaled(fits, 0).tolist()
