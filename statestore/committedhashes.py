"""Hashes of a task's committed entries: of those that were read for a batch, in the order in which they were read.

The digest of the batch needs the hash of each entry that it changes, and it mostly writes what it has read, in that order:
then the two are walked through side by side. From the first key on that is elsewhere, as in record order, they are looked
up.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statestore.entryhashes import Hashes, column_hashes, rows_of

Read = Callable[[pa.BinaryArray], pa.BinaryArray]


class CommittedHashes:
    """Those of the keys that `add` was given."""

    def __init__(self) -> None:
        self._keys: list[pa.BinaryArray] = []
        self._hashes: list[Hashes] = []

    def clear(self) -> None:
        """Forget what was read, when another version is committed or another attempt begins to read."""
        self._keys, self._hashes = [], []

    def add(self, keys: pa.BinaryArray, states: pa.BinaryArray) -> None:
        """These states are committed."""
        if len(keys):
            self._keys.append(keys)
            self._hashes.append(column_hashes(keys, states))

    def of(self, keys: pa.BinaryArray, read: Read) -> Hashes:
        """The hash of each key's entry, 0 where there is none; no key comes twice. What is not known is read.

        `read` gives the committed states of some keys, null where there is none.
        """
        if not self._keys:
            return column_hashes(keys, read(keys))
        rows = rows_of(keys, pa.concat_arrays(self._keys))
        rest = np.count_nonzero(rows >= 0)
        if rest < len(rows):
            found = pc.index_in(keys.slice(rest), value_set=pa.chunked_array(self._keys))
            rows[rest:] = found.fill_null(-1).to_numpy(zero_copy_only=False)
        known = rows >= 0
        hashes = np.zeros(len(keys), np.uint64)
        hashes[known] = np.concatenate(self._hashes)[rows[known]]
        if not known.all():
            unknown = keys.filter(pa.array(~known))
            hashes[~known] = column_hashes(unknown, read(unknown))
        return hashes
