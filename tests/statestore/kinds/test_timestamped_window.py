"""Window stores whose values have a time, and their upgrade from plain ones."""

from __future__ import annotations

from typing import Any

import pytest

from statestore.errors import FormatUnsupported
from statestore.kinds.timestamped_window import TimestampedWindow
from statestore.kinds.window import Window
from statestore.layouts import timestamped
from statestore.layouts import window as layout
from tests.statestore.conftest import PERSISTENT, SETUPS, TaskUnderTest

on_disk = pytest.mark.parametrize("setup", PERSISTENT, ids=str)
in_memory = pytest.mark.parametrize("setup", [setup for setup in SETUPS if not setup.persistent], ids=str)

LENGTHS: dict[str, Any] = {"retention_ms": 120_000, "window_size_ms": 3}
UNKNOWN = b"\xff" * 8


def plain(task: TaskUnderTest) -> Window:
    store = task.open(Window("s", **LENGTHS, **task.setup.options))
    for start, value in ((0, b"one"), (70_000, b"two")):
        store.put(b"k", value, start)
    store.commit(2)
    return store


def timed(task: TaskUnderTest, **options: Any) -> TimestampedWindow:
    return TimestampedWindow("s", **LENGTHS, **options, **task.setup.options)


@pytest.mark.case("TW-01")
def test_the_store_keeps_the_time_and_the_changelog_has_it_as_the_record_s(task: TaskUnderTest) -> None:
    store = task.open(timed(task))
    task.at(1, time_ms=42)
    store.put(b"k", timestamped.pack(b"there", 97), 10)
    store.put(b"k", None, 10)
    store.put(b"k", timestamped.pack(b"", 98), 11)
    assert bytes.fromhex("0000000000000062") == store.fetch_one(b"k", 11)
    key, later = layout.pack(b"k", 10), layout.pack(b"k", 11)
    assert [(key, b"there", 97), (key, None, 42), (later, b"", 98)] == task.records()


@pytest.mark.case("TW-02")
def test_duplicates_have_sequences(task: TaskUnderTest) -> None:
    store = task.open(timed(task, retain_duplicates=True))
    for _ in range(2):
        store.put(b"k", timestamped.pack(b"there", 97), 10)
    expected = [(layout.pack(b"k", 10, sequence), b"there", 97) for sequence in (1, 2)]
    assert expected == task.records()


def test_a_restore_puts_the_record_s_time_in_front(task: TaskUnderTest) -> None:
    store = task.open(timed(task))
    store.put(b"k", timestamped.pack(b"there", 97), 10)
    again = task.open(TimestampedWindow("again", **LENGTHS, **task.setup.options))
    again.restore(task.logged)
    assert list(store.all()) == list(again.all())


class TestUpgrade:
    @on_disk
    @pytest.mark.case("TW-03")
    def test_a_plain_store_opens_with_unknown_times(self, task: TaskUnderTest) -> None:
        plain(task)
        store = task.restart(timed(task))
        assert [(0, UNKNOWN + b"one"), (70_000, UNKNOWN + b"two")] == list(store.fetch(b"k", 0, 100_000))
        assert 70_000 == store.stream_time_ms
        assert ["s.0.timestamped", "s.60000.timestamped"] == store.transaction.spaces()
        store.put(b"k", timestamped.pack(b"new", 5), 0)
        assert timestamped.pack(b"new", 5) == store.fetch_one(b"k", 0)

    @on_disk
    def test_an_upgrade_that_was_cut_short_is_made_again(self, task: TaskUnderTest) -> None:
        base = plain(task).transaction.base
        base.write({"s.0.timestamped": [(layout.pack(b"k", 0), UNKNOWN + b"one")]})
        store = task.restart(timed(task))
        assert [(0, UNKNOWN + b"one"), (70_000, UNKNOWN + b"two")] == list(store.fetch(b"k", 0, 100_000))

    @on_disk
    def test_a_timestamped_store_is_not_read_as_a_plain_one(self, task: TaskUnderTest) -> None:
        task.open(timed(task)).commit(1)
        with pytest.raises(FormatUnsupported):
            task.restart(Window("s", **LENGTHS, **task.setup.options))

    @in_memory
    @pytest.mark.case("TW-03")
    def test_in_memory_the_changelog_brings_the_times(self, task: TaskUnderTest) -> None:
        task.at(1, time_ms=42)
        plain(task)
        store = task.restart(timed(task))
        store.restore(task.logged)
        assert timestamped.pack(b"one", 42) == store.fetch_one(b"k", 0)
