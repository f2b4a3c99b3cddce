"""Segments of a window store: when they come and go, what is late, what a restore and a rollback leave."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest

from statestore.context import ChangelogRecord
from statestore.errors import FormatUnsupported
from statestore.kinds.window import Window
from statestore.layouts import window as layout
from statestore.store import Isolation
from tests.statestore.conftest import PERSISTENT, SETUPS, TRANSACTIONAL, TaskUnderTest
from tests.statestore.kinds.test_window import HUGE_MS, RETENTION_MS, fill, key, opened, values

on_disk = pytest.mark.parametrize("setup", PERSISTENT, ids=str)
in_memory = pytest.mark.parametrize("setup", [setup for setup in SETUPS if not setup.persistent], ids=str)
transactional = pytest.mark.parametrize("setup", TRANSACTIONAL, ids=str)

MINUTE_MS = 60_000
DROPPED = "dropped-records-total"
PUTS = [(0, 120_000), (1, 150_000), (2, 180_000), (4, 240_000), (5, 270_000), (6, 300_000), (7, 330_000), (8, 360_000)]


@pytest.fixture
def store(task: TaskUnderTest) -> Window:
    return opened(task)


@pytest.fixture
def often_switching() -> Iterator[None]:
    """Threads take turns after a few steps each."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def segments(store: Window, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> list[int]:
    """Numbers of the segments that exist."""
    return store._segments.numbers(store.transaction.spaces(isolation))


def dropped(task: TaskUnderTest, store: Window) -> float:
    return task.stores.counters[DROPPED, store.name]


def put(store: Window, number: int, start: int) -> None:
    store.put(key(number), str(number).encode(), start)


class TestSegments:
    @pytest.mark.case("W-38", "W-40")
    def test_they_follow_stream_time(self, store: Window) -> None:
        expected = [[2], [2], [2, 3], [2, 3, 4], [2, 3, 4], [3, 4, 5], [3, 4, 5], [4, 5, 6]]
        found = []
        for number, start in PUTS:
            put(store, number, start)
            found.append(segments(store))
        assert expected == found
        assert [] == list(store.fetch(key(4), 0, 240_000))

    @pytest.mark.case("W-39")
    def test_reads_begin_exactly_one_after_the_retention(self, store: Window) -> None:
        for number, start in PUTS[:5]:
            put(store, number, start)
        assert [] == list(store.fetch(key(0), 120_000 - 3, 120_000 + 3))
        assert [] == list(store.fetch(key(1), 150_000 - 3, 150_000 + 3))
        assert ["2", "4", "5"] == values(store.all())
        put(store, 1, 150_001)
        assert ["1", "2", "4", "5"] == values(store.all())

    @pytest.mark.case("W-42")
    def test_duplicates_expire_like_the_rest(self, task: TaskUnderTest) -> None:
        store = opened(task, retain_duplicates=True)
        for start in (0, 59_999, 59_999, 60_000):
            put(store, 1, start)
        assert 4 == len(list(store.fetch(key(1), 0, 240_000)))
        assert [0, 1] == segments(store)
        put(store, 1, 180_000)
        assert [180_000] == [start for start, _ in store.fetch(key(1), 0, 240_000)]
        assert [1, 3] == segments(store)
        put(store, 1, 300_000)
        assert [300_000] == [start for start, _ in store.fetch(key(1), 240_000, 1_000_000)]
        assert [3, 5] == segments(store)

    @pytest.mark.case("W-45", "W-46")
    def test_what_comes_for_a_dead_segment_makes_none(self, task: TaskUnderTest, store: Window) -> None:
        put(store, 0, 0)
        put(store, 1, MINUTE_MS)
        put(store, 2, 7 * MINUTE_MS)
        put(store, 3, 0)
        assert [7] == segments(store)
        assert 1 == dropped(task, store)

    @pytest.mark.case("W-47")
    def test_every_form_of_read_is_cut(self, task: TaskUnderTest) -> None:
        store = opened(task, retention_ms=1000)
        for number, start in enumerate((10, 500, 1000, 60_000)):
            put(store, number, start)
        everything = (0, 100_000)
        assert ["3"] == values(store.all()) == values(store.fetch_all(*everything))
        assert ["3"] == values(store.fetch_range(key(0), key(3), *everything))
        assert [] == values(store.fetch(key(2), *everything))
        assert [None, b"3"] == [store.fetch_one(key(2), 1000), store.fetch_one(key(3), 60_000)]

    @pytest.mark.case("W-48")
    def test_a_removed_window_is_gone(self, store: Window) -> None:
        put(store, 1, 10)
        store.put(key(1), None, 10)
        assert [] == list(store.fetch(key(1), 0, 1000))

    @pytest.mark.case("W-28")
    def test_an_interval_that_is_wholly_expired_is_empty(self, store: Window) -> None:
        put(store, 1, 0)
        put(store, 1, 4 * RETENTION_MS)
        assert [] == list(store.fetch(key(1), 0, 10))


