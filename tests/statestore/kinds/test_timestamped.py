"""Values with times: how they are stored and logged, and how a store without them becomes one with them."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from statestore.cache.record_cache import RecordCache
from statestore.cache.stores import CachedKeyValue, CachedTimestampedKeyValue
from statestore.context import ChangelogRecord
from statestore.errors import FormatUnsupported
from statestore.kinds.key_value import KeyValue
from statestore.kinds.timestamped import TimestampedKeyValue
from statestore.layouts.timestamped import UNKNOWN, pack
from statestore.overlay import Overlay
from statestore.store import Isolation
from statestore.typed.key_value import TypedTimestampedKeyValueStore
from statestore.typed.serdes import STRING, ValueAndTimestamp
from tests.statestore.conftest import PERSISTENT, Setup, TaskUnderTest
from tests.support.present import present
from tests.support.waiting import end_beside

UNKNOWN_TIME = pack(b"", UNKNOWN)


def at(time_ms: int, value: bytes) -> bytes:
    return time_ms.to_bytes(8, "big", signed=True) + value


@pytest.fixture
def store(task: TaskUnderTest) -> TimestampedKeyValue:
    return task.open(TimestampedKeyValue("s", **task.setup.options))


@pytest.fixture
def typed(store: TimestampedKeyValue) -> TypedTimestampedKeyValueStore[str, str]:
    return TypedTimestampedKeyValueStore(store, STRING, STRING)


@pytest.mark.case("TS-01")
def test_a_value_is_stored_behind_its_time(
    typed: TypedTimestampedKeyValueStore[str, str], store: TimestampedKeyValue
) -> None:
    typed.put("hi", ValueAndTimestamp("there", 97))
    assert bytes.fromhex("0000000000000061") + b"there" == store.get(b"hi")
    assert ValueAndTimestamp("there", 97) == typed.get("hi")


@pytest.mark.case("TS-02", "TS-04")
def test_the_changelog_has_the_value_alone_and_the_time_as_the_records(
    store: TimestampedKeyValue, task: TaskUnderTest
) -> None:
    store.put(b"a", at(5, b"x"))
    store.put_all([(b"hi", at(97, b"there")), (b"hello", at(98, b"world"))])
    assert [(b"a", b"x", 5), (b"hi", b"there", 97), (b"hello", b"world", 98)] == task.records()


@pytest.mark.case("TS-03")
def test_a_tombstone_has_the_input_records_time(store: TimestampedKeyValue, task: TaskUnderTest) -> None:
    store.put(b"hi", at(97, b"there"))
    assert at(97, b"there") == store.delete(b"hi")
    task.at(4, time_ms=200)
    store.put(b"hi", None)
    assert [(b"hi", b"there", 97), (b"hi", None, UNKNOWN), (b"hi", None, 200)] == task.records()


@pytest.mark.case("TS-05")
def test_put_if_absent_over_a_value_logs_nothing(store: TimestampedKeyValue, task: TaskUnderTest) -> None:
    store.put(b"hi", at(97, b"there"))
    assert at(97, b"there") == store.put_if_absent(b"hi", at(98, b"world"))
    assert [(b"hi", b"there", 97)] == task.records()


@pytest.mark.case("TS-06", "TS-07")
def test_restoring_puts_the_records_time_in_front_where_the_store_has_times(
    store: TimestampedKeyValue, task: TaskUnderTest
) -> None:
    plain = task.open(KeyValue("plain", **task.setup.options))
    for restored in (store, plain):
        restored.restore(
            [ChangelogRecord("", b"a", b"x", 5), ChangelogRecord("", b"b", b"y", 6), ChangelogRecord("", b"b", None, 7)]
        )
    assert [(b"a", at(5, b"x"))] == list(store.all())
    assert [(b"a", b"x")] == list(plain.all())


@pytest.mark.case("TS-08", "TS-09")
def test_an_equal_value_is_only_put_when_it_is_older(typed: TypedTimestampedKeyValueStore[str, str]) -> None:
    typed.put("k", ValueAndTimestamp("value", 97))
    old = typed.get_raw("k")
    assert not typed.put_if_different("k", ValueAndTimestamp("value", 98), old)
    assert ValueAndTimestamp("value", 97) == typed.get("k")
    assert typed.put_if_different("k", ValueAndTimestamp("value", 95), old)
    assert ValueAndTimestamp("value", 95) == typed.get("k")
    assert typed.put_if_different("k", ValueAndTimestamp("other", 99), typed.get_raw("k"))


class TestUpgrade:
    """A store of seven plain values is opened as one whose values have times."""

    @pytest.fixture(params=PERSISTENT, ids=str)
    def setup(self, request: pytest.FixtureRequest) -> Setup:
        return request.param

    @pytest.fixture
    def store(self, task: TaskUnderTest) -> TimestampedKeyValue:
        plain = task.open(KeyValue("s", **task.setup.options))
        plain.put_all([(b"key%d" % number, b"%d" % number) for number in range(1, 8)])
        plain.commit(7)
        return task.restart(TimestampedKeyValue("s", **task.setup.options))

    def places(self, store: TimestampedKeyValue, key: bytes) -> tuple[bytes | None, bytes | None]:
        """The plain copy and the one with a time."""
        return store.transaction.get("s", key), store.transaction.get("s.timestamped", key)

    @pytest.mark.case("TS-10")
    def test_a_new_or_finished_store_is_not_upgraded(self, store: TimestampedKeyValue, task: TaskUnderTest) -> None:
        other = task.open(TimestampedKeyValue("new", **task.setup.options))
        other.put(b"a", at(1, b"x"))
        assert not other.upgrading
        assert {"new.timestamped"} == set(other.transaction.spaces())
        for number in range(1, 8):
            store.get(b"key%d" % number)
        store.commit(7)
        again = task.restart(TimestampedKeyValue("s", **task.setup.options))
        assert not again.upgrading
        again.commit(7)
        assert ["s.timestamped"] == again.transaction.spaces()
        assert 7 == len(list(again.all()))

    @pytest.mark.case("TS-11", "TS-12", "TS-13")
    def test_a_read_moves_what_it_finds(self, store: TimestampedKeyValue) -> None:
        assert store.upgrading
        assert 7 == store.approximate_num_entries()
        assert bytes.fromhex("ffffffffffffffff31") == store.get(b"key1")
        assert (None, UNKNOWN_TIME + b"1") == self.places(store, b"key1")
        assert store.get(b"unknown") is None
        assert (None, None) == self.places(store, b"unknown")
        store.commit(7)
        assert 7 == len(list(store.all()))

    def test_a_reader_moves_nothing_in_the_middle_of_a_commit(
        self, store: TimestampedKeyValue, task: TaskUnderTest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        readers: list[threading.Thread] = []
        in_order = Overlay.in_order

        def copied(overlay: Overlay) -> Any:
            found = in_order(overlay)
            if not readers:
                readers.append(threading.Thread(target=store.get, args=(b"key1",)))
                readers[0].start()
                # It waits for the commit where there is one lock for both.
                readers[0].join(0.2)
            return found

        monkeypatch.setattr(Overlay, "in_order", copied)
        store.put(b"key2", at(1, b"x"))
        store.commit(8)
        for reader in readers:
            reader.join(10)
        assert b"1" == present(store.get(b"key1"))[8:]
        store.commit(9)
        again = task.restart(TimestampedKeyValue("s", **task.setup.options))
        assert b"1" == present(again.get(b"key1"))[8:]

    @pytest.mark.timeout(120)
    def test_a_reader_and_a_flush_that_writes_here_do_not_wait_for_each_other(
        self, store: TimestampedKeyValue, task: TaskUnderTest
    ) -> None:
        cache = RecordCache(10**7)
        upgrading = task.restart(CachedTimestampedKeyValue("s", cache=cache, **task.setup.options))
        other = task.open(CachedKeyValue("other", cache=cache, **task.setup.options))
        other.set_flush_listener(lambda *_: upgrading.put(b"key7", at(1, b"x")))

        def write() -> None:
            for _ in range(300):
                for number in range(20):
                    other.put(b"%d" % number, b"v")
                other.flush_cache()

        assert end_beside(write, lambda: upgrading.get(b"key1"))

    def test_many_reads_move_what_they_find(self, store: TimestampedKeyValue) -> None:
        wanted = [b"nothing", *dict(store.all())]
        single = [dict(store.all()).get(key) for key in wanted]
        assert single == store.get_many(wanted)
        assert all(self.places(store, key)[0] is None for key in wanted)

    def test_a_committed_read_moves_nothing(self, store: TimestampedKeyValue) -> None:
        assert UNKNOWN_TIME + b"1" == store.get(b"key1", Isolation.READ_COMMITTED)
        assert (b"1", None) == self.places(store, b"key1")

    @pytest.mark.case("TS-14")
    def test_a_write_leaves_the_plain_copy_behind(self, store: TimestampedKeyValue) -> None:
        store.put(b"key2", at(22, b"new"))
        store.put(b"key3", None)
        store.put_all([(b"key4", at(44, b"all"))])
        assert (None, at(22, b"new")) == self.places(store, b"key2")
        assert (None, None) == self.places(store, b"key3")
        assert (None, at(44, b"all")) == self.places(store, b"key4")

    @pytest.mark.case("TS-15")
    def test_put_if_absent_moves_what_is_there(self, store: TimestampedKeyValue) -> None:
        assert UNKNOWN_TIME + b"4" == store.put_if_absent(b"key4", at(4, b"x"))
        assert (None, UNKNOWN_TIME + b"4") == self.places(store, b"key4")
        assert store.put_if_absent(b"key11", at(11, b"x")) is None
        assert (None, at(11, b"x")) == self.places(store, b"key11")
        assert UNKNOWN_TIME + b"5" == store.put_if_absent(b"key5", None)
        assert (None, UNKNOWN_TIME + b"5") == self.places(store, b"key5")
        assert store.put_if_absent(b"key12", None) is None
        assert (None, None) == self.places(store, b"key12")

    @pytest.mark.case("TS-16")
    def test_delete_takes_both_copies(self, store: TimestampedKeyValue) -> None:
        assert UNKNOWN_TIME + b"6" == store.delete(b"key6")
        assert (None, None) == self.places(store, b"key6")

    @pytest.mark.case("TS-17")
    def test_ranges_merge_both_and_move_nothing(self, store: TimestampedKeyValue) -> None:
        store.put(b"key3", at(33, b"new"))
        expected = [(b"key%d" % number, UNKNOWN_TIME + b"%d" % number) for number in range(1, 8)]
        expected[2] = (b"key3", at(33, b"new"))
        assert expected == list(store.all())
        assert expected[::-1] == list(store.reverse_all())
        assert expected[1:5] == list(store.range(b"key2", b"key5"))
        assert expected[4:0:-1] == list(store.reverse_range(b"key2", b"key5"))
        assert (b"1", None) == self.places(store, b"key1")

    def commits_between(
        self, store: TimestampedKeyValue, read: str, monkeypatch: pytest.MonkeyPatch
    ) -> dict[bytes, bytes]:
        """Commit after the first call of the transaction's `read`; gives what the store holds from then on."""
        real, due = getattr(store.transaction, read), [True]
        moved = [b"key%d" % number for number in range(1, 7)]

        def read_and_commit(*arguments: Any, **options: Any) -> Any:
            found = real(*arguments, **options)
            if due:
                due.clear()
                store.get_many(moved)
                store.put(b"key7", None)
                store.put(b"key8", at(8, b"new"))
                store.commit(8)
            return found

        monkeypatch.setattr(store.transaction, read, read_and_commit)
        return {key: UNKNOWN_TIME + key[3:] for key in moved} | {b"key8": at(8, b"new")}

    def test_a_commit_between_two_reads_of_a_key_does_not_hide_it(
        self, store: TimestampedKeyValue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        expected = self.commits_between(store, "get", monkeypatch)
        assert expected[b"key1"] == store.get(b"key1", Isolation.READ_COMMITTED)

    @pytest.mark.parametrize("isolation", Isolation)
    def test_a_commit_between_two_scans_hides_nothing(
        self, store: TimestampedKeyValue, task: TaskUnderTest, isolation: Isolation, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        expected = self.commits_between(store, "scan", monkeypatch)
        found = dict(store.all(isolation))
        if isolation is Isolation.READ_UNCOMMITTED or not task.setup.transactional:
            # Of no version, but what was only moved was there all the time.
            found.pop(b"key7", None)
        assert expected == found

    def test_a_rollback_takes_the_moves_back(self, store: TimestampedKeyValue, task: TaskUnderTest) -> None:
        store.get(b"key1")
        store.rollback()
        moved = not task.setup.transactional
        assert ((None, UNKNOWN_TIME + b"1") if moved else (b"1", None)) == self.places(store, b"key1")

    def test_a_store_with_times_is_not_opened_as_one_without(
        self, store: TimestampedKeyValue, task: TaskUnderTest
    ) -> None:
        store.commit(8)
        with pytest.raises(FormatUnsupported, match="another kind"):
            task.restart(KeyValue("s", **task.setup.options))
