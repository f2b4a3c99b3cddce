"""Window and session stores behind the record cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from statestore.cache.record_cache import RecordCache
from statestore.cache.windowed import CachedSession, CachedTimestampedWindow, CachedWindow
from statestore.kinds.buffered import Change
from statestore.layouts.timestamped import UNKNOWN
from statestore.position import Position
from statestore.store import TransactionalMechanism
from statestore.windows import MAX_TIME_MS, Windowed
from tests.statestore.conftest import Setup, TaskUnderTest
from tests.support.waiting import end_beside

RETENTION = 300_000
SEGMENT = 60_000


def opened(task: TaskUnderTest, **options: Any) -> CachedWindow:
    options = {"retention_ms": RETENTION, "window_size_ms": 10, "segment_interval_ms": SEGMENT} | options
    return task.open(CachedWindow("w", cache=RecordCache(100_000), **options, **task.setup.options))


@pytest.fixture
def store(task: TaskUnderTest) -> CachedWindow:
    return opened(task)


@pytest.fixture
def sessions(task: TaskUnderTest) -> CachedSession:
    cache = RecordCache(100_000)
    options = {"retention_ms": 10 * SEGMENT, "segment_interval_ms": SEGMENT}
    return task.open(CachedSession("s", cache=cache, **options, **task.setup.options))


class TestWindow:
    @pytest.mark.case("C-17")
    def test_the_cache_wins_for_the_same_key_and_window(self, store: CachedWindow) -> None:
        store.put(b"1", b"a", 10)
        store.flush_cache()
        store.put(b"1", b"b", 10)
        assert [(10, b"b")] == list(store.fetch(b"1", 10, 10))
        assert b"b" == store.fetch_one(b"1", 10)

    def test_put_all_is_cached(self, store: CachedWindow, task: TaskUnderTest) -> None:
        store.put(b"1", b"a", 10)
        store.put_all([(b"1", b"b", 10), (b"2", b"c", 20)])
        assert [] == task.logged
        assert (b"b", b"c") == (store.fetch_one(b"1", 10), store.fetch_one(b"2", 20))
        store.flush_cache()
        assert [b"b", b"c"] == [record.value for record in task.logged]

    @pytest.mark.timeout(120)
    def test_a_reader_and_what_lets_segments_expire_do_not_wait_for_each_other(self, tmp_path: Path) -> None:
        task = TaskUnderTest(Setup(TransactionalMechanism.INDEXED_BATCH, persistent=False), tmp_path)
        store = task.open(
            CachedWindow("w", cache=RecordCache(10**7), retention_ms=120_000, window_size_ms=1_000, persistent=False)
        )

        def write() -> None:
            for number in range(1, 2_000):
                store.put(b"k%d" % (number % 5), b"v", number * 20_000)
                if number % 3 == 0:
                    store.flush_cache()
                if number % 30 == 0:
                    store.commit(number)

        assert end_beside(write, lambda: list(store.all()))

    @pytest.mark.case("C-18")
    def test_reads_cross_from_store_to_cache_both_ways(self, store: CachedWindow) -> None:
        store.put(b"1", b"a", 10)
        store.flush_cache()
        store.put(b"1", b"b", 20)
        assert [(10, b"a"), (20, b"b")] == list(store.fetch(b"1", 10, 20))
        assert [(20, b"b"), (10, b"a")] == list(store.backward_fetch(b"1", 10, 20))

    @pytest.mark.case("C-19")
    def test_all_keys_between_two_times(self, store: CachedWindow) -> None:
        keys = b"abcdefgh"
        for time, key in enumerate(keys):
            store.put(bytes([key]), b"v", time)
        for first, last in [(0, 7), (2, 4), (5, 7)]:
            expected = [Windowed(keys[time : time + 1], time, time + 10) for time in range(first, last + 1)]
            assert expected == [window for window, _ in store.fetch_all(first, last)]
            assert expected[::-1] == [window for window, _ in store.backward_fetch_all(first, last)]

    @pytest.mark.case("C-20")
    def test_keys_are_ordered_segment_by_segment(self, task: TaskUnderTest) -> None:
        store = opened(task, segment_interval_ms=100)
        for value, (key, time) in enumerate([(b"a", 0), (b"aa", 0), (b"a", 1), (b"aa", 1), (b"a", 100)]):
            store.put(key, b"%d" % value, time)
            if value == 1:
                store.flush_cache()
        windows = [(window.key, window.start_ms) for window, _ in store.fetch_range(b"a", b"aa", 0, MAX_TIME_MS)]
        by_time = sorted(windows, key=lambda window: window[1])
        by_segment = [(b"a", 0), (b"a", 1), (b"aa", 0), (b"aa", 1), (b"a", 100)]
        assert (by_segment if task.setup.persistent else by_time) == windows
        assert [(0, b"0"), (1, b"2"), (100, b"4")] == list(store.fetch(b"a", 0, MAX_TIME_MS))

    @pytest.mark.case("C-21")
    def test_open_ends(self, store: CachedWindow) -> None:
        for time, key in enumerate([b"a", b"b", b"c"]):
            store.put(key, key, time)
            if time == 1:
                store.flush_cache()
        for lower, upper, expected in [
            (None, b"b", [b"a", b"b"]),
            (b"b", None, [b"b", b"c"]),
            (None, None, [b"a", b"b", b"c"]),
        ]:
            assert expected == [value for _, value in store.fetch_range(lower, upper, 0, 10)]
            assert expected[::-1] == [value for _, value in store.backward_fetch_range(lower, upper, 0, 10)]

    @pytest.mark.case("C-22")
    def test_a_window_that_is_not_there_is_none(self, store: CachedWindow) -> None:
        store.put(b"a", b"v", 10)
        assert store.fetch_one(b"a", 0) is None

    @pytest.mark.case("C-23")
    def test_records_added_under_an_iterator_are_seen_once(self, store: CachedWindow) -> None:
        for time in range(5):
            store.put(b"k", b"v%d" % time, time)
        seen = []
        for at, (window, value) in enumerate(store.all()):
            seen.append((window.start_ms, value))
            if at == 1:
                store.put(b"k", b"new", 5)
                store.flush_cache()
                store.put(b"k", b"newer", 6)
        assert [(time, b"v%d" % time) for time in range(5)] == seen[:5]
        assert len(seen) == len({start for start, _ in seen})
        assert 7 == len(list(store.all()))

    @pytest.mark.case("C-16")
    def test_the_position_is_that_of_what_was_flushed(self, task: TaskUnderTest, store: CachedWindow) -> None:
        for offset in (1, 2):
            task.at(offset)
            store.put(b"k%d" % offset, b"v", offset)
        task.at(3)
        assert Position() == store.position()
        store.flush_cache()
        assert Position({"": {0: 2}}) == store.position()

    def test_only_the_last_value_of_a_window_is_logged_and_forwarded(
        self, task: TaskUnderTest, store: CachedWindow
    ) -> None:
        forwarded: list[Change] = []
        store.set_flush_listener(lambda _, change, __: forwarded.append(change), send_old_values=True)
        for value in (b"a", b"b"):
            store.put(b"k", value, 10)
        store.flush_cache()
        store.put(b"k", None, 10)
        store.flush_cache()
        stored = b"k" + (10).to_bytes(8, "big") + bytes(4)
        assert [(stored, b"b", UNKNOWN), (stored, None, UNKNOWN)] == task.records()
        assert [Change(b"b", None), Change(None, b"b")] == forwarded

    def test_what_is_late_when_it_is_flushed_is_dropped(self, task: TaskUnderTest, store: CachedWindow) -> None:
        store.put(b"k", b"on time", RETENTION + SEGMENT)
        store.put(b"k", b"late", 0)
        store.flush_cache()
        assert [(RETENTION + SEGMENT, b"on time")] == list(store.fetch(b"k", 0, MAX_TIME_MS))
        assert 1 == task.stores.counters["dropped-records-total", "w"]

    def test_a_timestamped_store_logs_the_value_without_its_time(self, task: TaskUnderTest) -> None:
        options = {"retention_ms": RETENTION, "window_size_ms": 10, **task.setup.options}
        store = task.open(CachedTimestampedWindow("t", cache=RecordCache(1000), **options))
        store.put(b"k", (97).to_bytes(8, "big") + b"v", 5)
        store.flush_cache()
        assert [(b"v", 97)] == [record[1:] for record in task.records()]

    def test_duplicates_cannot_be_cached(self, task: TaskUnderTest) -> None:
        with pytest.raises(ValueError, match="duplicates"):
            opened(task, retain_duplicates=True)


class TestSession:
    @pytest.mark.case("C-24")
    def test_a_removed_session_is_hidden_at_once(self, sessions: CachedSession) -> None:
        a, b = Windowed(b"a", 0, 0), Windowed(b"b", 0, 0)
        sessions.put(a, b"1")
        sessions.put(b, b"2")
        sessions.flush_cache()
        sessions.remove(a)
        assert [] == list(sessions.find_sessions(b"a", 0, 0))
        assert sessions.fetch_session(b"a", 0, 0) is None
        assert b"2" == sessions.fetch_session(b"b", 0, 0)

    @pytest.mark.case("C-25")
    def test_sessions_of_six_segments_half_of_them_cached(self, sessions: CachedSession) -> None:
        all_sessions = [Windowed(b"a", n * SEGMENT, n * SEGMENT) for n in range(6)]
        for n, session in enumerate(all_sessions):
            sessions.put(session, b"%d" % n)
            if n == 2:
                sessions.flush_cache()
        found = sessions.find_sessions(b"a", 0, 5 * SEGMENT)
        assert all_sessions == [session for session, _ in found]
        backward = sessions.backward_find_sessions(b"a", 0, 5 * SEGMENT)
        assert all_sessions[::-1] == [session for session, _ in backward]

    @pytest.mark.case("C-26")
    def test_changes_are_between_flushes(self, sessions: CachedSession) -> None:
        forwarded: list[tuple[bytes | None, bytes | None]] = []
        sessions.set_flush_listener(lambda _, c, __: forwarded.append((c.new, c.old)), send_old_values=True)
        session = Windowed(b"a", 0, 0)
        for value in (b"1", b"2", None):
            sessions.put(session, value)
            sessions.flush_cache()
        for value in (b"1", b"2", None):
            sessions.put(session, value)
        sessions.flush_cache()
        assert [(b"1", None), (b"2", b"1"), (None, b"2")] == forwarded

    @pytest.mark.case("C-16")
    def test_the_position_is_that_of_what_was_flushed(self, task: TaskUnderTest, sessions: CachedSession) -> None:
        task.at(1)
        sessions.put(Windowed(b"a", 0, 0), b"1")
        task.at(2)
        sessions.put(Windowed(b"b", 0, 0), b"1")
        assert Position() == sessions.position()
        sessions.flush_cache()
        assert Position({"": {0: 2}}) == sessions.position()
