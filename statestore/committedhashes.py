"""Hashes of a task's committed entries: of those that were read for a batch, in the order in which they were read.

The digest of the batch needs the hash of each entry that it changes, and it writes nearly all that it has read and in that
order. So they are kept as columns, and not looked up one by one.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from statestore.entryhashes import Hashes, column_hashes, rows_of

Read = Callable[[pa.BinaryArray], pa.BinaryArray]


class CommittedHashes:
    """`read` gives the committed states of some keys, null where there is none."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._keys: list[pa.BinaryArray] = []
        self._hashes: list[Hashes] = []

    def clear(self) -> None:
        """Forget what was read, when another version is committed."""
        self._keys, self._hashes = [], []

    def add(self, keys: pa.BinaryArray, states: pa.BinaryArray) -> None:
        """These states are committed."""
        self._keys.append(keys)
        self._hashes.append(column_hashes(keys, states))

    def of(self, keys: pa.BinaryArray) -> Hashes:
        """The hash of each key's entry, 0 where there is none; no key comes twice. What is not known is read."""
        if not self._keys:
            return column_hashes(keys, self._read(keys))
        rows = rows_of(keys, pa.concat_arrays(self._keys))
        known = rows >= 0
        found = np.zeros(len(keys), np.uint64)
        found[known] = np.concatenate(self._hashes)[rows[known]]
        if not known.all():
            rest = keys.filter(pa.array(~known))
            found[~known] = column_hashes(rest, self._read(rest))
        return found
