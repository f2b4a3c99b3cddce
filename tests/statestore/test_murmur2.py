"""Java's own test vectors, and the range of partitions."""

from __future__ import annotations

import pyarrow as pa

from statestore.murmur2 import murmur2, partitions_of

VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def test_hashes_are_those_of_java() -> None:
    keys = pa.array([b"sliced off", *VECTORS], pa.binary()).slice(1)
    assert list(VECTORS.values()) == murmur2(keys).tolist()
    assert [abs(hashed) % 1 for hashed in VECTORS.values()] == partitions_of(keys, 1).tolist()
    assert [(hashed & 0x7FFFFFFF) % 7 for hashed in VECTORS.values()] == partitions_of(keys, 7).tolist()
