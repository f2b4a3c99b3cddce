"""The hash by which Java's producer, and librdkafka's `murmur2_random`, send a key to its partition.

The client hashes the whole key. The results of a windowed key go by the key without its window, as Kafka Streams sends
them, so that all windows of a key are in one partition: for them the partition is computed here.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_SEED = np.uint32(0x9747B28C)
_M = np.uint32(0x5BD1E995)
_Words = npt.NDArray[np.uint32]


def murmur2(keys: pa.BinaryArray) -> npt.NDArray[np.int32]:
    """Hashes of the keys, shape (n,). Keys must not be null. Keys of one length are hashed together."""
    offsets = np.frombuffer(keys.buffers()[1], dtype=np.int32)[keys.offset : keys.offset + len(keys) + 1]
    data = np.frombuffer(keys.buffers()[2] or b"", dtype=np.uint8)
    lengths = np.diff(offsets)
    result = np.empty(len(keys), dtype=np.uint32)
    with np.errstate(over="ignore"):
        for length in np.unique(lengths):
            rows = np.flatnonzero(lengths == length)
            taken = data[offsets[rows][:, None] + np.arange(length, dtype=np.int32)[None, :]]
            result[rows] = _hash_equal_length(taken)
    return result.view(np.int32)


def _hash_equal_length(taken: npt.NDArray[np.uint8]) -> _Words:
    count, length = taken.shape
    hashes: _Words = np.full(count, _SEED ^ np.uint32(length), dtype=np.uint32)
    aligned = length - length % 4
    words = np.ascontiguousarray(taken[:, :aligned]).view("<u4")
    for column in range(aligned // 4):
        mixed = words[:, column] * _M
        mixed = (mixed ^ (mixed >> np.uint32(24))) * _M
        hashes = (hashes * _M) ^ mixed
    for column in range(length - 1, aligned - 1, -1):
        hashes = hashes ^ (taken[:, column].astype(np.uint32) << np.uint32(8 * (column - aligned)))
    if aligned < length:
        hashes = hashes * _M
    hashes = (hashes ^ (hashes >> np.uint32(13))) * _M
    return hashes ^ (hashes >> np.uint32(15))


def partitions_of(keys: pa.BinaryArray, partitions: int) -> npt.NDArray[np.int32]:
    """The partition of each key, in 0 .. partitions-1, shape (n,)."""
    return (murmur2(keys) & np.int32(0x7FFFFFFF)) % np.int32(partitions)