class TestLateness:
    @pytest.mark.case("W-27")
    def test_a_late_write_is_counted_and_dropped(self, task: TaskUnderTest, store: Window) -> None:
        fill(store, [(1, 240_000, "initial"), (1, 0, "late"), (1, 120_001, "on time")])
        assert 1 == dropped(task, store)
        assert task.stores.metrics.figures(store.name)["dropped-records-rate"] > 0
        assert ["on time", "initial"] == values(store.all())

    @pytest.mark.case("W-54")
    def test_on_disk_a_segment_is_late_as_a_whole_in_memory_every_window_by_itself(
        self, task: TaskUnderTest, store: Window
    ) -> None:
        put(store, 1, 200_000)
        put(store, 2, 79_999)
        assert (0 if store.persistent() else 1) == dropped(task, store)
        put(store, 3, 80_001)
        assert ["3", "1"] == values(store.all())

    def test_a_late_write_is_in_the_changelog_as_in_kafka_streams(self, task: TaskUnderTest, store: Window) -> None:
        put(store, 1, 240_000)
        put(store, 1, 0)
        assert [layout.pack(key(1), 240_000), layout.pack(key(1), 0)] == [record.key for record in task.logged]


class TestOpenIterators:
    @pytest.mark.case("W-44")
    @on_disk
    def test_on_disk_they_lose_segments_that_are_dropped(self, store: Window) -> None:
        for number, start in enumerate((0, MINUTE_MS, 2 * MINUTE_MS)):
            store.put(key(1), str(number).encode(), start)
        entries = store.fetch(key(1), 0, 2 * MINUTE_MS)
        put(store, 1, 3 * MINUTE_MS)
        assert ["1", "2"] == values(entries)

    @pytest.mark.case("W-52")
    @in_memory
    def test_in_memory_they_keep_them(self, store: Window) -> None:
        fill(store, [(1, 0, "a"), (2, 5, "b"), (1, 10, "c"), (2, 15, "d")])
        first, second = store.fetch(key(1), 0, 50), store.fetch(key(2), 0, 50)
        put(store, 1, 2 * RETENTION_MS)
        assert ["a", "c"] == values(first)
        assert ["b", "d"] == values(second)
        assert [] == list(store.fetch(key(1), 0, 50))

    @in_memory
    def test_readers_may_open_them_while_segments_are_dropped(self, store: Window, often_switching: None) -> None:
        ended = Event()

        def read() -> None:
            while not ended.is_set():
                # Held, since the writer then has more of them to go through.
                held = [store.fetch(key(1), 0, HUGE_MS) for _ in range(100)]
                del held

        with ThreadPoolExecutor(2) as readers:
            reading = [readers.submit(read) for _ in range(2)]
            try:
                for number in range(1_000):
                    put(store, 1, number * MINUTE_MS)
            finally:
                ended.set()
            for one in reading:
                one.result()
        assert [998, 999] == [start // MINUTE_MS for start, _ in store.fetch(key(1), 0, HUGE_MS)]

    @pytest.mark.case("W-51")
    @in_memory
    def test_an_iterator_keeps_the_lower_bound_of_its_start(self, store: Window) -> None:
        names = ["one", "two", "three", "four", "five"]
        fill(store, [(1, n * 30_000, name) for n, name in enumerate(names)])
        entries = store.fetch_all(0, 120_000)
        fill(store, [(1, 150_000, "six")])
        assert names[1:] == values(entries)
        assert ["three", "four", "five", "six"] == values(store.fetch_all(0, 150_000))

    @transactional
    def test_a_committed_iterator_keeps_segments_that_a_commit_drops(self, store: Window) -> None:
        put(store, 1, 0)
        put(store, 2, MINUTE_MS)
        store.commit(2)
        entries = store.all(Isolation.READ_COMMITTED)
        put(store, 3, 10 * MINUTE_MS)
        store.commit(3)
        assert ["1", "2"] == values(entries)


class TestCommit:
    @transactional
    def test_a_rollback_brings_dropped_segments_back(self, store: Window) -> None:
        put(store, 1, 0)
        store.commit(1)
        put(store, 2, 10 * MINUTE_MS)
        assert ([10], [0]) == (segments(store), segments(store, Isolation.READ_COMMITTED))
        store.rollback()
        assert ([0], ["1"]) == (segments(store), values(store.all()))
        put(store, 2, 10 * MINUTE_MS)
        store.commit(2)
        assert [10] == segments(store, Isolation.READ_COMMITTED)

    @pytest.mark.case("W-43")
    @on_disk
    def test_segments_that_are_dead_at_the_stored_stream_time_go_when_the_store_opens(
        self, task: TaskUnderTest, store: Window
    ) -> None:
        for number in range(7):
            store.transaction.base.write({f"windows.{number * MINUTE_MS}": [(layout.pack(b"k", 0), b"")]})
        store.put(key(1), b"", 6 * MINUTE_MS)
        assert [4, 5, 6] == segments(store)
        store.commit(1)
        store.transaction.base.write({"windows.0": [(layout.pack(b"k", 0), b"")]})
        again = task.restart(Window("windows", retention_ms=RETENTION_MS, window_size_ms=3, **task.setup.options))
        assert 6 * MINUTE_MS == again.stream_time_ms
        assert [4, 5, 6] == segments(again)

    @on_disk
    def test_another_segment_interval_is_refused(self, task: TaskUnderTest, store: Window) -> None:
        put(store, 1, 0)
        store.commit(1)
        with pytest.raises(FormatUnsupported):
            task.restart(Window("windows", retention_ms=10 * RETENTION_MS, window_size_ms=3, **task.setup.options))


class TestRestore:
    def restored(self, task: TaskUnderTest, records: list[ChangelogRecord], **options: Any) -> Window:
        store = Window("again", retention_ms=RETENTION_MS, window_size_ms=3, **options, **task.setup.options)
        task.open(store).restore(records, offset=len(records))
        return store

    @pytest.mark.case("W-41", "W-37")
    def test_it_gives_what_was_written(self, task: TaskUnderTest, store: Window) -> None:
        for number, start in PUTS:
            put(store, number, start)
        again = self.restored(task, task.logged)
        assert ["5", "6", "7", "8"] == values(again.all())
        assert [4, 5, 6] == segments(again)
        assert (360_000, 8) == (again.stream_time_ms, again.committed_offset())
        assert list(store.all(Isolation.READ_COMMITTED)) == [] or not store.transactional()
        assert ["5", "6", "7", "8"] == values(again.all(Isolation.READ_COMMITTED))

    @pytest.mark.case("W-50")
    def test_what_is_dead_at_the_newest_time_of_a_batch_is_skipped_and_not_counted(self, task: TaskUnderTest) -> None:
        times = [0, 360_000]
        records = [ChangelogRecord("again", layout.pack(b"k", time), b"v", time) for time in times]
        again = self.restored(task, records)
        assert [6] == segments(again)
        assert 0 == dropped(task, again)

    @pytest.mark.case("W-53")
    def test_windows_come_back_in_order(self, task: TaskUnderTest) -> None:
        triples = [(1, 0, "one"), (2, 3, "two"), (3, 6, "three")]
        records = [ChangelogRecord("again", layout.pack(key(n), at), value.encode(), at) for n, at, value in triples]
        assert ["one", "two", "three"] == values(self.restored(task, records).fetch_all(0, 6))

    def test_a_restored_store_goes_on_with_the_sequence_of_its_duplicates(self, task: TaskUnderTest) -> None:
        store = opened(task, retain_duplicates=True)
        fill(store, [(1, 0, "one"), (1, 0, "two")])
        again = self.restored(task, list(task.logged), retain_duplicates=True)
        fill(again, [(1, 0, "three")])
        assert ["one", "two", "three"] == values(again.fetch(key(1), 0, 0))

    def test_a_segment_that_dies_during_a_restore_is_dropped_at_once(self, task: TaskUnderTest) -> None:
        again = self.restored(task, [ChangelogRecord("again", layout.pack(b"k", 0), b"v", 0)])
        again.restore([ChangelogRecord("again", layout.pack(b"k", 360_000), b"v", 0)])
        assert [6] == segments(again, Isolation.READ_COMMITTED)
