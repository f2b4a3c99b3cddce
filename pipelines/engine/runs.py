"""Running aggregates: rows of one task grouped into runs, and what each aggregate is after every row of its run.

    slot   0     1    2    3     4    5    6
           head  row  row  row | head row  row      runs lie side by side; a head is what the run began with
           old   v0   v2   v5  | old  v1   v3       rows of a run stay in their order

An operation fills the slots of its rows from values and the slots of the heads from the stored state, then accumulates
run by run; a slot then holds the state after its row, and the slot before it what was. Additions happen one after the
other, exactly as one by one, so where a batch ends changes no result, not even the last bit of a double.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.engine.decimals import from_unscaled, unscaled
from statestore.errors import InvalidConfig

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Values = npt.NDArray[Any]
# With so few runs left, one call a run is cheaper than one call a row of the longest.
_FEW = 64


class Runs:
    """`run_of` gives the run of each row, numbers from 0 on without gaps."""

    def __init__(self, run_of: Ints, count: int) -> None:
        self.count = count
        order = np.argsort(run_of, kind="stable")
        self.lengths = np.bincount(run_of, minlength=count) + 1
        self.heads: Ints = np.cumsum(self.lengths) - self.lengths
        self.slots: Ints = np.empty(len(run_of), dtype=np.int64)
        self.slots[order] = np.arange(len(run_of)) + run_of[order] + 1
        self.size = len(run_of) + count

    @property
    def ends(self) -> Ints:
        """The slot of each run's last row."""
        return self.heads + self.lengths - 1

    def spread(self, heads: Values, rows: Values) -> Values:
        """Slots filled from both."""
        filled = np.empty(self.size, dtype=rows.dtype)
        filled[self.heads] = heads
        filled[self.slots] = rows
        return filled

    def sums(self, slots: Ints) -> Ints:
        """Running sums of whole numbers, which wrap around as Java's do."""
        with np.errstate(over="ignore"):
            totals = np.cumsum(slots)
            before = totals[self.heads] - slots[self.heads]
            return totals - np.repeat(before, self.lengths)

    def known(self, slots: Bools) -> Bools:
        """Whether any slot of the run has been true so far."""
        return self.sums(slots.astype(np.int64)) > 0

    def newest(self, slots: Bools) -> Ints:
        """The newest true slot of the run so far; -1 before the first."""
        at = np.maximum.accumulate(np.where(slots, np.arange(self.size), -1))
        return np.where(at >= np.repeat(self.heads, self.lengths), at, -1)

    def accumulate(self, ufunc: np.ufunc, slots: Values) -> Values:
        """Accumulate within each run, in place: all runs at once, row by row, until only few long ones are left."""
        by_length = np.argsort(-self.lengths, kind="stable")
        heads, lengths = self.heads[by_length], self.lengths[by_length]
        row = 1
        while (going := int(np.searchsorted(-lengths, -row, side="left"))) > _FEW:
            at = heads[:going] + row
            slots[at] = ufunc(slots[at - 1], slots[at])
            row += 1
        for head, length in zip(heads[:going], lengths[:going], strict=True):
            part = slots[head + row - 1 : head + length]
            part[:] = ufunc.accumulate(part)
        return slots


def running(
    operation: str, runs: Runs, heads: pa.Array, rows: pa.Array | None, *, half: Bools | None = None
) -> pa.Array:
    """The operation's result in every slot, of the type of `heads`; null while there is none.

    `heads` are the stored parts, one a run; `rows` the arguments, one a row: for `count` how much each counts, and for
    `count_all` the same, or none if each counts 1. Raises `OverflowError` of a decimal sum that is too large after a
    row, unless that is one of `half`, behind which nobody asks for the sum: there a decimal one is null.
    """
    match operation:
        case "count_all" | "count":
            return _counts(runs, heads, rows)
        case "sum":
            return _sums(runs, heads, rows, half)
        case "min":
            return _extremes(runs, heads, rows, np.fmin)
        case "max":
            return _extremes(runs, heads, rows, np.maximum)
        case other:
            raise InvalidConfig("plan has an unknown aggregate", function=other)


def by_offset(runs: Runs, heads: pa.Array, rows: pa.Array, *, seen: pa.BooleanArray | None, latest: bool) -> pa.Array:
    """The newest or the oldest value so far, of any type.

    With `seen`, whether a run had rows before, nulls are values; without, they are passed over.
    """
    values = pa.concat_arrays([heads, rows])
    place = runs.spread(np.arange(runs.count), np.arange(runs.count, len(values)))
    counts = _valid(values)[place] if seen is None else runs.spread(_flags(seen), np.ones(len(rows), dtype=np.bool_))
    if latest:
        slots = runs.newest(counts)
    else:
        # The first true slot of a run is the newest of those that are true for the first time.
        first = counts & (runs.sums(counts.astype(np.int64)) == 1)
        slots = runs.newest(first)
    return values.take(pa.array(place[slots], mask=slots < 0))


