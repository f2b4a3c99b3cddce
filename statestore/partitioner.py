"""The hash that sends a key to its task: Spark's own, so that Spark's shuffle partition is the task.

`task = pmod(murmur3(key, seed 42), tasks)` with `Murmur3_x86_32.hashUnsafeBytes`. It differs from the standard
Murmur3 in the tail: each of the last one to three bytes is mixed in as a full, sign-extended word.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statestore.compiled import compiled, fixed, inlined
from statestore.fields import Ends

SEED = 42
_C1, _C2 = 0xCC9E2D51, 0x1B873593
_WORD = 0xFFFFFFFF


def murmur3(keys: pa.BinaryArray) -> npt.NDArray[np.int32]:
    """Hashes of the keys, shape (n,). Keys must not be null."""
    _, ends, data = keys.buffers()
    places = np.frombuffer(ends, np.int32)[keys.offset : keys.offset + len(keys) + 1]
    return _murmur3(fixed(np.frombuffer(data or b"", np.uint8)), fixed(places))


@inlined
def _mixed(hashed: int, word: int) -> int:
    """Numbers of 32 bits, in 64: a product's upper half is cut off."""
    word = (word * _C1) & _WORD
    word = ((word << 15 | word >> 17) * _C2) & _WORD
    hashed ^= word
    hashed = (hashed << 13 | hashed >> 19) & _WORD
    return (hashed * 5 + 0xE6546B64) & _WORD


@compiled
def _murmur3(data: npt.NDArray[np.uint8], ends: Ends) -> npt.NDArray[np.int32]:
    found = np.empty(len(ends) - 1, np.int32)
    for row in range(len(found)):
        start, end = int(ends[row]), int(ends[row + 1])
        aligned = end - (end - start) % 4
        hashed = SEED
        for at in range(start, aligned, 4):
            word = int(data[at]) | int(data[at + 1]) << 8 | int(data[at + 2]) << 16 | int(data[at + 3]) << 24
            hashed = _mixed(hashed, word)
        for at in range(aligned, end):
            hashed = _mixed(hashed, int(np.int8(data[at])) & _WORD)
        hashed ^= end - start
        hashed = ((hashed ^ hashed >> 16) * 0x85EBCA6B) & _WORD
        hashed = ((hashed ^ hashed >> 13) * 0xC2B2AE35) & _WORD
        found[row] = np.int32(hashed ^ hashed >> 16)
    return found


def tasks_of(keys: pa.BinaryArray, tasks: int) -> npt.NDArray[np.int32]:
    """The task of each key, in 0 .. tasks-1, shape (n,)."""
    return np.mod(murmur3(keys), np.int32(tasks))


def task_of(key: bytes, tasks: int) -> int:
    """The task of one key."""
    return int(tasks_of(pa.array([key], pa.binary()), tasks)[0])


def ready() -> None:
    """Have the machine code."""
    murmur3(pa.array([b""], pa.binary()))
