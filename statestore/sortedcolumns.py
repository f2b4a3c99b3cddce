"""Sorted columns of bytes: keys found in them, two of them merged, rows of several put together. Compiled loops."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statestore.compiled import compiled, fixed, inlined, memcmp, memcpy
from statestore.errors import InvariantBroken
from statestore.fields import Bools, Ends, Field, column_of, held

# A row of a column for each row asked for, -1 where this column does not have it.
Rows = npt.NDArray[np.int64]
_Sizes = npt.NDArray[np.int64]
_MOST = np.iinfo(np.int32).max


def gathered(pieces: Sequence[tuple[pa.BinaryArray, Rows]]) -> pa.BinaryArray:
    """One column: each row from the piece that has it, null where none has. Nothing of the pieces is kept."""
    count = len(pieces[0][1])
    sizes, nulls = np.zeros(count + 1, np.int64), np.ones(count, np.bool_)
    fields = [(held(column), fixed(rows)) for column, rows in pieces]
    for column, rows in fields:
        _measure(column, rows, sizes, nulls)
    ends = np.cumsum(sizes)
    if ends[-1] > _MOST:
        raise InvariantBroken("more bytes than a column can hold", bytes=int(ends[-1]))
    places, data = ends.astype(np.int32), pa.allocate_buffer(int(ends[-1]))
    for column, rows in fields:
        _copy(column, rows, places, data.address)
    return column_of(data, places, nulls)


def ascending(keys: pa.BinaryArray) -> bool:
    """Whether each key is greater than the one before it, as unsigned bytes."""
    return _ascending(held(keys))


def find(keys: pa.BinaryArray, known: pa.BinaryArray, wanted: Bools) -> Rows:
    """The row of each wanted key in `known`, which is in ascending order, -1 where it is not there or not wanted.

    Each is looked for from where the one before was, in steps of growing length: keys in order cost least.
    """
    return _find(held(keys), held(known), fixed(wanted))


def merged(
    newer: tuple[pa.BinaryArray, pa.BinaryArray], older: tuple[pa.BinaryArray, pa.BinaryArray]
) -> tuple[pa.BinaryArray, pa.BinaryArray]:
    """Keys, ascending, and their values, of two such pairs as one; of a key that both have the newer one's value.

    Nothing of them is kept.
    """
    fields = (held(newer[0]), held(newer[1]), held(older[0]), held(older[1]))
    most = len(newer[0]) + len(older[0])
    new_keys, new_values, old_keys, old_values = (int(ends[-1] - ends[0]) for _, ends, _ in fields)
    keys = pa.allocate_buffer(new_keys + old_keys, resizable=True)
    values = pa.allocate_buffer(new_values + old_values, resizable=True)
    key_ends, value_ends, nulls = np.zeros(most + 1, np.int32), np.zeros(most + 1, np.int32), np.zeros(most, np.bool_)
    count = _merged(*fields, keys.address, values.address, key_ends, value_ends, nulls)
    return (
        _used(keys, key_ends[: count + 1], np.zeros(count, np.bool_)),
        _used(values, value_ends[: count + 1], nulls[:count]),
    )


def _used(data: pa.Buffer, ends: Ends, nulls: Bools) -> pa.BinaryArray:
    """The column of the part of the room that is used."""
    data.resize(int(ends[-1]), shrink_to_fit=True)
    return column_of(data, ends.copy(), nulls)


@compiled
def _measure(column: Field, rows: Rows, sizes: _Sizes, nulls: Bools) -> None:
    """Sizes are written one place further on."""
    (_, ends, column_nulls) = column
    for row in range(len(rows)):
        at = rows[row]
        if at >= 0 and not column_nulls[at]:
            sizes[row + 1] = ends[at + 1] - ends[at]
            nulls[row] = False


@compiled
def _copy(column: Field, rows: Rows, places: Ends, target: int) -> None:
    (data, ends, column_nulls) = column
    for row in range(len(rows)):
        at = rows[row]
        if at >= 0 and not column_nulls[at]:
            memcpy(target + places[row], data + ends[at], ends[at + 1] - ends[at])


@inlined
def _before(one: int, one_size: int, other: int, other_size: int) -> bool:
    order = memcmp(one, other, min(one_size, other_size))
    return order < 0 or (order == 0 and one_size < other_size)


@compiled
def _ascending(keys: Field) -> bool:
    (data, ends, nulls) = keys
    for row in range(1, len(nulls)):
        before, at, end = ends[row - 1], ends[row], ends[row + 1]
        if not _before(data + before, at - before, data + at, end - at):
            return False
    return True


@compiled
def _find(keys: Field, known: Field, wanted: Bools) -> Rows:
    (key_data, key_ends, key_nulls), (known_data, known_ends, known_nulls) = keys, known
    found, count = np.full(len(key_nulls), -1, np.int64), len(known_nulls)
    # Everything in front of it is before the key of the row before.
    low = 0
    for row in range(len(key_nulls)):
        if not wanted[row]:
            continue
        key, size = key_data + key_ends[row], key_ends[row + 1] - key_ends[row]
        if low > 0:
            start = known_ends[low - 1]
            if not _before(known_data + start, known_ends[low] - start, key, size):
                low = 0
        high, step = low, 1
        while high < count and _before(
            known_data + known_ends[high], known_ends[high + 1] - known_ends[high], key, size
        ):
            low = high + 1
            high += step
            step *= 2
        high = min(high, count)
        while low < high:
            middle = (low + high) // 2
            start = known_ends[middle]
            if _before(known_data + start, known_ends[middle + 1] - start, key, size):
                low = middle + 1
            else:
                high = middle
        if low < count:
            start = known_ends[low]
            if known_ends[low + 1] - start == size and memcmp(known_data + start, key, size) == 0:
                found[row] = low
    return found


@compiled
def _merged(
    new_keys: Field,
    new_values: Field,
    old_keys: Field,
    old_values: Field,
    key_place: int,
    value_place: int,
    key_ends: Ends,
    value_ends: Ends,
    nulls: Bools,
) -> int:
    (new_data, new_ends, new_nulls), (old_data, old_ends, old_nulls) = new_keys, old_keys
    new, old, count, key_end, value_end = 0, 0, 0, 0, 0
    while new < len(new_nulls) or old < len(old_nulls):
        if new == len(new_nulls):
            order = 1
        elif old == len(old_nulls):
            order = -1
        else:
            new_size, old_size = new_ends[new + 1] - new_ends[new], old_ends[old + 1] - old_ends[old]
            order = memcmp(new_data + new_ends[new], old_data + old_ends[old], min(new_size, old_size))
            if order == 0:
                order = new_size - old_size
        if order <= 0:
            (data, ends, _), (value_data, values, value_nulls), row = new_keys, new_values, new
            new += 1
        else:
            (data, ends, _), (value_data, values, value_nulls), row = old_keys, old_values, old
        if order >= 0:
            old += 1
        size, value_size = ends[row + 1] - ends[row], values[row + 1] - values[row]
        memcpy(key_place + key_end, data + ends[row], size)
        key_end += size
        if value_nulls[row]:
            nulls[count] = True
        else:
            memcpy(value_place + value_end, value_data + values[row], value_size)
            value_end += value_size
        count += 1
        key_ends[count], value_ends[count] = key_end, value_end
    return count


def ready() -> None:
    """Have the machine code of all loops."""
    one = pa.array([b""], pa.binary())
    ascending(one)
    gathered([(one, find(one, one, np.ones(1, np.bool_)))])
    merged((one, one), (one, one))
