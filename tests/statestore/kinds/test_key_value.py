"""What a key-value store promises, typed (integer to string) and in bytes, with every mechanism, on disk and in memory."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from statestore.context import ChangelogRecord
from statestore.errors import InvalidStateStore, RollforwardError
from statestore.iterator import StoreIterator
from statestore.kinds.key_value import KeyValue
from statestore.position import Position, changelog_headers
from statestore.store import Isolation
from statestore.taskstores import TaskStores
from statestore.typed.base import INVERTED_RANGE
from statestore.typed.key_value import TypedKeyValueStore
from statestore.typed.serdes import BYTES, INTEGER, STRING, Serde
from tests.statestore.conftest import TaskUnderTest

Numbers = TypedKeyValueStore[int, str]


@pytest.fixture
def bare(task: TaskUnderTest) -> KeyValue:
    return task.open(KeyValue("s", **task.setup.options))


@pytest.fixture
def store(bare: KeyValue) -> Numbers:
    return TypedKeyValueStore(bare, INTEGER, STRING)


@pytest.fixture
def filled(store: Numbers) -> Numbers:
    for number, word in enumerate(("zero", "one", "two")):
        store.put(number, word)
    return store


def key(number: int) -> bytes:
    return number.to_bytes(4, "big", signed=True)


def numbers(entries: StoreIterator[int, str]) -> list[int]:
    return [number for number, _ in entries]


def changes(task: TaskUnderTest) -> list[tuple[bytes, bytes | None]]:
    return [(record.key, record.value) for record in task.logged]


def test_many_gets_see_what_single_ones_see(bare: KeyValue) -> None:
    bare.put_all([(key(number), b"%d" % number) for number in range(30)])
    bare.commit(1)
    bare.put_all([(key(3), b"new"), (key(4), None), (key(40), b"only")])
    wanted = [key(number) for number in (40, 4, 3, 2, 2, 99, -1)]
    for isolation in Isolation:
        assert [bare.get(one, isolation) for one in wanted] == bare.get_many(wanted, isolation)
    with pytest.raises(TypeError, match="bytes"):
        bare.get_many([key(1), 1])  # type: ignore[list-item]


def test_typed_gets_of_many(filled: Numbers) -> None:
    assert ["two", None, "zero"] == filled.get_many([2, 7, 0])


class TestPutGetAndRange:
    @pytest.fixture
    def five(self, store: Numbers, task: TaskUnderTest) -> Numbers:
        for number, word in ((0, "zero"), (1, "one"), (2, "two"), (4, "four"), (5, "five")):
            store.put(number, word)
        assert ["zero", "one", "two", None, "four", "five"] == [store.get(number) for number in range(6)]
        assert 5 == len(list(store.all()))
        store.delete(5)
        return store

    @pytest.mark.case("KV-01", "KV-02")
    def test_what_was_put_is_read_and_a_deletion_reaches_the_changelog(
        self, five: Numbers, task: TaskUnderTest
    ) -> None:
        assert 4 == len(list(five.all()))
        assert {key(0): b"zero", key(1): b"one", key(2): b"two", key(4): b"four", key(5): None} == dict(changes(task))

    @pytest.mark.case("KV-03", "KV-04", "KV-05")
    @pytest.mark.parametrize("committed", [False, True])
    def test_ranges_include_ends_that_need_not_exist(self, five: Numbers, committed: bool) -> None:
        if committed:
            five.commit(6)
        between = [(2, "two"), (4, "four")]
        assert between == list(five.range(2, 4)) == list(five.range(2, 6))
        assert between[::-1] == list(five.reverse_range(2, 4)) == list(five.reverse_range(2, 6))
        assert [0, 1, 2, 4] == numbers(five.all())
        assert [4, 2, 1, 0] == numbers(five.reverse_all())

    @pytest.mark.case("KV-06", "KV-07", "KV-46", "KV-64")
    def test_put_if_absent_keeps_and_returns_what_is_there(self, store: Numbers, task: TaskUnderTest) -> None:
        words = {0: "zero", 1: "one", 2: "two", 4: "four"}
        assert [None] * 4 == [store.put_if_absent(number, word) for number, word in words.items()]
        logged = changes(task)
        assert "four" == store.put_if_absent(4, "unexpected value")
        assert words == dict(store.all())
        assert [(key(number), word.encode()) for number, word in words.items()] == logged == changes(task)

    @pytest.mark.case("KV-13", "KV-14", "KV-15", "KV-16", "KV-17", "KV-18")
    def test_an_end_may_be_open(self, filled: Numbers) -> None:
        assert [(0, "zero"), (1, "one")] == list(filled.range(None, 1))
        assert [(1, "one"), (2, "two")] == list(filled.range(1, None))
        assert [0, 1, 2] == numbers(filled.range(None, None))
        assert [1, 0] == numbers(filled.reverse_range(None, 1))
        assert [2, 1] == numbers(filled.reverse_range(1, None))
        assert [2, 1, 0] == numbers(filled.reverse_range(None, None))

    @pytest.mark.case("KV-19", "KV-20")
    def test_the_estimate_of_the_size_is_right_for_a_small_store(self, store: Numbers) -> None:
        assert 0 == store.approximate_num_entries()
        for number in range(5):
            store.put(number, "x")
        store.commit(5)
        store.flush()
        assert 5 == store.approximate_num_entries()

    @pytest.mark.case("KV-21", "KV-65")
    def test_put_all_logs_in_the_order_given(self, store: Numbers, task: TaskUnderTest) -> None:
        store.put_all([(2, "two"), (1, "one")])
        assert [(1, "one"), (2, "two")] == list(store.all())
        assert [(2, "two"), (1, "one")] == list(store.reverse_all())
        assert [(key(2), b"two"), (key(1), b"one")] == changes(task)

    @pytest.mark.case("KV-22", "KV-62", "KV-63")
    def test_delete_returns_the_old_value_and_logs_a_tombstone(self, filled: Numbers, task: TaskUnderTest) -> None:
        assert "two" == filled.delete(2)
        assert filled.get(2) is None
        assert [(key(2), b"two"), (key(2), None)] == changes(task)[-2:]

    @pytest.mark.case("KV-23")
    def test_a_range_of_one_key_has_that_key(self, filled: Numbers) -> None:
        assert [(2, filled.get(2))] == list(filled.range(2, 2)) == list(filled.reverse_range(2, 2))

    @pytest.mark.case("KV-25", "KV-26")
    @pytest.mark.parametrize(("lower", "upper"), [(-1, 1), (2, 1)])
    def test_an_inverted_range_is_empty_and_warned_of(self, filled: Numbers, lower: int, upper: int) -> None:
        with capture_logs() as logs:
            assert [] == list(filled.range(lower, upper))
            assert [] == list(filled.reverse_range(lower, upper))
        assert [INVERTED_RANGE] * 2 == [entry["event"] for entry in logs]

    @pytest.mark.case("KV-28")
    def test_deleting_serialises_no_value(self, bare: KeyValue) -> None:
        serialised: list[str] = []
        counting: Serde[str] = Serde("counting", lambda text: serialised.append(text) or text.encode(), bytes.decode)
        store = TypedKeyValueStore(bare, INTEGER, counting)
        for number, word in enumerate(("zero", "one", "two")):
            store.put(number, word)
        store.delete(0)
        store.delete(1)
        assert [(2, "two")] == list(store.all())
        assert ["zero", "one", "two"] == serialised

    @pytest.mark.case("KV-29")
    def test_a_value_that_serialises_to_none_deletes(self, bare: KeyValue) -> None:
        nullable: Serde[str] = Serde("nullable", lambda t: None if t == "null" else t.encode(), bytes.decode)
        store = TypedKeyValueStore(bare, INTEGER, nullable)
        store.put_all([(0, "zero"), (1, "one"), (2, "two")])
        store.put(0, "null")
        store.put(1, "null")
        assert [(2, "two")] == list(store.all())

    @pytest.mark.case("KV-08", "KV-09", "KV-10", "KV-11", "KV-12")
    def test_a_key_must_not_be_none_but_a_value_may(self, store: Numbers) -> None:
        missing: Any = None
        for call in (
            lambda: store.put(missing, "x"),
            lambda: store.put_if_absent(missing, "x"),
            lambda: store.put_all([(missing, "x")]),
            lambda: store.delete(missing),
            lambda: store.get(missing),
        ):
            with pytest.raises(TypeError, match="a key must not be None"):
                call()
        store.put(1, None)
        store.put_if_absent(1, None)
        store.put_all([(1, None)])
        assert store.get(1) is None


class TestPrefixes:
    def scan(self, store: KeyValue, keys: list[str], prefix: str) -> list[str]:
        for word in keys:
            store.put(word.encode(), word[-1:].encode())
        return [found.decode() for found, _ in store.prefix_scan(prefix.encode())]

    @pytest.mark.case("KV-32")
    def test_keys_with_the_prefix_come_in_order(self, bare: KeyValue) -> None:
        keys = ["k1", "prefix_3", "k2", "prefix_2", "k3", "prefix_1"]
        assert ["prefix_1", "prefix_2", "prefix_3"] == self.scan(bare, keys, "prefix")

    @pytest.mark.case("KV-33")
    def test_the_next_key_after_the_prefix_is_left_out(self, bare: KeyValue) -> None:
        assert ["abcd"] == self.scan(bare, ["abc", "abcd", "abce"], "abcd")

    @pytest.mark.case("KV-34")
    @pytest.mark.parametrize(
        ("keys", "expected"),
        [
            (("7a9e0001-0000-4000-8000-000000000001", "7a9f0001-0000-4000-8000-000000000001"), 1),
            (("7a9e0001-0000-4000-8000-000000000001", "7a9e0002-0000-4000-8000-000000000001"), 2),
        ],
    )
    def test_a_prefix_has_a_serde_of_its_own(self, bare: KeyValue, keys: tuple[str, str], expected: int) -> None:
        uuids: Serde[UUID] = Serde("uuid", lambda uuid: str(uuid).encode(), lambda raw: UUID(raw.decode()))
        store = TypedKeyValueStore(bare, uuids, STRING)
        for text in keys:
            store.put(UUID(text), text)
        found = [text for _, text in store.prefix_scan(keys[0][:4], STRING)]
        assert list(keys)[:expected] == found

    @pytest.mark.case("KV-35")
    @pytest.mark.parametrize("prefix", ["bb", "d"])
    def test_an_unknown_prefix_gives_nothing(self, bare: KeyValue, prefix: str) -> None:
        assert [] == self.scan(bare, ["a", "b", "c"], prefix)

    @pytest.mark.case("KV-36")
    def test_a_prefix_needs_a_serde(self, filled: Numbers) -> None:
        missing: Any = None
        with pytest.raises(TypeError, match="must not be None"):
            filled.prefix_scan("bb", missing)

    @pytest.mark.case("KV-27")
    def test_a_key_may_be_deleted_under_a_prefix_scan(self, store: Numbers) -> None:
        for number in (0, 1, 2, 3, 22, 222):
            store.put(number, str(number))
        with store.prefix_scan(2, INTEGER) as entries:
            store.delete(22)
            assert [(2, "2")] == list(entries)


class TestIterators:
    @pytest.mark.case("KV-24")
    def test_a_write_under_an_iterator_does_not_disturb_it(self, store: Numbers) -> None:
        store.put(0, "zero")
        with store.range(0, 2) as entries:
            store.put(1, "one")
            assert (0, "zero") == next(entries)

    @pytest.mark.case("KV-38")
    def test_an_empty_iterator_has_nothing(self, store: Numbers) -> None:
        entries = store.all()
        assert not entries.has_next()
        with pytest.raises(StopIteration):
            next(entries)
        with pytest.raises(LookupError):
            entries.peek_next_key()

    @pytest.mark.case("KV-40", "KV-44")
    def test_looking_ahead_does_not_advance(self, filled: Numbers) -> None:
        entries = filled.all()
        assert entries.has_next() and entries.has_next()
        assert 0 == entries.peek_next_key() == entries.peek_next_key()
        assert [0, 1, 2] == numbers(entries)
        with pytest.raises(StopIteration):
            next(entries)

    @pytest.mark.case("KV-39", "KV-41", "KV-42", "KV-43")
    def test_deleting_ahead_of_an_iterator(self, bare: KeyValue, task: TaskUnderTest) -> None:
        """In memory without transactions a deleted entry is skipped; everything else keeps to its view."""
        live = not task.setup.persistent and not task.setup.transactional
        bare.put_all([(b"1", b"a"), (b"2", b"b")])
        entries, second = bare.all(), bare.all()
        assert entries.has_next() and b"1" == entries.peek_next_key()
        assert (b"1", b"a") == next(second)
        bare.delete(b"1")
        assert (b"2" if live else b"1") == entries.peek_next_key()
        bare.delete(b"2")
        assert (not live) == entries.has_next() == second.has_next()
        if live:
            with pytest.raises(LookupError):
                entries.peek_next_key()
            with pytest.raises(StopIteration):
                next(second)
        else:
            assert [(b"1", b"a"), (b"2", b"b")] == list(entries)
            assert [(b"2", b"b")] == list(second)

    @pytest.mark.case("KV-45")
    def test_a_closed_iterator_refuses_every_step(self, filled: Numbers) -> None:
        entries = filled.all()
        entries.close()
        entries.close()
        for step in (entries.has_next, entries.peek_next_key, entries.__next__):
            with pytest.raises(InvalidStateStore):
                step()

    @pytest.mark.case("KV-50")
    def test_iterators_of_a_closed_store_refuse_every_step(self, filled: Numbers) -> None:
        filled.commit(3)
        fresh, looked_ahead = filled.range(0, 2), filled.reverse_range(0, 2)
        assert looked_ahead.has_next()
        filled.close()
        for entries in (fresh, looked_ahead):
            for step in (entries.has_next, entries.peek_next_key, entries.__next__):
                with pytest.raises(InvalidStateStore):
                    step()


class TestRestoring:
    def records(self, changes: list[tuple[int, str | None]], headers: Any = ()) -> list[ChangelogRecord]:
        return [ChangelogRecord("s", key(n), v.encode() if v is not None else None, 7, headers) for n, v in changes]

    @pytest.mark.case("KV-30", "KV-31")
    def test_the_changelog_makes_the_store(self, filled: Numbers, task: TaskUnderTest) -> None:
        filled.delete(0)
        logged = list(task.logged)
        assert 4 == len(logged)
        fresh = task.restart(KeyValue("s", **task.setup.options), wipe=True)
        fresh.restore(logged, offset=4)
        assert {key(1): b"one", key(2): b"two"} == dict(fresh.all())
        assert 4 == fresh.recover(None)
        assert logged == task.logged

    @pytest.mark.case("KV-47", "KV-48", "KV-49")
    def test_records_take_effect_in_their_order_within_and_over_batches(self, bare: KeyValue) -> None:
        bare.restore(self.records([(1, "a"), (2, "b"), (1, None), (3, "c"), (1, "restored")]))
        assert {key(1): b"restored", key(2): b"b", key(3): b"c"} == dict(bare.all())
        bare.restore(self.records([(2, "bb"), (3, "cc"), (1, None)]))
        assert {key(2): b"bb", key(3): b"cc"} == dict(bare.all())

    @pytest.mark.case("KV-53")
    def test_a_store_with_data_may_be_restored_over(self, filled: Numbers, task: TaskUnderTest) -> None:
        filled.commit(3)
        again = task.restart(KeyValue("s", **task.setup.options))
        again.restore(self.records([(1, "new"), (9, "nine")]))
        assert (b"new", b"nine") == (again.get(key(1)), again.get(key(9)))

    @pytest.mark.case("KV-54", "KV-55", "KV-56", "KV-57")
    def test_positions_of_the_records_are_taken_over(self, bare: KeyValue) -> None:
        bare.restore(self.records([(1, "a")]))
        assert Position() == bare.position()
        for topic, offset, value in (("A", 1, "x"), ("B", 2, "y"), ("A", 3, None)):
            headers = changelog_headers(Position({topic: {0: offset}}))
            bare.restore(self.records([(1, value)], headers))
        assert Position({"A": {0: 3}, "B": {0: 2}}) == bare.position()
        assert bare.get(key(1)) is None


class TestPositions:
    @pytest.mark.case("KV-37")
    def test_a_position_names_the_newest_record_in_the_store(self, bare: KeyValue, task: TaskUnderTest) -> None:
        for offset in (1, 2, 3):
            task.at(offset)
            bare.put(b"%d" % offset, b"x")
        assert Position({"": {0: 3}}) == bare.position()

    @pytest.mark.case("KV-66")
    def test_a_changelog_record_carries_the_position_after_it(self, bare: KeyValue, task: TaskUnderTest) -> None:
        task.stores.positions_in_changelog = True
        for offset in (1, 2):
            task.at(offset, topic="in", partition=5)
            bare.put(b"k", b"x")
        # Version 0, one topic: its length and name, one partition, its number and offset; then the buffer's zeros.
        position = "000000000100000002696e00000001000000050000000000000002"
        headers = dict(task.logged[-1].headers)
        assert {"v": b"\0", "c": bytes.fromhex(position).ljust(8 + 32 + 32 + 2 + 32 + 96, b"\0")} == headers


class TestFolders:
    @pytest.mark.case("KV-51")
    def test_a_folder_that_cannot_be_written_fails_the_opening(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("in the way")
        with pytest.raises(RollforwardError):
            KeyValue("s").init(TaskStores(tmp_path / "file" / "task"))

    @pytest.mark.case("KV-52")
    def test_a_folder_deleted_under_an_open_store_fails_the_flush(self, tmp_path: Path) -> None:
        stores = TaskStores(tmp_path / "task")
        store = KeyValue("s", mechanism=None)
        store.init(stores)
        store.put(b"b", b"1")
        shutil.rmtree(tmp_path / "task")
        store.put(b"a", b"1")
        with pytest.raises(RollforwardError):
            store.flush()


def test_operations_are_counted_and_timed_by_kafka_streams_names(store: Numbers, task: TaskUnderTest) -> None:
    store.put(1, "one")
    store.get(1)
    store.get(2)
    figures = task.stores.metrics.figures("s")
    assert {"put-rate", "put-latency-avg", "put-latency-max", "get-rate"} <= figures.keys()
    totals = task.stores.counters
    assert (1, 2, 0) == (totals["put-total", "s"], totals["get-total", "s"], totals["delete-total", "s"])


def test_bytes_pass_the_typed_store_unchanged(bare: KeyValue) -> None:
    store = TypedKeyValueStore(bare, BYTES, BYTES)
    store.put(b"\x00\xff", b"")
    assert b"" == store.get(b"\x00\xff")
    assert [(b"\x00\xff", b"")] == list(store.all())
