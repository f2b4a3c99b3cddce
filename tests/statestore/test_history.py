"""The bytes of superseded versions, and how a row changes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.errors import DataCorrupted
from statestore.layouts.history import History

NEXT_30 = "000000000000001e"
AT_20 = "0000000000000014"
AT_10 = "000000000000000a"


def test_a_row_is_bounds_then_versions_newest_first_then_values_oldest_first() -> None:
    row = History(30, ((20, b"new"), (10, b"old!")))
    expected = NEXT_30 + AT_10 + AT_20 + "00000003" + AT_10 + "00000004" + b"old!new".hex()
    assert expected == row.to_bytes().hex()


def test_a_tombstone_has_size_minus_one_and_an_empty_value_size_zero() -> None:
    row = History(30, ((20, None), (10, b"")))
    expected = NEXT_30 + AT_10 + AT_20 + "ffffffff" + AT_10 + "00000000"
    assert expected == row.to_bytes().hex()
    assert row == History.from_bytes(row.to_bytes())


times = st.integers(min_value=-(2**63), max_value=2**63 - 1)


@given(st.sets(times, min_size=2, max_size=9).flatmap(lambda found: st.tuples(st.just(found), st.data())))
def test_a_row_is_read_back_as_it_was(drawn: tuple) -> None:
    found, data = drawn
    newest, *rest = sorted(found, reverse=True)
    row = History(newest, tuple((time, data.draw(st.none() | st.binary(max_size=3))) for time in rest))
    assert row == History.from_bytes(row.to_bytes())


def test_bytes_that_are_no_row_are_refused() -> None:
    raw = History(30, ((20, b"new"), (10, b"old"))).to_bytes()
    for broken in (b"", raw[:20], raw[:-1], raw + b"x"):
        with pytest.raises(DataCorrupted):
            History.from_bytes(broken)


def test_versions_are_valid_up_to_the_one_above() -> None:
    row = History(30, ((20, b"b"), (10, b"a")))
    assert (1, 20) == (row.at(19), row.valid_to(1))
    assert (0, 30) == (row.at(20), row.valid_to(0))


def test_a_gap_below_a_new_version_becomes_a_tombstone() -> None:
    assert History(40, ((30, b"c"), (20, None), (10, b"a"))) == History.of(b"a", 10, 20).with_newest(b"c", 30, 40)
    assert History(30, ((20, b"b"), (10, b"a"))) == History.of(b"a", 10, 20).with_newest(b"b", 20, 30)


def test_a_marker_is_replaced_by_its_first_neighbour() -> None:
    marker = History.marker(20)
    assert History(20, ((10, b"a"),)) == marker.with_oldest(10, b"a")
    assert History(30, ((20, b"b"),)) == marker.with_newest(b"b", 20, 30)
    assert History(40, ((30, b"c"), (20, None))) == marker.with_newest(b"c", 30, 40)


def test_half_a_put_is_cut_off_by_the_put_that_follows_it() -> None:
    half = History(30, ((20, b"b"), (10, b"a")))
    assert History(40, ((20, b"b"), (10, b"a"))) == half.with_newest(b"b", 20, 40)
    assert History(40, ((10, b"x"),)) == History.of(b"x", 10, 30).with_newest(b"x", 10, 40)
