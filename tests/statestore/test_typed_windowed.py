"""Typed window and session stores: types in and out, missing keys, inverted ranges, figures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from statestore.errors import InvalidInput
from statestore.kinds.key_value import KeyValue
from statestore.kinds.session import Session
from statestore.kinds.timestamped_window import TimestampedWindow
from statestore.kinds.versioned import Versioned
from statestore.kinds.window import Window
from statestore.query.queries import RangeQuery
from statestore.store import Isolation
from statestore.typed.key_value import TypedKeyValueStore
from statestore.typed.serdes import INTEGER, LONG, STRING, ValueAndTimestamp
from statestore.typed.session import TypedSessionStore
from statestore.typed.versioned import TypedVersionedStore
from statestore.typed.window import TypedTimestampedWindowStore, TypedWindowStore
from statestore.windows import Windowed
from tests.statestore.conftest import TaskUnderTest
from tests.support.present import present

LENGTHS: dict[str, Any] = {"retention_ms": 120_000, "window_size_ms": 3}


def refused(*reads: Callable[[], object]) -> None:
    """Each finds bytes that its serde does not read."""
    for read in reads:
        with pytest.raises(InvalidInput, match="not of the serde's format"):
            read()


@pytest.fixture
def windows(task: TaskUnderTest) -> TypedWindowStore[int, str]:
    store = TypedWindowStore(Window("w", **LENGTHS, **task.setup.options), INTEGER, STRING)
    store.init(task.stores)
    return store


@pytest.fixture
def sessions(task: TaskUnderTest) -> TypedSessionStore[str, int]:
    store = TypedSessionStore(Session("s", retention_ms=10_000, **task.setup.options), STRING, LONG)
    store.init(task.stores)
    return store


class TestWindows:
    def test_types_go_in_and_come_out(self, windows: TypedWindowStore[int, str]) -> None:
        for key, value, start in ((1, "one", 0), (2, "two", 1), (2, "three", 2)):
            windows.put(key, value, start)
        windows.put(1, None, 5)
        entries = [(Windowed(1, 0, 3), "one"), (Windowed(2, 1, 4), "two"), (Windowed(2, 2, 5), "three")]
        assert entries == list(windows.all()) == list(windows.fetch_all(0, 9)) == list(windows.fetch_range(1, 2, 0, 9))
        assert entries[::-1] == list(windows.backward_all()) == list(windows.backward_fetch_all(0, 9))
        assert entries[:0:-1] == list(windows.backward_fetch_range(2, None, 0, 9))
        assert [(1, "two"), (2, "three")] == list(windows.fetch(2, 0, 9))
        assert [(2, "three"), (1, "two")] == list(windows.backward_fetch(2, 0, 9))
        assert ["two", None] == [windows.fetch_one(2, 1), windows.fetch_one(2, 0)]

    @pytest.mark.case("W-22")
    def test_a_missing_key_is_refused(self, windows: TypedWindowStore[int, str]) -> None:
        for call in (
            lambda: windows.put(None, "x", 0),  # type: ignore[arg-type]
            lambda: windows.fetch(None, 1, 2),  # type: ignore[arg-type]
            lambda: windows.fetch_one(None, 1),  # type: ignore[arg-type]
        ):
            with pytest.raises(TypeError):
                call()

    @pytest.mark.case("W-26")
    def test_an_inverted_range_is_empty_and_warned_of(self, windows: TypedWindowStore[int, str]) -> None:
        windows.put(0, "zero", 0)
        for read in (windows.fetch_range, windows.backward_fetch_range):
            with capture_logs() as logs:
                assert [] == list(read(-1, 1, 0, 10))
            assert ["warning"] == [line["log_level"] for line in logs]
            assert "empty iterator" in logs[0]["event"]

    def test_operations_are_counted(self, task: TaskUnderTest, windows: TypedWindowStore[int, str]) -> None:
        windows.put(1, "one", 0)
        windows.fetch(1, 0, 0)
        assert {"put-rate", "fetch-rate"} <= task.stores.metrics.figures("w").keys()

    def test_bytes_of_another_format_are_told_from_an_iterator_as_from_a_single_read(
        self, windows: TypedWindowStore[int, str]
    ) -> None:
        windows.store.put(present(INTEGER.serialize(1)), b"\xff", 0)
        refused(
            lambda: windows.fetch_one(1, 0),
            lambda: list(windows.fetch(1, 0, 9)),
            lambda: list(windows.backward_fetch(1, 0, 9)),
            lambda: list(windows.fetch_range(1, 1, 0, 9)),
            lambda: list(windows.all()),
        )


class TestTimestampedWindows:
    def test_values_come_with_their_times(self, task: TaskUnderTest) -> None:
        kind = TimestampedWindow("t", **LENGTHS, **task.setup.options)
        store = TypedTimestampedWindowStore(kind, INTEGER, STRING)
        store.init(task.stores)
        store.put(1, ValueAndTimestamp("one", 97), 0)
        assert ValueAndTimestamp("one", 97) == store.fetch_one(1, 0)
        assert [(0, ValueAndTimestamp("one", 97))] == list(store.fetch(1, 0, 9))
        assert [(b"one", 97)] == [(record.value, record.timestamp_ms) for record in task.logged]

    @pytest.mark.case("TW-04")
    def test_over_a_plain_store_times_are_unknown(self, task: TaskUnderTest) -> None:
        kind = Window("t", **LENGTHS, **task.setup.options)
        store = TypedTimestampedWindowStore(kind, INTEGER, STRING)
        store.init(task.stores)
        store.put(1, ValueAndTimestamp("one", 97), 0)
        assert ValueAndTimestamp("one", -1) == store.fetch_one(1, 0)
        assert [(Windowed(1, 0, 3), ValueAndTimestamp("one", -1))] == list(store.all())
        assert [b"one"] == [value for _, value in kind.fetch(present(INTEGER.serialize(1)), 0, 0)]


class TestWithoutWindows:
    def test_bytes_of_another_format_in_a_key_value_store(self, task: TaskUnderTest) -> None:
        store = TypedKeyValueStore(KeyValue("k", **task.setup.options), STRING, LONG)
        store.init(task.stores)
        store.store.put(b"a", b"short")
        by_prefix = RangeQuery[str, int](prefix=b"a")
        refused(
            lambda: store.get("a"),
            lambda: list(store.all()),
            lambda: list(store.range("a", "b")),
            lambda: list(by_prefix.ask(store, Isolation.READ_UNCOMMITTED)),
        )

    def test_bytes_of_another_format_in_a_versioned_store(self, task: TaskUnderTest) -> None:
        store = TypedVersionedStore(Versioned("v", history_retention_ms=10_000, **task.setup.options), STRING, LONG)
        store.init(task.stores)
        store.store.put(b"a", b"short", 1)
        refused(lambda: store.get("a"), lambda: list(store.versions("a")))


class TestSessions:
    def test_types_go_in_and_come_out(self, sessions: TypedSessionStore[str, int]) -> None:
        entries = [(Windowed("a", 0, 5), 1), (Windowed("a", 7, 9), 2), (Windowed("b", 8, 10), 3)]
        for session, value in entries:
            sessions.put(session, value)
        both = (0, 100)
        assert entries == list(sessions.fetch_range("a", "b")) == list(sessions.find_ended(0, 10))
        assert entries == list(sessions.find_sessions_range(None, "b", *both))
        assert entries[::-1] == list(sessions.backward_fetch_range("a", None))
        assert entries[::-1] == list(sessions.backward_find_sessions_range("a", "b", *both))
        assert entries[:2] == list(sessions.fetch("a")) == list(sessions.find_sessions("a", *both))
        assert entries[1::-1] == list(sessions.backward_fetch("a")) == list(sessions.backward_find_sessions("a", *both))
        assert 2 == sessions.fetch_session("a", 7, 9)
        sessions.remove(Windowed("a", 7, 9))
        assert sessions.fetch_session("a", 7, 9) is None

    def test_bytes_of_another_format_are_told_from_an_iterator_as_from_a_single_read(
        self, sessions: TypedSessionStore[str, int]
    ) -> None:
        sessions.store.put(Windowed(b"a", 0, 5), b"short")
        refused(
            lambda: sessions.fetch_session("a", 0, 5),
            lambda: list(sessions.fetch("a")),
            lambda: list(sessions.backward_fetch_range(None, None)),
        )

    @pytest.mark.case("S-23")
    def test_a_missing_key_is_refused(self, sessions: TypedSessionStore[str, int]) -> None:
        for call in (
            lambda: sessions.find_sessions(None, 1, 2),  # type: ignore[arg-type]
            lambda: sessions.fetch(None),  # type: ignore[arg-type]
            lambda: sessions.remove(None),  # type: ignore[arg-type]
            lambda: sessions.put(None, 1),  # type: ignore[arg-type]
            lambda: sessions.put(Windowed(None, 0, 1), 1),  # type: ignore[arg-type]
        ):
            with pytest.raises(TypeError):
                call()

    @pytest.mark.case("S-24")
    def test_an_inverted_range_is_empty_and_warned_of(self, sessions: TypedSessionStore[str, int]) -> None:
        sessions.put(Windowed("a", 0, 5), 1)
        for read in (sessions.fetch_range, sessions.backward_fetch_range):
            with capture_logs() as logs:
                assert [] == list(read("b", "a"))
            assert ["warning"] == [line["log_level"] for line in logs]
        with capture_logs() as logs:
            assert [] == list(sessions.find_sessions_range("b", "a", 0, 10))
        assert "empty iterator" in logs[0]["event"]
