"""Which windows rows fall into, which are late, and the keys under which windows are stored. Over whole columns.

The rules are those of `statestore.windows`, the bytes those of `statestore.layouts.window`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.plan import Window
from statestore.windows import MAX_TIME_MS

_Ints = npt.NDArray[np.int64]
_SUFFIX = np.dtype([("start", ">i8"), ("sequence", ">i4")])


@dataclass(frozen=True)
class Assigned:
    """The windows that take a row: `row` is its number, `starts` the window's start in ms; None without windows.

    `dropped` counts the windows that were closed when their record came.
    """

    row: _Ints
    starts: _Ints | None
    dropped: int

    @property
    def is_identity(self) -> bool:
        """Whether every row is there, once."""
        return self.starts is None


def assign(window: Window | None, times: _Ints, stream_times: _Ints) -> Assigned:
    """Every row's windows, earliest first. `stream_times` are those at each row, its own time included."""
    if window is None:
        return Assigned(np.arange(len(times)), None, 0)
    size, advance = window.size_ms, window.advance_ms
    first = np.maximum(times - size + advance, 0) // advance * advance
    counts = np.where(times >= 0, (times - first) // advance + 1, 0)
    row = np.repeat(np.arange(len(times)), counts)
    number = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = first[row] + number * advance
    closed = window_ends(starts, size) <= stream_times[row] - window.grace_ms
    return Assigned(row[~closed], starts[~closed], int(closed.sum()))


def window_ends(starts: _Ints, size_ms: int) -> _Ints:
    """Ends of windows, never past the largest time."""
    ends: _Ints = np.minimum(starts, MAX_TIME_MS - size_ms) + size_ms
    return ends


def store_keys(keys: pa.BinaryArray, starts: _Ints | None) -> pa.BinaryArray:
    """The keys as the store has them: with the window's start and sequence 0, as they are without windows."""
    if starts is None:
        return keys
    suffixes = np.zeros(len(starts), dtype=_SUFFIX)
    suffixes["start"] = starts
    offsets = np.arange(len(starts) + 1, dtype=np.int32) * _SUFFIX.itemsize
    buffers = [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(suffixes.tobytes())]
    return pc.binary_join_element_wise(keys, pa.Array.from_buffers(pa.binary(), len(starts), buffers), b"")
