"""Hashes of columns are those of single entries, and rows are found where keys come in the order of the others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statestore.committedhashes import CommittedHashes
from statestore.digest import entry_hashes
from statestore.entryhashes import column_hashes, rows_of
from statestore.errors import InvariantBroken

# The hash has a way of its own for each range of lengths: up to 16, 128, 240, 1024 bytes and above.
LENGTHS = (0, 1, 3, 4, 8, 9, 16, 17, 64, 128, 129, 240, 241, 1_024, 1_025, 5_000)
KEYS = st.binary(max_size=4)


def binary(items: Sequence[bytes | None]) -> pa.BinaryArray:
    return pa.array(list(items), pa.binary())


def test_each_length_has_the_hash_of_the_other_implementation() -> None:
    keys = [bytes(range(size % 256)) for size in LENGTHS for _ in LENGTHS]
    values: list[bytes | None] = [bytes([size % 256]) * size for _ in LENGTHS for size in LENGTHS]
    values[7] = None
    found = column_hashes(binary(keys), binary(values))
    assert entry_hashes(keys, values) == found.tolist()
    assert 0 == found[7]


def test_a_slice_hashes_its_own_rows() -> None:
    keys, values = [b"%d" % number for number in range(9)], [b"v" * number for number in range(9)]
    found = column_hashes(binary(keys).slice(3, 4), binary(values).slice(3, 4))
    assert entry_hashes(keys[3:7], values[3:7]) == found.tolist()


@settings(max_examples=300, deadline=None)
@given(known=st.lists(KEYS), keys=st.lists(KEYS), cut=st.integers(0, 3))
def test_rows_are_those_of_the_next_equal_key(known: list[bytes], keys: list[bytes], cut: int) -> None:
    expected, start = [], 0
    for key in keys[cut:]:
        # One that is not there ends the search.
        start = known.index(key, start) + 1 if start >= 0 and key in known[start:] else -1
        expected.append(start - 1 if start > 0 else -1)
    assert expected == rows_of(binary(keys).slice(cut), binary(known)).tolist()


@settings(max_examples=300, deadline=None)
@given(
    store=st.dictionaries(KEYS, st.binary(max_size=9)),
    reads=st.lists(st.lists(KEYS, max_size=6), max_size=4),
    written=st.lists(KEYS, unique=True),
)
def test_whatever_was_read_hashes_are_of_what_is_committed(
    store: dict[bytes, bytes], reads: list[list[bytes]], written: list[bytes]
) -> None:
    def read(keys: pa.BinaryArray) -> pa.BinaryArray:
        return binary([store.get(key) for key in keys.to_pylist()])

    known = CommittedHashes()
    for keys in reads:
        known.add(binary(keys), read(binary(keys)))
    for order in (written, [key for keys in reads for key in dict.fromkeys(keys)]):
        distinct = list(dict.fromkeys(order))
        assert entry_hashes(distinct, [store.get(key) for key in distinct]) == known.of(binary(distinct), read).tolist()
    known.clear()
    store.clear()
    assert not np.any(known.of(binary(written), read))


def test_what_was_read_is_not_read_again() -> None:
    asked: list[bytes] = []

    def read(keys: pa.BinaryArray) -> pa.BinaryArray:
        asked.extend(keys.to_pylist())
        return binary([b"state"] * len(keys))

    known = CommittedHashes()
    known.add(binary([b"a", b"b"]), binary([b"1", b"2"]))
    known.add(binary([b"c"]), binary([None]))
    assert entry_hashes([b"b", b"c"], [b"2", None]) == known.of(binary([b"b", b"c"]), read).tolist()
    assert [] == asked
    # In another order neither, and of what was not read that alone.
    again = known.of(binary([b"c", b"a", b"b"]), read)
    assert entry_hashes([b"c", b"a", b"b"], [None, b"1", b"2"]) == again.tolist()
    assert [] == asked
    new = known.of(binary([b"d", b"b", b"a"]), read)
    assert entry_hashes([b"d", b"b", b"a"], [b"state", b"2", b"1"]) == new.tolist()
    assert [b"d"] == asked


def test_other_types_are_refused() -> None:
    with pytest.raises(InvariantBroken, match="column is not binary"):
        column_hashes(pa.array([b"a"], pa.large_binary()), binary([b"1"]))
