"""What stands between a put and its store: the last value of a key per flush, and reads that see it at once.

Old values are what the store had before the flush. `inner` is what the store beneath holds.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from statestore.cache.record_cache import CacheEntry, RecordCache
from statestore.cache.stores import CachedKeyValue, CachedTimestampedKeyValue
from statestore.errors import InvalidStateStore
from statestore.iterator import StoreIterator
from statestore.kinds.buffered import Change
from statestore.kinds.timestamped import TimestampedKeyValue
from statestore.layouts.timestamped import UNKNOWN
from statestore.position import Position
from statestore.store import Isolation
from tests.statestore.conftest import TRANSACTIONAL, TaskUnderTest
from tests.support.present import present

ROOM = 10_000
Entries = list[tuple[bytes, bytes]]


class Forwarded(list[tuple[bytes, bytes | None, bytes | None]]):
    """(key, new, old) of each flushed key."""

    def __call__(self, key: bytes, change: Change, _: object) -> None:
        self.append((key, change.new, change.old))


@pytest.fixture
def cache() -> RecordCache:
    return RecordCache(ROOM)


@pytest.fixture
def store(task: TaskUnderTest, cache: RecordCache) -> CachedKeyValue:
    return task.open(CachedKeyValue("s", cache=cache, **task.setup.options))


@pytest.fixture
def forwarded(store: CachedKeyValue) -> Forwarded:
    """Listens with old values."""
    listener = Forwarded()
    store.set_flush_listener(listener, send_old_values=True)
    return listener


@pytest.fixture
def new_only(store: CachedKeyValue) -> Forwarded:
    """Listens without old values."""
    listener = Forwarded()
    store.set_flush_listener(listener)
    return listener


def inner(store: CachedKeyValue) -> Entries:
    return list(store._beneath.scan(store.name))


def put(store: CachedKeyValue, *values: bytes | None, key: bytes = b"1", flush: bool = True) -> None:
    for value in values:
        store.put(key, value)
    if flush:
        store.flush_cache()


class TestCache:
    @pytest.mark.case("C-01")
    def test_a_put_stays_in_the_cache_and_is_read_from_it(self, cache: RecordCache, store: CachedKeyValue) -> None:
        store.put(b"key", b"value")
        store.put(b"key2", b"value2")
        assert [b"value", b"value2"] == [store.get(b"key"), store.get(b"key2")]
        assert 2 == len(store.cached)
        assert [] == inner(store)
        assert cache.size_bytes > 0

    @pytest.mark.case("C-02")
    def test_what_was_not_used_for_longest_is_written_when_the_cache_is_full(self, task: TaskUnderTest) -> None:
        small = RecordCache(3 * (CacheEntry(b"v").size_bytes + 2))
        store = task.open(CachedKeyValue("small", cache=small, **task.setup.options))
        listener = Forwarded()
        store.set_flush_listener(listener)
        for key in (b"k0", b"k1", b"k2"):
            store.put(key, b"v")
        assert b"v" == store.get(b"k0")
        store.put(b"k3", b"v")
        store.put(b"k4", b"v")
        assert [(b"k1", b"v"), (b"k2", b"v")] == inner(store)
        assert [(b"k1", b"v", None), (b"k2", b"v", None)] == listener
        assert 3 == len(store.cached)
        assert small.size_bytes <= small.max_bytes
        assert [b"k0", b"k1", b"k2", b"k3", b"k4"] == [key for key, _ in store.all()]

    def test_one_bound_holds_for_all_stores_together(self, task: TaskUnderTest) -> None:
        small = RecordCache(2 * (CacheEntry(b"v").size_bytes + 2))
        one = task.open(CachedKeyValue("one", cache=small, **task.setup.options))
        two = task.open(CachedKeyValue("two", cache=small, **task.setup.options))
        one.put(b"k0", b"v")
        two.put(b"k1", b"v")
        two.put(b"k2", b"v")
        assert ([(b"k0", b"v")], []) == (inner(one), inner(two))
        assert (0, 2) == (len(one.cached), len(two.cached))

    @pytest.mark.case("C-27")
    def test_without_room_every_put_is_written_at_once(self, task: TaskUnderTest) -> None:
        store = task.open(CachedKeyValue("none", cache=RecordCache(0), **task.setup.options))
        for value in (b"a", b"b", None):
            store.put(b"1", value)
            assert 0 == len(store.cached)
        assert [(b"1", b"a", UNKNOWN), (b"1", b"b", UNKNOWN), (b"1", None, UNKNOWN)] == task.records()

    def test_a_bound_below_zero_and_a_name_taken_are_refused(self, cache: RecordCache) -> None:
        with pytest.raises(ValueError, match="negative"):
            RecordCache(-1)
        cache.namespace("s", lambda *_: None)
        with pytest.raises(ValueError, match="already"):
            cache.namespace("s", lambda *_: None)

    @pytest.mark.case("C-28")
    def test_an_entry_forgotten_by_the_cache_is_not_flushed(
        self, store: CachedKeyValue, new_only: Forwarded, cache: RecordCache
    ) -> None:
        put(store, b"a", flush=False)
        assert b"a" == present(store.cached.delete(("s", b"1"))).value
        store.flush_cache()
        assert ([], []) == (inner(store), new_only)
        assert 0 == cache.size_bytes


class TestForwarding:
    @pytest.mark.case("C-03")
    def test_a_flush_forwards_the_new_value(self, store: CachedKeyValue, new_only: Forwarded) -> None:
        put(store, b"a")
        assert [(b"1", b"a", None)] == new_only
        put(store, b"b")
        assert [(b"1", b"a", None), (b"1", b"b", None)] == new_only

    @pytest.mark.case("C-04", "C-05")
    def test_a_flush_forwards_the_last_value_and_the_one_of_the_flush_before(
        self, store: CachedKeyValue, forwarded: Forwarded
    ) -> None:
        put(store, b"a")
        put(store, b"b", b"c")
        put(store, None)
        assert [(b"1", b"a", None), (b"1", b"c", b"a"), (b"1", None, b"c")] == forwarded

    @pytest.mark.case("C-06")
    def test_what_came_and_went_between_two_flushes_is_not_forwarded(
        self, task: TaskUnderTest, store: CachedKeyValue, forwarded: Forwarded
    ) -> None:
        put(store, b"a", b"b", None)
        assert [] == forwarded
        assert [] == task.logged

    @pytest.mark.case("C-07")
    def test_a_deletion_after_a_flush_is_forwarded_without_old_value_if_none_is_asked_for(
        self, store: CachedKeyValue, new_only: Forwarded
    ) -> None:
        put(store, b"a")
        put(store, None)
        assert [(b"1", b"a", None), (b"1", None, None)] == new_only

    def test_the_changelog_gets_the_last_value_with_the_time_of_its_record(
        self, task: TaskUnderTest, store: CachedKeyValue
    ) -> None:
        for offset, value in enumerate([b"a", b"b", b"c"]):
            task.at(offset, time_ms=10 + offset)
            put(store, value, flush=False)
        task.at(7, time_ms=99)
        store.flush_cache()
        store.flush_cache()
        assert [(b"1", b"c", 12)] == task.records()
        assert 99 == present(task.stores.record).timestamp_ms

    def test_a_put_by_the_listener_itself_is_part_of_the_next_flush(self, store: CachedKeyValue) -> None:
        seen = []

        def again(key: bytes, change: Change, _: object) -> None:
            seen.append(change.new)
            if len(seen) == 1:
                store.put(key, b"again")

        store.set_flush_listener(again)
        put(store, b"a")
        assert [b"a"] == seen
        assert b"again" == store.get(b"1")
        store.flush_cache()
        assert [b"a", b"again"] == seen

    def test_a_put_by_the_listener_of_an_eviction_is_not_lost(self, task: TaskUnderTest) -> None:
        store = task.open(CachedKeyValue("none", cache=RecordCache(0), **task.setup.options))

        def once_more(key: bytes, change: Change, _: object) -> None:
            if change.new == b"a":
                store.put(key, b"again")

        store.set_flush_listener(once_more)
        store.put(b"1", b"a")
        assert (b"again", 0) == (store.get(b"1"), len(store.cached))
        assert [(b"1", b"a", UNKNOWN), (b"1", b"again", UNKNOWN)] == task.records()

    def test_what_could_not_be_written_is_written_by_the_next_flush(
        self, store: CachedKeyValue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object) -> None:
            raise OSError("no space")

        store.put(b"1", b"a")
        with monkeypatch.context() as broken:
            broken.setattr(store._beneath, "put", fail)
            with pytest.raises(OSError, match="no space"):
                store.flush_cache()
        assert [] == inner(store)
        store.flush_cache()
        assert [(b"1", b"a")] == inner(store)


Read = Callable[[CachedKeyValue], StoreIterator[bytes, bytes]]
READS: list[tuple[Read, bool]] = [
    (lambda store: store.all(), False),
    (lambda store: store.reverse_all(), True),
    (lambda store: store.range(b"0", b"9"), False),
    (lambda store: store.reverse_range(b"0", b"9"), True),
    (lambda store: store.range(None, None), False),
    (lambda store: store.prefix_scan(b""), False),
]


class TestReads:
    @pytest.mark.case("C-08", "C-09")
    @pytest.mark.parametrize("flushed", [False, True])
    def test_an_unflushed_deletion_hides_the_value(self, store: CachedKeyValue, flushed: bool) -> None:
        put(store, b"a", flush=flushed)
        store.delete(b"1")
        assert store.get(b"1") is None
        assert [[]] * len(READS) == [list(read(store)) for read, _ in READS]

    @pytest.mark.case("C-10")
    def test_cache_and_store_are_merged_and_the_cache_wins(self, store: CachedKeyValue) -> None:
        for key in (b"1", b"3", b"5", b"6"):
            put(store, b"stored", key=key, flush=False)
        store.flush_cache()
        for key, value in [(b"2", b"cached"), (b"3", b"cached"), (b"6", None), (b"7", b"cached")]:
            store.put(key, value)
        expected = [(b"1", b"stored"), (b"2", b"cached"), (b"3", b"cached"), (b"5", b"stored"), (b"7", b"cached")]
        for read, reverse in READS:
            assert (expected[::-1] if reverse else expected) == list(read(store))
        assert expected[1:4] == list(store.range(b"2", b"5"))
        assert expected[3:0:-1] == list(store.reverse_range(b"2", b"5"))

    @pytest.mark.case("C-11")
    def test_a_prefix_is_looked_for_in_cache_and_store(self, store: CachedKeyValue) -> None:
        for key in (b"abc", b"abcd"):
            store.put(key, b"stored")
        store.flush_cache()
        for key in (b"abcdd", b"abce"):
            store.put(key, b"cached")
        assert [(b"abcd", b"stored"), (b"abcdd", b"cached")] == list(store.prefix_scan(b"abcd"))

    @pytest.mark.case("C-12")
    def test_put_if_absent_sees_the_cache(self, store: CachedKeyValue) -> None:
        assert store.put_if_absent(b"b", b"2") is None
        assert b"2" == store.put_if_absent(b"b", b"3")
        assert b"2" == store.get(b"b")

    def test_what_is_flushed_has_the_order_in_which_it_was_written_last(self, store: CachedKeyValue) -> None:
        forwarded: list[tuple[bytes, bytes | None]] = []
        store.set_flush_listener(lambda key, change, _: forwarded.append((key, change.new)))
        for key, value in ((b"1", b"a"), (b"2", b"b"), (b"1", b"c")):
            store.put(key, value)
        store.flush_cache()
        assert [(b"2", b"b"), (b"1", b"c")] == forwarded

    def test_put_all_is_cached_in_order(self, store: CachedKeyValue) -> None:
        store.put_all([(b"a", b"1"), (b"b", b"2"), (b"a", b"3")])
        assert [] == inner(store)
        assert [(b"a", b"3"), (b"b", b"2")] == list(store.all())

    @pytest.mark.parametrize("setup", TRANSACTIONAL, ids=str)
    def test_committed_reads_go_past_the_cache(self, store: CachedKeyValue) -> None:
        committed = Isolation.READ_COMMITTED
        put(store, b"a", flush=False)
        assert (None, []) == (store.get(b"1", committed), list(store.all(committed)))
        store.flush_cache()
        assert (None, []) == (store.get(b"1", committed), list(store.all(committed)))
        store.commit(1)
        put(store, b"b", flush=False)
        assert b"a" == store.get(b"1", committed)

    @pytest.mark.case("C-29")
    def test_a_key_of_none_is_refused(self, store: CachedKeyValue) -> None:
        none: bytes = None  # type: ignore[assignment]
        for call in (
            lambda: store.get(none),
            lambda: store.put(none, b"v"),
            lambda: store.put_if_absent(none, b"v"),
            lambda: store.put_all([(none, b"v")]),
            lambda: store.delete(none),
        ):
            with pytest.raises(TypeError):
                call()


class TestLifecycle:
    @pytest.mark.case("C-13")
    def test_a_closed_store_leaves_the_cache(self, cache: RecordCache, store: CachedKeyValue) -> None:
        put(store, b"a", flush=False)
        store.close()
        assert 0 == cache.size_bytes
        cache.namespace("s", lambda *_: None)

    @pytest.mark.case("C-14")
    def test_a_closed_store_refuses_everything(self, store: CachedKeyValue) -> None:
        store.close()
        assert not store.is_open()
        for call in (
            lambda: store.get(b"a"),
            lambda: store.put(b"a", b"1"),
            lambda: store.range(b"a", b"b"),
            lambda: store.reverse_range(b"a", b"b"),
            lambda: store.all(),
            lambda: store.reverse_all(),
            lambda: store.put_all([(b"a", b"1")]),
            lambda: store.put_if_absent(b"a", b"1"),
            lambda: store.delete(b"a"),
            lambda: store.approximate_num_entries(),
        ):
            with pytest.raises(InvalidStateStore):
                call()
        store.close()

    @pytest.mark.case("C-15")
    @pytest.mark.parametrize("failing", ["flush", "close", "beneath"])
    def test_closing_goes_on_behind_an_error(
        self, cache: RecordCache, store: CachedKeyValue, monkeypatch: pytest.MonkeyPatch, failing: str
    ) -> None:
        steps = {
            "flush": (store.cached, "flush"),
            "close": (store.cached, "close"),
            "beneath": (store._beneath, "close"),
        }
        done: list[str] = []

        def recording(name: str, method: Callable[[], None]) -> Callable[[], None]:
            def call() -> None:
                done.append(name)
                method()
                if name == failing:
                    raise OSError(name)

            return call

        for name, (owner, method) in steps.items():
            monkeypatch.setattr(owner, method, recording(name, getattr(owner, method)))
        with pytest.raises(OSError, match=failing):
            store.close()
        assert ["flush", "close", "beneath"] == done
        assert not store.is_open()

    @pytest.mark.case("C-16")
    def test_the_position_includes_what_is_cached_and_below_it_what_was_flushed(
        self, task: TaskUnderTest, store: CachedKeyValue
    ) -> None:
        for offset in (1, 2):
            task.at(offset)
            store.put(b"key%d" % offset, b"value")
        task.at(3)
        assert Position({"": {0: 2}}) == store.position()
        assert Position() == store._position
        store.flush_cache()
        assert Position({"": {0: 2}}) == store.position() == store._position

    @pytest.mark.parametrize("setup", TRANSACTIONAL, ids=str)
    def test_a_rollback_forgets_what_is_cached(self, task: TaskUnderTest, store: CachedKeyValue) -> None:
        task.at(1)
        put(store, b"a")
        store.commit(1)
        task.at(2)
        put(store, b"b", flush=False)
        store.rollback()
        assert (b"a", Position({"": {0: 1}})) == (store.get(b"1"), store.position())

    @pytest.mark.parametrize("setup", TRANSACTIONAL, ids=str)
    def test_a_commit_flushes_first(self, task: TaskUnderTest, store: CachedKeyValue) -> None:
        put(store, b"a", flush=False)
        store.commit(1)
        assert b"a" == store.get(b"1", Isolation.READ_COMMITTED)
        assert [(b"1", b"a", UNKNOWN)] == task.records()


class TestTimestamped:
    def test_values_are_logged_without_their_time(self, task: TaskUnderTest, cache: RecordCache) -> None:
        store = task.open(CachedTimestampedKeyValue("t", cache=cache, **task.setup.options))
        store.put(b"k", (97).to_bytes(8, "big") + b"a")
        store.put(b"k", (98).to_bytes(8, "big") + b"b")
        store.flush_cache()
        assert [(b"k", b"b", 98)] == task.records()
        assert (98).to_bytes(8, "big") + b"b" == store.get(b"k")
        assert isinstance(store, TimestampedKeyValue)