def squares(
    runs: Runs, heads: pa.Array, rows: pa.Array, *, sums: pa.Array, counts: pa.Array, undone: Bools | None = None
) -> pa.Array:
    """The sum of squared distances from the mean, updated value by value as Youngs and Cramer do.

    `sums` and `counts` are the running ones, after each row. Rows of `undone` are taken back.
    """
    back = runs.spread(
        np.zeros(runs.count, dtype=np.bool_), np.zeros(len(rows), np.bool_) if undone is None else undone
    )
    # Taking back is adding, seen from behind: sum and count with the value are those before the row.
    with_value = np.arange(runs.size) - back
    known = runs.spread(np.zeros(runs.count, dtype=np.bool_), _valid(rows))
    value = runs.spread(np.zeros(runs.count, dtype=_filled(rows, 0).dtype), _filled(rows, 0))
    counts, sums = _filled(counts, 0)[with_value], _filled(sums, 0)[with_value]
    count = counts.astype(np.float64)
    delta = (value * counts - sums).astype(np.float64)
    grown = known & (count > 1)
    steps = np.where(grown, delta * delta / np.where(grown, count * (count - 1), 1.0), 0.0)
    steps = np.where(back, -steps, steps)
    steps[runs.heads] = _filled(heads, 0.0)
    return pa.array(runs.accumulate(np.add, steps), pa.float64())


def _counts(runs: Runs, heads: pa.Array, rows: pa.Array | None) -> pa.Array:
    one = np.ones(len(runs.slots), dtype=np.int64) if rows is None else _filled(rows, 0).astype(np.int64)
    known = runs.spread(_valid(heads), np.ones(len(runs.slots), dtype=np.bool_))
    return pa.array(runs.sums(runs.spread(_filled(heads, 0), one)), heads.type, mask=~known)


def _sums(runs: Runs, heads: pa.Array, rows: pa.Array, half: Bools | None) -> pa.Array:
    known = _ever_known(runs, heads, rows)
    if pa.types.is_integer(heads.type):
        return pa.array(runs.sums(runs.spread(_filled(heads, 0), _filled(rows, 0))), heads.type, mask=~known)
    if half is not None and pa.types.is_decimal(heads.type):
        known[runs.slots[half]] = False
    return _accumulated(runs, heads, rows, np.add, 0, known)


def _extremes(runs: Runs, heads: pa.Array, rows: pa.Array, ufunc: np.ufunc) -> pa.Array:
    known, kind = _ever_known(runs, heads, rows), heads.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        values, heads, rows = _ranks(heads, rows)
        ranks = _accumulated(runs, heads, rows, ufunc, _worst(ufunc, pa.int64()), known)
        return values.take(ranks)
    return _accumulated(runs, heads, rows, ufunc, _worst(ufunc, kind), known)


def _worst(ufunc: np.ufunc, kind: pa.DataType) -> Any:
    """What every value replaces. NaN is the largest double, as Spark has it."""
    least = ufunc is np.maximum
    if pa.types.is_floating(kind):
        return -np.inf if least else np.nan
    if pa.types.is_decimal(kind):
        return -(10**39) if least else 10**39
    info = np.iinfo(kind.to_pandas_dtype())
    return info.min if least else info.max


def _accumulated(runs: Runs, heads: pa.Array, rows: pa.Array, ufunc: np.ufunc, start: Any, known: Bools) -> pa.Array:
    if pa.types.is_decimal(heads.type):
        # Whole numbers of Python's own: they have as many digits as they need.
        exact = _exactly(ufunc)
        slots = runs.accumulate(exact, runs.spread(unscaled(heads, start), unscaled(rows, start)))
        return from_unscaled(slots, ~known, heads.type)
    slots = runs.accumulate(ufunc, runs.spread(_filled(heads, start), _filled(rows, start)))
    return pa.array(slots, heads.type, mask=~known)


def _exactly(ufunc: np.ufunc) -> np.ufunc:
    return np.minimum if ufunc is np.fmin else ufunc


def _ranks(heads: pa.Array, rows: pa.Array) -> tuple[pa.Array, pa.Array, pa.Array]:
    """The distinct values in the order of their bytes, and both columns as numbers of them."""
    both = pa.concat_arrays([heads, rows]).dictionary_encode()
    places = pc.sort_indices(both.dictionary.cast(pa.binary()))
    ranks = pa.array(np.argsort(places.to_numpy()), pa.int64())
    numbers = ranks.take(both.indices)
    return both.dictionary.take(places), numbers.slice(0, len(heads)), numbers.slice(len(heads))


def _ever_known(runs: Runs, heads: pa.Array, rows: pa.Array) -> Bools:
    if not rows.null_count and not heads.null_count:
        return np.ones(runs.size, dtype=np.bool_)
    return runs.known(runs.spread(_valid(heads), _valid(rows)))


def _valid(array: pa.Array) -> Bools:
    return _flags(array.is_valid())


def _flags(array: pa.BooleanArray) -> Bools:
    flags: Bools = array.to_numpy(zero_copy_only=False)
    return flags


def _filled(array: pa.Array, value: Any) -> Values:
    filled = array.fill_null(pa.scalar(value, array.type)) if array.null_count else array
    found: Values = filled.to_numpy(zero_copy_only=False)
    return found
