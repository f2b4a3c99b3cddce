"""What a list store promises: every value of a key, in the order of the puts."""

from __future__ import annotations

import pytest

from statestore.errors import DataCorrupted, InvalidStateStore
from statestore.kinds.list_value import ListValue, unpack_values
from statestore.store import Isolation
from tests.statestore.conftest import TRANSACTIONAL, TaskUnderTest


@pytest.fixture
def store(task: TaskUnderTest) -> ListValue:
    return task.open(ListValue("s", **task.setup.options))


@pytest.mark.case("B-15")
def test_duplicates_are_kept_grouped_by_key_in_the_order_of_the_puts(store: ListValue) -> None:
    for key, value in [(b"4", b"four"), (b"0", b"zero"), (b"2", b"two"), (b"0", b"zero again"), (b"0", b"zero")]:
        store.put(key, value)
    expected = [(b"0", b"zero"), (b"0", b"zero again"), (b"0", b"zero"), (b"2", b"two"), (b"4", b"four")]
    assert expected == list(store.all())
    assert [b"zero", b"zero again", b"zero"] == store.get(b"0")
    assert [] == store.get(b"1")


@pytest.mark.case("B-16")
def test_none_removes_every_value_of_a_key(store: ListValue) -> None:
    for key, value in [(b"0", b"zero"), (b"1", b"one"), (b"1", b"one again"), (b"1", None), (b"3", None)]:
        store.put(key, value)
    assert [(b"0", b"zero")] == list(store.all())


@pytest.mark.case("B-17")
def test_an_open_iterator_goes_on_through_a_removal(store: ListValue) -> None:
    for key, value in [(b"0", b"zero1"), (b"0", b"zero2"), (b"1", b"one")]:
        store.put(key, value)
    entries = store.all()
    assert (b"0", b"zero1") == next(entries)
    store.put(b"0", None)
    assert (b"0", b"zero2") == next(entries)
    entries.close()
    assert [(b"1", b"one")] == list(store.all())


@pytest.mark.case("B-18")
def test_a_closed_iterator_gives_nothing_more(store: ListValue) -> None:
    store.put(b"0", b"zero")
    entries = store.all()
    entries.close()
    with pytest.raises(InvalidStateStore):
        next(entries)


def test_the_changelog_has_the_whole_list_at_the_time_of_the_record(task: TaskUnderTest, store: ListValue) -> None:
    for offset, value in enumerate([b"zero", b"", None]):
        task.at(offset, time_ms=10 + offset)
        store.put(b"k", value)
    one = "01" + "00000001" + "00000004" + b"zero".hex()
    two = "01" + "00000002" + "00000004" + b"zero".hex() + "00000000"
    expected = [(b"k", bytes.fromhex(one), 10), (b"k", bytes.fromhex(two), 11), (b"k", None, 12)]
    assert expected == task.records()


@pytest.mark.case("TX-29")
@pytest.mark.parametrize("setup", TRANSACTIONAL, ids=str)
def test_lists_survive_commit_rollback_and_restore(task: TaskUnderTest, store: ListValue) -> None:
    store.put(b"k", b"a")
    store.put(b"k", b"b")
    assert [] == store.get(b"k", Isolation.READ_COMMITTED)
    store.commit(2)
    store.put(b"k", b"c")
    assert [b"a", b"b"] == store.get(b"k", Isolation.READ_COMMITTED)
    store.rollback()
    assert [b"a", b"b"] == store.get(b"k")
    again = task.restart(store, wipe=True)
    assert [] == list(again.all())
    again.restore(task.logged[:2])
    assert [(b"k", b"a"), (b"k", b"b")] == list(again.all())


def test_bytes_that_are_no_list_are_refused() -> None:
    for raw in (b"", b"\x00\x00\x00\x00\x00", b"\x01\x00\x00\x00\x01", b"\x01\x00\x00\x00\x01\x00\x00\x00\x05abc"):
        with pytest.raises(DataCorrupted):
            unpack_values(raw)
