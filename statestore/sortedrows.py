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


def last_in_order(keys: pa.LargeBinaryArray) -> npt.NDArray[np.int64]:
    """Rows of the last occurrence of each key, in ascending order of the keys as unsigned bytes."""
    if not len(keys):
        return np.zeros(0, np.int64)
    ends = np.frombuffer(keys.buffers()[1], np.int64)[keys.offset : keys.offset + len(keys) + 1]
    width = int(ends[1] - ends[0])
    if 0 < width <= _WIDTH_MAX and (np.diff(ends) == width).all():
        content = np.frombuffer(keys.buffers()[2], np.uint8)[ends[0] : ends[-1]]
        order, is_last = _by_words(content.reshape(len(keys), width))
    else:
        order, is_last = _by_bytes(keys)
    rows: npt.NDArray[np.int64] = order[is_last].astype(np.int64)
    return rows


def _by_words(keys: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Keys of one width, filled up with zeros to big-endian numbers of 8 bytes; the last number sorts last."""
    count, width = keys.shape
    filled = np.zeros((count, -(-width // _WORD) * _WORD), np.uint8)
    filled[:, :width] = keys
    words = filled.view(">u8").astype(np.uint64)
    # Words that all keys share decide nothing.
    words = words[:, (words != words[0]).any(axis=0)]
    if not words.shape[1]:
        return np.array([count - 1]), np.array([True])
    if words.shape[1] == 1:
        # Not stable and three times as fast: for keys of which none comes twice.
        order = np.argsort(words[:, 0])
        ordered = words[order]
        if (ordered[1:] != ordered[:-1]).all():
            return order, np.ones(count, np.bool_)
    order = np.lexsort(words.T[::-1])
    ordered = words[order]
    return order, np.append((ordered[1:] != ordered[:-1]).any(axis=1), True)


def _by_bytes(keys: pa.LargeBinaryArray) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Keys of any width. Arrow's sort is stable, too."""
    order = pc.sort_indices(keys)
    ordered = keys.take(order)
    differs = pc.not_equal(ordered.slice(1), ordered.slice(0, len(keys) - 1))
    return order.to_numpy(), np.append(differs.to_numpy(zero_copy_only=False), True)
