"""The order in which changes go into a sorted file: by key, of each key the last.

Sorting lists of bytes object by object follows a pointer a comparison; columns of numbers, or Arrow's buffer, do not.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_WORD = 8
# Longer keys are seldom told apart by their last words: comparing them whole is faster than sorting by each word.
_WIDTH_MAX = 8 * _WORD


def last_in_order(keys: list[bytes]) -> list[int]:
    """Rows of the last occurrence of each key, in ascending order of the keys as unsigned bytes."""
    if not keys:
        return []
    width = len(keys[0])
    if 0 < width <= _WIDTH_MAX and set(map(len, keys)) == {width}:
        order, is_last = _by_words(keys, width)
    else:
        order, is_last = _by_bytes(keys)
    rows: list[int] = order[is_last].tolist()
    return rows


def _by_words(keys: list[bytes], width: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Keys of one width, filled up with zeros to big-endian numbers of 8 bytes; the last number sorts last."""
    filled = np.zeros((len(keys), -(-width // _WORD) * _WORD), np.uint8)
    filled[:, :width] = np.frombuffer(b"".join(keys), np.uint8).reshape(len(keys), width)
    words = filled.view(">u8").astype(np.uint64)
    order = np.lexsort(words.T[::-1])
    ordered = words[order]
    return order, np.append((ordered[1:] != ordered[:-1]).any(axis=1), True)


def _by_bytes(keys: list[bytes]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Keys of any width. Arrow's sort is stable, too."""
    column = pa.array(keys, pa.large_binary())
    order = pc.sort_indices(column)
    ordered = column.take(order)
    differs = pc.not_equal(ordered.slice(1), ordered.slice(0, len(keys) - 1))
    return order.to_numpy(), np.append(differs.to_numpy(zero_copy_only=False), True)
