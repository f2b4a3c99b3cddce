"""The task of a key is what Spark's own hash says."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from statestore.partitioner import murmur3, task_of, tasks_of

# From Spark: SELECT hash(CAST(x AS BINARY)).
SPARK = {
    b"": 142593372,
    b"a": 1485273170,
    b"ab": -97053317,
    b"abc": 1322437556,
    b"abcd": -396302900,
    b"abcde": 814637928,
    b"\xff\xfe\xfd": -1550104651,
    b"\x00\x00\x00\x00\x00\x00\x00\x01": -177065843,
}


def test_hashes_are_sparks() -> None:
    assert list(SPARK.values()) == murmur3(pa.array(SPARK, pa.binary())).tolist()


@given(st.lists(st.binary(max_size=20), min_size=1), st.integers(1, 64))
def test_a_key_alone_goes_where_it_goes_among_others(keys: list[bytes], tasks: int) -> None:
    together = tasks_of(pa.array(keys, pa.binary()), tasks).tolist()
    assert [task_of(key, tasks) for key in keys] == together
    assert all(0 <= task < tasks for task in together)


def test_a_slice_hashes_its_own_rows() -> None:
    keys = pa.array([b"abc", b"abcde", b"", b"ab"], pa.binary())
    assert [SPARK[b"abcde"], SPARK[b""]] == murmur3(keys.slice(1, 2)).tolist()
