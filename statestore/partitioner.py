"""The hash that sends a key to its task: Spark's own, so that Spark's shuffle partition is the task.

`task = pmod(murmur3(key, seed 42), tasks)` with `Murmur3_x86_32.hashUnsafeBytes`. It differs from the standard
Murmur3 in the tail: each of the last one to three bytes is mixed in as a full, sign-extended word.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

SEED = 42
_C1 = np.uint32(0xCC9E2D51)
_C2 = np.uint32(0x1B873593)
_Words = npt.NDArray[np.uint32]


def _rotl(words: _Words, by: int) -> _Words:
    return (words << np.uint32(by)) | (words >> np.uint32(32 - by))


def _mix(hashes: _Words, words: _Words) -> _Words:
    mixed = _rotl(words * _C1, 15) * _C2
    return _rotl(hashes ^ mixed, 13) * np.uint32(5) + np.uint32(0xE6546B64)


def _finish(hashes: _Words, length: int) -> _Words:
    hashes = hashes ^ np.uint32(length)
    hashes = (hashes ^ (hashes >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    hashes = (hashes ^ (hashes >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return hashes ^ (hashes >> np.uint32(16))


def murmur3(keys: pa.BinaryArray) -> npt.NDArray[np.int32]:
    """Hashes of the keys, shape (n,). Keys must not be null. Keys of one length are hashed together."""
    offsets = np.frombuffer(keys.buffers()[1], dtype=np.int32)[keys.offset : keys.offset + len(keys) + 1]
    data = np.frombuffer(keys.buffers()[2] or b"", dtype=np.uint8)
    lengths = np.diff(offsets)
    result = np.empty(len(keys), dtype=np.uint32)
    for length in np.unique(lengths):
        rows = np.flatnonzero(lengths == length)
        result[rows] = _hash_equal_length(data, offsets[rows], int(length))
    return result.view(np.int32)


def _hash_equal_length(data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int32], length: int) -> _Words:
    hashes: _Words = np.full(len(starts), SEED, dtype=np.uint32)
    taken = data[starts[:, None] + np.arange(length, dtype=np.int32)[None, :]]
    aligned = length - length % 4
    words = np.ascontiguousarray(taken[:, :aligned]).view("<u4")
    with np.errstate(over="ignore"):
        for column in range(aligned // 4):
            hashes = _mix(hashes, words[:, column])
        for column in range(aligned, length):
            hashes = _mix(hashes, taken[:, column].view(np.int8).astype(np.int32).view(np.uint32))
        return _finish(hashes, length)


def tasks_of(keys: pa.BinaryArray, tasks: int) -> npt.NDArray[np.int32]:
    """The task of each key, in 0 .. tasks-1, shape (n,)."""
    return np.mod(murmur3(keys), np.int32(tasks))


def task_of(key: bytes, tasks: int) -> int:
    """The task of one key."""
    return int(tasks_of(pa.array([key], pa.binary()), tasks)[0])
