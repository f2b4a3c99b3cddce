"""The compiled loop of `jsonnames.py`: it knows where texts, names and levels are, and takes it that the rest is JSON."""

from __future__ import annotations

from collections.abc import Mapping
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
# What a name is that is no column's: nothing to us, not ASCII, with an escape.
_OTHER, _NOT_ASCII, _ESCAPED = -1, -2, -3


def odd_rows(data: Bytes, ends: Ends, columns: Mapping[bytes, int], *, strict: bool) -> Places:
    """The odd ones among the records between `ends`.

    `columns` are numbers of columns by names in lower case. If `strict`, a name that is not ASCII and none of them is odd.
    """
    names = np.frombuffer(b"".join(columns), np.uint8)
    name_ends = np.cumsum([0, *map(len, columns)])
    odd = np.zeros(len(ends) - 1, np.bool_)
    numbers = np.array(list(columns.values()), np.int64)
    _scan(fixed(data), fixed(ends), fixed(names), name_ends, numbers, DEPTH_MAX, strict, odd)
    return np.flatnonzero(odd)


@compiled
def _scan(
    data: Bytes, ends: Ends, names: Bytes, name_ends: Places, numbers: Places, depth_max: int, strict: bool, odd: Bools
) -> None:
    """Set `odd` by row. What is of another module comes as an argument: kept machine code would not see it change."""
    # By column the last row that has it, from 1.
    seen = np.zeros(len(numbers), np.int64)
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
                    column = _column(data, start, min(at, end) - 1, names, name_ends, numbers)
                    if column >= 0:
                        bad |= seen[column] == row + 1
                        seen[column] = row + 1
                    else:
                        bad |= column == _ESCAPED or (strict and column == _NOT_ASCII)
            elif byte == _COMMA:
                named = depth == 1
            elif byte in (_OPEN, _OPEN_LIST):
                depth += 1
                named = depth == 1
                deepest = max(deepest, depth)
            elif byte in (_CLOSE, _CLOSE_LIST):
                depth -= 1
        odd[row] = bad or deepest > depth_max


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
            if data[place] == _ESCAPE:
                found = _ESCAPED
            elif data[place] >= _ASCII_END and found != _ESCAPED:
                found = _NOT_ASCII
    return found


def ready() -> None:
    """Have the machine code of the loop before anybody waits for it."""
    odd_rows(np.frombuffer(b"{}", np.uint8), np.array([0, 2], np.int32), {b"n": 0}, strict=False)
