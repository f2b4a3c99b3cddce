"""Where entries of a task's store lie: by time, expired by segment, read as one."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.columns import Timed, records_of
from statestore.config import StoreSpec
from statestore.layouts.window import pack
from statestore.murmur2 import partitions_of
from statestore.placement import Placement
from statestore.spaces.base import ChangeColumns
from statestore.spaces.memory import MemoryBase

MINUTE = 60_000
PLAIN = Placement(StoreSpec("s", "t", "id"))
WINDOWED = Placement(StoreSpec("s", "t", "id", retention_ms=2 * MINUTE))


@pytest.fixture
def stored() -> MemoryBase:
    """Keys a, ab and b in three minutes each, and a space that is not the store's."""
    base = MemoryBase()
    changes = [(pack(key, n * MINUTE), b"%d" % n) for n in range(3) for key in (b"b", b"a", b"ab")]
    base.write({**WINDOWED.placed(changes), "checkpoint": [(b"x", b"y")]})
    return base


def test_without_windows_all_is_one_space_and_nothing_expires() -> None:
    keys = pa.array([b"a"], pa.binary())
    assert {"s": [(b"a", b"1")]} == PLAIN.placed([(b"a", b"1")])
    assert keys == PLAIN.owners(keys)
    assert [] == PLAIN.expired(["s", "checkpoint"], 10**15)
    assert [True] == PLAIN.live(keys, 10**15).tolist()
    records = records_of([(b"a", b"1", 5), (None, b"2", 6)])
    assert {-1: records} == PLAIN.results(records, 3)


def test_a_result_goes_where_its_key_without_a_window_goes_and_keeps_the_window_s_start() -> None:
    keys = [b"k%d" % n for n in range(20)]
    timed: list[Timed] = [(pack(key, n), None if n % 3 else b"%d" % n, n) for n, key in enumerate(keys)]
    found = WINDOWED.results(records_of(timed), 3)
    assert set(found) == {0, 1, 2}
    partitions = partitions_of(pa.array(keys, pa.binary()), 3).tolist()
    for partition, records in found.items():
        mine = [n for n, each in enumerate(partitions) if each == partition]
        assert records == records_of([(pack(keys[n], n)[:-4], timed[n][1], n) for n in mine])
    nothing = records_of([])
    assert {-1: nothing} == WINDOWED.results(nothing, 3)


def test_a_key_s_windows_belong_to_the_key_and_lie_by_their_time(stored: MemoryBase) -> None:
    keys = pa.array([pack(b"a", 5), pack(b"a", 10**12)], pa.binary())
    assert [b"a", b"a"] == WINDOWED.owners(keys).to_pylist()
    assert ["s.0", "s.60000", "s.120000"] == WINDOWED.spaces(stored.spaces())
    wanted = [pack(b"b", 2 * MINUTE), pack(b"a", 1), pack(b"ab", 0)]
    assert [b"2", None, b"0"] == WINDOWED.get_many(stored, wanted)


def test_a_scan_goes_through_all_segments_in_the_order_of_keys(stored: MemoryBase) -> None:
    everything = [key for key, _ in WINDOWED.scan(stored)]
    assert sorted(everything) == everything
    assert 9 == len(everything)
    some = [value for _, value in WINDOWED.scan(stored, lower=pack(b"b", MINUTE), upper=pack(b"b", 3 * MINUTE))]
    assert [b"1", b"2"] == some


def test_what_is_readable_is_exact_and_what_is_kept_goes_by_segment(stored: MemoryBase) -> None:
    # At two minutes and a half the first window is out of retention; its segment may hold others that are not.
    now = 2 * MINUTE + 30_000
    assert {b"1", b"2"} == {value for _, value in WINDOWED.scan(stored, stream_time_ms=now)}
    assert [] == WINDOWED.expired(stored.spaces(), now)
    assert ["s.0"] == WINDOWED.expired(stored.spaces(), 3 * MINUTE)
    starts = pa.array([pack(b"a", start) for start in (59_999, 60_000)], pa.binary())
    assert [False, True] == WINDOWED.live(starts, 3 * MINUTE).tolist()


@given(windows=st.lists(st.tuples(st.binary(max_size=3), st.integers(0, 5 * MINUTE))), now=st.integers(0, 9 * MINUTE))
def test_columns_lie_where_their_rows_do(windows: list[tuple[bytes, int]], now: int) -> None:
    keys = [pack(key, start) for key, start in windows]
    # A slice, as Arrow's columns may be, beside keys that are asked for and not stored.
    column = pa.array([pack(b"not", 1), *keys, pack(b"none", MINUTE)], pa.binary()).slice(1)
    changes = [(key, None if n % 5 == 4 else b"%d" % n) for n, key in enumerate(keys)]
    placed = WINDOWED.placed(changes)
    found = WINDOWED.placed_lists(ChangeColumns.of(changes), column.slice(0, len(keys)))
    assert placed == {space: list(its) for space, its in found.items()}
    base = MemoryBase()
    base.write(placed)
    assert [base.get(WINDOWED.space(key), key) for key in column.to_pylist()] == WINDOWED.states(
        base, column
    ).to_pylist()
    # A batch without rows asks all the same: for the version, not for states.
    assert [] == WINDOWED.states(base, column.slice(0, 0)).to_pylist()
    dead = WINDOWED.expired(list(placed), now)
    assert [WINDOWED.space(key) not in dead for key in keys] == WINDOWED.live(column, now).tolist()[: len(keys)]
