"""The compiled loop of `jsonnames.py`: it knows where texts, names and levels are, and takes it that the rest is JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.engine.spans import Places
from pipelines.engine.values import DEPTH_MAX
from statestore.compiled import compiled, fixed, inlined

Ends = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]

_QUOTE, _ESCAPE, _COMMA = b'"\\,'
_OPEN, _CLOSE, _OPEN_LIST, _CLOSE_LIST = b"{}[]"
_UPPER_A, _UPPER_Z, _TO_LOWER, _ASCII_END = ord("A"), ord("Z"), 32, 128
# What a name is that is no column's; and one with an escape, or not ASCII, whose bytes do not tell.
_OTHER, _UNTOLD = -1, -2
# Places for untold names by their hash, a power of two, and how many of them may be one name's. If other names have them, it
# is asked about again.
_SLOTS, _PROBES = 1024, 8
_FNV_PRIME, _HASH_MASK = 0x01000193, 0xFFFFFFFF
# So many are kept of a block, a few MB. A record with a further one is read alone, which costs more than to ask about its name.
_UNTOLD_MAX = 65_536


def odd_rows(
    data: Bytes, ends: Ends, columns: Mapping[bytes, int], columns_of: Callable[[list[bytes]], list[int]]
) -> Places:
    """The odd ones among the records between `ends`.

    `columns` are numbers of columns by names in lower case. Of other names, where bytes do not tell, `columns_of` has the
    numbers: -1 for that of no column, less if the record is odd. Most names it is asked about once, however many have them.
    """
    names = np.frombuffer(b"".join(columns), np.uint8)
    name_ends = np.cumsum([0, *map(len, columns)])
    odd = np.zeros(len(ends) - 1, np.bool_)
    numbers = np.array(list(columns.values()), np.int64)
    given = fixed(data), fixed(ends), fixed(names), name_ends, numbers
    untold = np.empty((2, _UNTOLD_MAX), np.int64)
    count = _scan(*given, np.empty(0, np.int64), untold, DEPTH_MAX, odd)
    if count:
        whole = data.data
        written = [bytes(whole[start:stop]) for start, stop in zip(*untold[:, :count].tolist(), strict=True)]
        told = np.array(columns_of(written), np.int64)
        if (told != _OTHER).any():
            _scan(*given, told, untold, DEPTH_MAX, odd)
    return np.flatnonzero(odd)


@compiled
def _scan(
    data: Bytes,
    ends: Ends,
    names: Bytes,
    name_ends: Places,
    numbers: Places,
    told: Places,
    untold: Places,
    depth_max: int,
    odd: Bools,
) -> int:
    """Set `odd` by row, and `untold` to where untold names begin and where they stop. Return how many of them there are.

    `told` are their columns in that order, which is the same each time; if it is empty, they are taken for no column's. What is
    of another module comes as an argument: kept machine code would not see it change.
    """
    # By column the last row that has it, from 1.
    seen = np.zeros(len(numbers), np.int64)
    count = 0
    # Numbers of untold names, from 1.
    slots = np.zeros(_SLOTS, np.int64)
    for row in range(len(odd)):
        at, end = int(ends[row]), int(ends[row + 1])
        depth = deepest = 0
        # Whether the next text is a name of the record itself.
        named = bad = False
        while at < end:
            byte = data[at]
            at += 1
            if byte == _QUOTE:
                start = at
                # Written so it takes half the time of the same in a condition.
                while at < end:
                    byte = data[at]
                    at += 1
                    if byte == _QUOTE:
                        break
                    if byte == _ESCAPE:
                        at += 1
                if named:
                    named = False
                    stop = min(at, end) - 1
                    column = _column(data, start, stop, names, name_ends, numbers)
                    if column == _UNTOLD:
                        number = _number(data, start, stop, untold, slots, count)
                        if number >= 0:
                            count = max(count, number + 1)
                            column = told[number] if len(told) else _OTHER
                    if column >= 0:
                        bad |= seen[column] == row + 1
                        seen[column] = row + 1
                    else:
                        bad |= column < _OTHER
            elif byte == _COMMA:
                named = depth == 1
            elif byte in (_OPEN, _OPEN_LIST):
                depth += 1
                named = depth == 1
                deepest = max(deepest, depth)
            elif byte in (_CLOSE, _CLOSE_LIST):
                depth -= 1
        odd[row] = bad or deepest > depth_max
    return count


@inlined
def _column(data: Bytes, start: int, stop: int, names: Bytes, name_ends: Places, numbers: Places) -> int:
    """The number of the column whose name this is but for the case of ASCII letters, or what else it is."""
    found, size = _OTHER, stop - start
    for number in range(len(numbers)):
        first = name_ends[number]
        if name_ends[number + 1] - first == size:
            at = 0
            while at < size:
                byte: Any = data[start + at]
                if _UPPER_A <= byte <= _UPPER_Z:
                    byte |= _TO_LOWER
                if byte != names[first + at]:
                    break
                at += 1
            if at == size:
                found = numbers[number]
                break
    if found < 0:
        for place in range(start, stop):
            if data[place] == _ESCAPE or data[place] >= _ASCII_END:
                found = _UNTOLD
    return found


@inlined
def _number(data: Bytes, start: int, stop: int, untold: Places, slots: Places, count: int) -> int:
    """The number of an untold name. If it is not among those in its slots it is put there as the next; -1 if there is no room."""
    mixed = 0
    for place in range(start, stop):
        mixed = ((mixed ^ data[place]) * _FNV_PRIME) & _HASH_MASK
    slot = found = 0
    for probe in range(_PROBES):
        # The upper bits are mixed best.
        slot = ((mixed >> 16) + probe) & (_SLOTS - 1)
        found = slots[slot] - 1
        if found < 0 or _same(data, untold[0, found], untold[1, found], start, stop):
            break
        found = -1
    if found < 0 and count < untold.shape[1]:
        found = count
        untold[0, count], untold[1, count] = start, stop
        slots[slot] = count + 1
    return found


@inlined
def _same(data: Bytes, first: int, first_stop: int, second: int, second_stop: int) -> bool:
    size = first_stop - first
    at = 0
    if size == second_stop - second:
        while at < size and data[first + at] == data[second + at]:
            at += 1
    else:
        at = -1
    return at == size


def ready() -> None:
    """Have the machine code of the loop before anybody waits for it."""
    odd_rows(np.frombuffer(b"{}", np.uint8), np.array([0, 2], np.int32), {b"n": 0}, lambda names: [_OTHER] * len(names))
