"""Keys of windowed stores: bytes by hand, order, bounds and segments."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statestore.layouts import bounds, session, window
from statestore.layouts.segments import MIN_INTERVAL_MS, Segments, default_interval_ms
from statestore.windows import MAX_TIME_MS

keys = st.binary(max_size=4)
times = st.integers(0, MAX_TIME_MS)


class TestWindowKeys:
    def test_a_key_is_key_then_start_then_sequence(self) -> None:
        expected = bytes.fromhex("6b6579000000000000ea5c00000007")
        assert expected == window.pack(b"key", 59_996, 7)

    @given(key=keys, start=times, sequence=st.integers(0, window.MAX_SEQUENCE))
    def test_unpack_gives_what_was_packed(self, key: bytes, start: int, sequence: int) -> None:
        stored = window.pack(key, start, sequence)
        assert (key, start, sequence) == window.unpack(stored)

    @given(key=keys, first=times, second=times)
    def test_entries_of_one_key_sort_by_time(self, key: bytes, first: int, second: int) -> None:
        assert (first < second) == (window.pack(key, first) < window.pack(key, second))

    @pytest.mark.case("W-36")
    def test_the_sequence_begins_with_one_and_wraps_after_31_bits(self) -> None:
        assert 1 == window.next_sequence(0)
        assert 0 == window.next_sequence(0x7FFF_FFFF)

    @settings(max_examples=300)
    @given(lower=st.none() | keys, upper=st.none() | keys, key=keys, start=times)
    def test_range_bounds_hold_every_key_between(
        self, lower: bytes | None, upper: bytes | None, key: bytes, start: int
    ) -> None:
        first, last = window.range_bounds(lower, upper, MAX_TIME_MS)
        stored = window.pack(key, start, window.MAX_SEQUENCE)
        assert not bounds.within(key, lower, upper) or bounds.within(stored, first, last)

    def test_the_bound_of_a_long_key_holds_its_prefixes(self) -> None:
        _, last = window.range_bounds(None, b"\0\0", MAX_TIME_MS)
        assert last is not None
        assert window.pack(b"\0", MAX_TIME_MS) <= last


@pytest.mark.case("S-29")
class TestSessionKeys:
    def test_a_key_is_key_then_end_then_start(self) -> None:
        expected = bytes.fromhex("6b657900000000000001f40000000000000064")
        assert expected == session.pack(b"key", 100, 500)

    @given(key=keys, start=times, end=times)
    def test_unpack_gives_what_was_packed(self, key: bytes, start: int, end: int) -> None:
        stored = session.pack(key, start, end)
        assert (key, start, end) == session.unpack(stored)

    @settings(max_examples=300)
    @given(lower=st.none() | keys, upper=st.none() | keys, key=keys, start=times, end=times)
    def test_range_bounds_hold_every_key_between(
        self, lower: bytes | None, upper: bytes | None, key: bytes, start: int, end: int
    ) -> None:
        first, last = session.range_bounds(lower, upper)
        assert not bounds.within(key, lower, upper) or bounds.within(session.pack(key, start, end), first, last)


class TestSegments:
    def test_an_interval_is_half_the_retention_and_at_least_a_minute(self) -> None:
        assert 60_000 == default_interval_ms(0) == default_interval_ms(120_001) == MIN_INTERVAL_MS
        assert 100_000 == default_interval_ms(200_000)

    @pytest.mark.case("W-38")
    def test_a_segment_is_named_by_its_first_time(self) -> None:
        segments = Segments("s", 120_000, 60_000)
        assert [1, 2, 2, 3] == [segments.number(time) for time in (119_999, 120_000, 179_999, 180_000)]
        assert "s.120000" == segments.space(2)

    def test_segments_are_found_among_other_spaces_in_order_of_time(self) -> None:
        segments = Segments("s", 120_000, 60_000)
        spaces = ["s", "s.120000", "s.60000", "s.60000.timestamped", "s.x", "s2.60000", "version"]
        assert [1, 2] == segments.numbers(spaces)
        assert [1] == Segments("s", 120_000, 60_000, ".timestamped").numbers(spaces)

    @pytest.mark.case("W-45")
    def test_a_segment_lives_until_its_number_is_below_that_of_the_retention(self) -> None:
        segments = Segments("s", 120_000, 60_000)
        assert [0, 0, 0, 1, 5] == [segments.oldest_live(time) for time in (-1, 0, 179_999, 180_000, 420_000)]

    def test_reads_begin_one_after_the_retention(self) -> None:
        segments = Segments("s", 120_000, 60_000)
        assert [0, 0, 1, 150_001] == [segments.readable_from(time) for time in (-1, 119_999, 120_000, 270_000)]

    @pytest.mark.case("W-56")
    @pytest.mark.parametrize(("retention_ms", "interval_ms"), [(-1, 60_000), (1, 0)])
    def test_impossible_lengths_are_refused(self, retention_ms: int, interval_ms: int) -> None:
        with pytest.raises(ValueError, match="ms"):
            Segments("s", retention_ms, interval_ms)
