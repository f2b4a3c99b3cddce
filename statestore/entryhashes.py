"""Hashes of entries for the digest, in columns: the same as `digest.entry_hashes` gives, without an object for any of them.

Also which rows of a column have the keys of another one that is in the same order, as what a batch writes and has read.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash._xxhash as library  # type: ignore[import-not-found]
from numba import types

from statestore.compiled import compiled, external, memcmp, memcpy
from statestore.fields import Field, held

Hashes = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.int64]

_xxh3 = external(library.__file__, "XXH3_64bits_withSeed", types.uint64, types.intp, types.intp, types.uint64)


def column_hashes(keys: pa.BinaryArray, values: pa.BinaryArray) -> Hashes:
    """A hash for each entry; 0 where the value is null, which is no entry."""
    return _hashes(held(keys), held(values))


def rows_of(keys: pa.BinaryArray, known: pa.BinaryArray) -> Rows:
    """Which row of `known` has each key, where the keys come in the order of `known`: each is looked for behind the one before.

    From the first one on that is not there all have -1, also those that are.
    """
    return _rows_of(held(keys), held(known))


@compiled
def _hashes(keys: Field, values: Field) -> Hashes:
    (key_bytes, key_ends, _), (value_bytes, value_ends, value_nulls) = keys, values
    found = np.zeros(len(value_nulls), np.uint64)
    longest = 0
    for row in range(len(found)):
        size = key_ends[row + 1] - key_ends[row] + value_ends[row + 1] - value_ends[row]
        longest = max(longest, size)
    # Key and value are one text to the hash.
    entry = np.empty(longest + 1, np.uint8)
    place = entry.ctypes.data
    for row in range(len(found)):
        if not value_nulls[row]:
            key_size, value_size = key_ends[row + 1] - key_ends[row], value_ends[row + 1] - value_ends[row]
            memcpy(place, key_bytes + key_ends[row], key_size)
            memcpy(place + key_size, value_bytes + value_ends[row], value_size)
            found[row] = _xxh3(place, key_size + value_size, np.uint64(key_size))
    # The last use of its memory.
    entry[0] = 0
    return found


@compiled
def _rows_of(keys: Field, known: Field) -> Rows:
    (key_bytes, key_ends, key_nulls), (known_bytes, known_ends, known_nulls) = keys, known
    found = np.full(len(key_nulls), -1, np.int64)
    next_row = 0
    for row in range(len(found)):
        size, at = key_ends[row + 1] - key_ends[row], key_bytes + key_ends[row]
        for candidate in range(next_row, len(known_nulls)):
            if known_ends[candidate + 1] - known_ends[candidate] == size and not memcmp(
                at, known_bytes + known_ends[candidate], size
            ):
                found[row] = candidate
                next_row = candidate + 1
                break
        else:
            # To go on would be a search through all of `known` for each.
            break
    return found


def ready() -> None:
    """Have the machine code of all loops."""
    nothing = pa.array([], pa.binary())
    column_hashes(nothing, nothing)
    rows_of(nothing, nothing)
