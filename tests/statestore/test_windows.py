"""Windows, grace and retention."""

from __future__ import annotations

from typing import Any

import pytest

from statestore import stores
from statestore.kinds.base import Kind
from statestore.kinds.session import Session
from statestore.kinds.window import Window
from statestore.materialized import Materialized
from statestore.typed.serdes import STRING
from statestore.windows import MAX_TIME_MS, SessionWindows, SlidingWindows, TimeWindows, Windows, window_end


def test_a_time_falls_into_every_window_that_has_begun_and_not_ended() -> None:
    windows = TimeWindows(size_ms=10, advance_ms=5)
    assert [[0], [0], [0, 5], [0, 5], [5, 10]] == [list(windows.starts(time)) for time in (0, 4, 5, 9, 10)]
    assert [20] == list(TimeWindows(size_ms=10, advance_ms=10).starts(29))


def test_the_end_of_a_window_is_never_past_the_largest_time() -> None:
    assert 13 == window_end(3, 10)
    assert MAX_TIME_MS == window_end(MAX_TIME_MS - 1, 10)


@pytest.mark.case("B-19")
def test_records_for_windows_that_ended_before_the_grace_are_late() -> None:
    windows = TimeWindows(size_ms=10, advance_ms=5, grace_ms=90)
    stream_time = -1
    counted: list[tuple[int, int]] = []
    late: list[tuple[int, int]] = []
    for time in (100, 0, 1, 2, 3, 4, 5, 6, 105, 106):
        stream_time = max(stream_time, time)
        for start in windows.starts(time):
            (late if windows.is_closed(start, stream_time) else counted).append((time, start))
    assert [(time, 0) for time in range(7)] == late
    assert [(5, 5), (6, 5)] == [(time, start) for time, start in counted if time < 100]


def test_a_session_is_late_when_it_ended_before_gap_and_grace() -> None:
    sessions = SessionWindows(gap_ms=5, grace_ms=10)
    assert [True, False] == [sessions.is_closed(end, 100) for end in (84, 85)]


@pytest.mark.case("B-20")
class TestRetention:
    @pytest.mark.parametrize(
        ("windows", "least_ms"),
        [
            (TimeWindows(size_ms=10, advance_ms=5, grace_ms=90), 100),
            (SessionWindows(gap_ms=10, grace_ms=90), 100),
            (SlidingWindows(difference_ms=10, grace_ms=90), 110),
        ],
    )
    def test_a_store_keeps_a_window_until_its_grace_is_over(self, windows: Windows, least_ms: int) -> None:
        windows.check_retention(least_ms)
        with pytest.raises(ValueError, match="retention"):
            windows.check_retention(least_ms - 1)

    @pytest.mark.parametrize(
        ("windows", "kind", "make", "size_ms", "least_ms"),
        [
            (TimeWindows(size_ms=10, advance_ms=5, grace_ms=90), Window, stores.window_store_builder, 10, 100),
            (SlidingWindows(difference_ms=10, grace_ms=90), Window, stores.window_store_builder, 10, 110),
            (SessionWindows(gap_ms=10, grace_ms=90), Session, stores.session_store_builder, None, 100),
        ],
    )
    def test_a_builder_keeps_windows_for_as_long_as_they_accept_records_and_refuses_less(
        self, windows: Windows, kind: type[Kind], make: Any, size_ms: int | None, least_ms: int
    ) -> None:
        said = Materialized[str, str].named("s").with_key_serde(STRING).with_value_serde(STRING).with_caching_disabled()

        def built(materialized: Materialized[str, str]) -> Any:
            return materialized.store_builder(make, kind, windows=windows).build().store

        assert least_ms == built(said).retention_ms
        assert size_ms is None or size_ms == built(said).window_size_ms
        assert least_ms + 1 == built(said.with_retention(least_ms + 1)).retention_ms
        with pytest.raises(ValueError, match=f"{least_ms} ms or more: {least_ms - 1} ms"):
            built(said.with_retention(least_ms - 1))

    def test_a_supplier_that_keeps_windows_too_short_or_not_at_all_is_refused(self) -> None:
        windows = TimeWindows(size_ms=10, advance_ms=10, grace_ms=90)
        for supplier, message in (
            (stores.persistent_window_store("s", 99, 10), "100 ms or more: 99 ms"),
            (stores.persistent_key_value_store("s"), "no windows"),
        ):
            said = Materialized[str, str].with_supplier(supplier).with_key_serde(STRING).with_value_serde(STRING)
            with pytest.raises(ValueError, match=message):
                said.store_builder(stores.window_store_builder, windows=windows)

    def test_impossible_windows_are_refused(self) -> None:
        for make in (
            lambda: TimeWindows(size_ms=0, advance_ms=1),
            lambda: TimeWindows(size_ms=10, advance_ms=11),
            lambda: TimeWindows(size_ms=10, advance_ms=0),
            lambda: TimeWindows(size_ms=10, advance_ms=10, grace_ms=-1),
            lambda: SessionWindows(gap_ms=0),
            lambda: SlidingWindows(difference_ms=-1),
        ):
            with pytest.raises(ValueError, match="ms"):
                make()
