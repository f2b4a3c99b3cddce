"""Committed entries in memory, in front of RocksDB: what a task has written lately, as sorted columns.

    put      a batch's changes, sorted, are the newest run; it is merged with those before it that are not much larger
    states   each run is walked through beside the keys, the newest first; what none has is read from the store

RocksDB looks a key up in some hundred nanoseconds a level, each step of them somewhere else in memory. Here a batch of
keys in order takes some tens of nanoseconds a key. A run holds deletions, too: that a key has no entry is as good to
know. The oldest run is dropped when all of them are too large.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statestore.sortedcolumns import ascending, find, gathered, merged

Read = Callable[[pa.BinaryArray], pa.BinaryArray]
# A run is merged with the one before it unless that is so much larger: each entry is copied a few times, not each batch.
_MERGED_FACTOR = 4


@dataclass(frozen=True)
class _Run:
    """Entries in ascending order of their keys, null where one was deleted."""

    keys: pa.BinaryArray
    values: pa.BinaryArray

    @property
    def bytes(self) -> int:
        size: int = self.keys.nbytes + self.values.nbytes
        return size

    def over(self, older: _Run) -> _Run:
        """Both as one; nothing of them is kept."""
        return _Run(*merged((self.keys, self.values), (older.keys, older.values)))


class EntryCache:
    """For one thread at a time. Holds at most `bytes_max`, and while runs are merged as much again."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        # The newest first.
        self._runs: list[_Run] = []

    @property
    def bytes(self) -> int:
        """Of keys and values, bookkeeping included."""
        return sum(run.bytes for run in self._runs)

    def clear(self) -> None:
        """Forget everything."""
        self._runs = []

    def put(self, pieces: Sequence[tuple[pa.BinaryArray, pa.BinaryArray]]) -> None:
        """The store has these keys and values now, null for deleted. No key comes twice.

        More than there is room for is not held, and nothing else is then.
        """
        if sum(keys.nbytes + values.nbytes for keys, values in pieces) > self._bytes_max:
            self.clear()
        elif pieces:
            self._put(*map(pa.concat_arrays, zip(*pieces, strict=True)))

    def _put(self, keys: pa.BinaryArray, values: pa.BinaryArray) -> None:
        if not len(keys):
            return
        if not ascending(keys):
            rows = pc.sort_indices(keys)
            keys, values = keys.take(rows), values.take(rows)
        newest = _Run(keys, values)
        while self._runs and self._merges(newest, self._runs[0]):
            newest = newest.over(self._runs.pop(0))
        if newest.keys is keys:
            # What comes is a part of what else a worker has sent.
            newest = newest.over(_Run(keys.slice(0, 0), values.slice(0, 0)))
        self._runs.insert(0, newest)
        # From the oldest on: what is behind a run that is gone must not be found any more.
        while self.bytes > self._bytes_max:
            self._runs.pop()

    def _merges(self, newest: _Run, older: _Run) -> bool:
        """Up to half of the room: a run that had all of it would go as a whole."""
        both = newest.bytes + older.bytes
        return older.bytes <= _MERGED_FACTOR * newest.bytes and both <= self._bytes_max // 2

    def states(self, keys: pa.BinaryArray, read: Read) -> pa.BinaryArray:
        """The values of the keys, null where there is none. What is not known here `read` gives, and it is not kept."""
        pieces = []
        wanted = np.ones(len(keys), np.bool_)
        for run in self._runs:
            rows = find(keys, run.keys, wanted)
            pieces.append((run.values, rows))
            wanted &= rows < 0
            if not wanted.any():
                break
        if wanted.all():
            return read(keys)
        if wanted.any():
            rows = np.where(wanted, np.cumsum(wanted) - 1, -1)
            pieces.append((read(keys.filter(pa.array(wanted))), rows))
        return gathered(pieces)
