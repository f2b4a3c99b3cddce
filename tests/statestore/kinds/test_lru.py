"""A map of ten entries in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from statestore.context import ChangelogRecord
from statestore.kinds.lru import LruMap
from statestore.store import TransactionalMechanism
from tests.statestore.conftest import Setup, TaskUnderTest


@pytest.fixture(params=[None, TransactionalMechanism.INDEXED_BATCH], ids=["direct", "indexed_batch"])
def task(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TaskUnderTest]:
    opened = TaskUnderTest(Setup(request.param, persistent=False), tmp_path)
    yield opened
    opened.stores.close()


@pytest.fixture
def store(task: TaskUnderTest) -> LruMap:
    return task.open(LruMap("s", 10, mechanism=task.setup.mechanism))


def fill(store: LruMap) -> None:
    for number in range(11):
        store.put(b"%02d" % number, b"x")


def removed(task: TaskUnderTest) -> list[bytes]:
    return [record.key for record in task.logged if record.value is None]


@pytest.mark.case("KV-59")
def test_the_eleventh_entry_evicts_the_first(store: LruMap, task: TaskUnderTest) -> None:
    fill(store)
    assert [b"%02d" % number for number in range(1, 11)] == [key for key, _ in store.all()]
    assert [b"00"] == removed(task)


def test_reading_many_is_use(store: LruMap, task: TaskUnderTest) -> None:
    for number in range(10):
        store.put(b"%02d" % number, b"x")
    assert [b"x", None] == store.get_many([b"00", b"none"])
    store.put(b"10", b"x")
    assert [b"01"] == removed(task)


@pytest.mark.case("KV-60")
def test_use_keeps_an_entry(store: LruMap, task: TaskUnderTest) -> None:
    fill(store)
    store.delete(b"01")
    assert (9, [b"00", b"01"]) == (len(list(store.all())), removed(task))
    store.put(b"11", b"x")
    store.put(b"02", b"two-again")
    assert (10, [b"00", b"01"]) == (len(list(store.all())), removed(task))
    store.put(b"12", b"x")
    assert (10, [b"00", b"01", b"03"]) == (len(list(store.all())), removed(task))
    store.get(b"04")
    store.put(b"13", b"x")
    assert b"05" == removed(task)[-1]


@pytest.mark.case("KV-61")
def test_restoring_evicts_without_logging(store: LruMap, task: TaskUnderTest) -> None:
    store.restore([ChangelogRecord("s", b"%02d" % number, b"x", 0) for number in range(11)])
    assert [b"%02d" % number for number in range(1, 11)] == [key for key, _ in store.all()]
    assert [] == task.logged


@pytest.mark.parametrize("tombstone_last", [False, True], ids=["ours", "of earlier versions"])
def test_what_was_kept_by_reading_it_is_restored(tmp_path: Path, task: TaskUnderTest, *, tombstone_last: bool) -> None:
    store = task.open(LruMap("s", 2, mechanism=task.setup.mechanism))
    store.put(b"a", b"1")
    store.put(b"b", b"2")
    store.get(b"a")
    store.put(b"c", b"3")
    assert [(b"a", b"1"), (b"c", b"3")] == list(store.all())
    # As Kafka Streams logs it: room is made first.
    *before, tombstone, new = task.logged
    assert [(b"b", None), (b"c", b"3")] == [(record.key, record.value) for record in (tombstone, new)]
    other = TaskUnderTest(task.setup, tmp_path / "other")
    restored = other.open(LruMap("s", 2, mechanism=task.setup.mechanism))
    restored.restore([*before, new, tombstone] if tombstone_last else task.logged)
    assert list(store.all()) == list(restored.all())
    other.stores.close()


def test_a_rollback_brings_back_entries_and_their_order(tmp_path: Path) -> None:
    task = TaskUnderTest(Setup(TransactionalMechanism.INDEXED_BATCH, persistent=False), tmp_path)
    store = task.open(LruMap("s", 10))
    for number in (3, 1, 2):
        store.put(b"%d" % number, b"x")
    store.commit(3)
    fill(store)
    store.rollback()
    assert [b"1", b"2", b"3"] == [key for key, _ in store.all()]
    for number in range(8):
        store.put(b"n%d" % number, b"x")
    assert b"3" == removed(task)[-1]


def test_a_capacity_is_positive() -> None:
    with pytest.raises(ValueError, match="capacity"):
        LruMap("s", 0)
