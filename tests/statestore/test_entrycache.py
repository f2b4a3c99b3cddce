"""The cache in front of RocksDB says what the store has, or nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statestore.entrycache import EntryCache
from statestore.sortedcolumns import ascending, find

KEYS = st.binary(max_size=3)
BATCHES = st.lists(st.dictionaries(KEYS, st.none() | st.binary(max_size=40), max_size=30), max_size=12)


def column(items: Sequence[bytes | None]) -> pa.BinaryArray:
    # A slice: what comes over the wire does not begin at 0.
    return pa.array([b"before", None, *items], pa.binary()).slice(2)


@settings(deadline=None)
@given(BATCHES, st.lists(KEYS, max_size=40), st.sampled_from([0, 300, 2_000, 1 << 20]))
def test_states_are_those_of_the_store(
    batches: list[dict[bytes, bytes | None]], asked: list[bytes], bytes_max: int
) -> None:
    cache, store = EntryCache(bytes_max), {b"old": b"1", b"": b"2"}

    def read(keys: pa.BinaryArray) -> pa.BinaryArray:
        return pa.array([store.get(key) for key in keys.to_pylist()], pa.binary())

    for batch in batches:
        for key, value in batch.items():
            if value is None:
                store.pop(key, None)
            else:
                store[key] = value
        cache.put([(column(list(batch)), column(list(batch.values())))])
        assert cache.bytes <= bytes_max
        for keys in (asked, sorted(asked)):
            assert [store.get(key) for key in keys] == cache.states(column(keys), read).to_pylist()


def test_what_was_written_is_not_read_again_and_the_rest_is() -> None:
    cache, asked = EntryCache(1 << 20), []

    def read(keys: pa.BinaryArray) -> pa.BinaryArray:
        asked.append(keys.to_pylist())
        return pa.nulls(len(keys), pa.binary())

    cache.put([(column([b"b", b"a"]), column([b"2", None]))])
    assert [None, b"2"] == cache.states(column([b"a", b"b"]), read).to_pylist()
    assert [] == asked
    assert [b"2", None, None] == cache.states(column([b"b", b"c", b"a"]), read).to_pylist()
    assert [[b"c"]] == asked
    cache.clear()
    assert [None] == cache.states(column([b"b"]), read).to_pylist()
    assert [[b"c"], [b"b"]] == asked


@pytest.mark.parametrize("size", range(100, 6_000, 100))
def test_the_newest_entries_stay_when_there_are_too_many(size: int) -> None:
    cache = EntryCache(20_000)
    unread: list[bytes] = []

    def read(keys: pa.BinaryArray) -> pa.BinaryArray:
        unread.extend(keys.to_pylist())
        return pa.nulls(len(keys), pa.binary())

    for batch in range(250):
        cache.put([(column([b"%d" % batch]), column([bytes(size)]))])
        assert 0 < cache.bytes <= 20_000
        cache.states(column([b"%d" % batch]), read)
    assert not unread
    cache.states(column([b"0"]), read)
    assert [b"0"] == unread


@settings(deadline=None)
@given(st.sets(KEYS), st.lists(KEYS))
def test_keys_are_found_in_sorted_ones(known: set[bytes], keys: list[bytes]) -> None:
    ordered = sorted(known)
    wanted = np.array([len(key) != 1 for key in keys], np.bool_)
    expected = [
        ordered.index(key) if want and key in known else -1 for key, want in zip(keys, wanted.tolist(), strict=True)
    ]
    assert expected == find(pa.array(keys, pa.binary()), pa.array(ordered, pa.binary()), wanted).tolist()


@settings(deadline=None)
@given(st.lists(KEYS))
def test_ascending_keys_are_told(keys: list[bytes]) -> None:
    assert (sorted(set(keys)) == keys) == ascending(pa.array(keys, pa.binary()))
