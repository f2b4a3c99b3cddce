"""What a session store promises, whatever its mechanism and wherever it lives."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from statestore.errors import InvalidStateStore
from statestore.kinds.session import Session
from statestore.position import Position
from statestore.store import Isolation
from statestore.windows import MAX_TIME_MS, Windowed
from tests.statestore.conftest import PERSISTENT, SETUPS, TRANSACTIONAL, TaskUnderTest

on_disk = pytest.mark.parametrize("setup", PERSISTENT, ids=str)
in_memory = pytest.mark.parametrize("setup", [setup for setup in SETUPS if not setup.persistent], ids=str)
transactional = pytest.mark.parametrize("setup", TRANSACTIONAL, ids=str)

RETENTION_MS = 10_000
MINUTE_MS = 60_000
HUGE_MS = 0x7A00_0000_0000_0000
FIVE = [("a", 0, 0), ("aa", 0, 10), ("a", 10, 20), ("aa", 10, 20), ("a", HUGE_MS - 2, HUGE_MS - 1)]


def put(store: Session, sessions: Iterable[tuple[str, int, int]], first: int = 1) -> None:
    """Put sessions with the values 1, 2, 3, …"""
    for number, (key, start, end) in enumerate(sessions, start=first):
        store.put(Windowed(key.encode(), start, end), str(number).encode())


def values(entries: Iterable[tuple[object, bytes]]) -> list[int]:
    return [int(value) for _, value in entries]


def keys(entries: Iterable[tuple[Windowed[bytes], bytes]]) -> list[str]:
    return [session.key.decode() for session, _ in entries]


def opened(task: TaskUnderTest, *, name: str = "sessions", retention_ms: int = RETENTION_MS) -> Session:
    return task.open(Session(name, retention_ms=retention_ms, **task.setup.options))


@pytest.fixture
def store(task: TaskUnderTest) -> Session:
    return opened(task)


class TestOneKey:
    @pytest.mark.case("S-01", "S-02")
    @pytest.mark.parametrize(("end", "start", "expected"), [(0, 1000, [1, 2]), (400, 600, [2])])
    def test_sessions_that_overlap_are_found(self, store: Session, end: int, start: int, expected: list[int]) -> None:
        put(store, [("a", 10, 10), ("a", 500, 1000), ("a", 1500, 2000), ("a", 2500, 3000)])
        assert expected == values(store.find_sessions(b"a", end, start))
        assert expected[::-1] == values(store.backward_find_sessions(b"a", end, start))

    @pytest.mark.case("S-03")
    def test_fetch_gives_every_session_of_the_key_alone(self, store: Session) -> None:
        put(store, [("a", 0, 0), ("a", 10, 10), ("a", 100, 100), ("a", 1000, 1000), ("aa", 0, 0)])
        assert [1, 2, 3, 4] == values(store.fetch(b"a"))
        assert [4, 3, 2, 1] == values(store.backward_fetch(b"a"))

    @pytest.mark.case("S-08", "S-09")
    def test_a_session_is_found_by_its_exact_ends(self, store: Session) -> None:
        assert store.fetch_session(b"a", 0, 5) is None
        put(store, [("a", 0, 4), ("aa", 0, 3), ("aa", 0, 4), ("aa", 1, 4), ("aaa", 0, 4)])
        assert b"3" == store.fetch_session(b"aa", 0, 4)

    @pytest.mark.case("S-10")
    def test_a_bound_may_lie_before_time(self, store: Session) -> None:
        put(store, [("a", 0, 0), ("a", 1000, 1000)])
        assert [1, 2] == values(store.find_sessions(b"a", -1, 1000))

    @pytest.mark.case("S-11")
    def test_a_removed_session_is_gone(self, store: Session) -> None:
        put(store, [("a", 0, 1000), ("a", 1500, 2500)])
        store.remove(Windowed(b"a", 0, 1000))
        assert [] == list(store.find_sessions(b"a", 0, 1000))
        assert [2] == values(store.find_sessions(b"a", 1500, 2500))

    @pytest.mark.case("S-12")
    def test_a_value_of_none_removes(self, store: Session) -> None:
        put(store, [("a", 0, 1000), ("a", 1500, 2500)])
        store.put(Windowed(b"a", 0, 1000), None)
        assert [2] == values(store.fetch(b"a"))

    @pytest.mark.case("S-13")
    def test_sessions_that_reach_into_the_interval_are_found(self, store: Session) -> None:
        put(store, [("a", 0, 100), ("a", 101, 200), ("a", 201, 300), ("a", 301, 400), ("a", 401, 500)])
        assert [2, 3] == values(store.find_sessions(b"a", 150, 300))
        assert [3, 2] == values(store.backward_find_sessions(b"a", 150, 300))

    @pytest.mark.case("S-22")
    def test_removing_what_is_not_there_is_harmless(self, store: Session) -> None:
        store.remove(Windowed(b"a", 0, 1))
        assert [] == list(store.fetch(b"a"))

    @pytest.mark.case("S-23")
    def test_a_key_is_bytes_and_a_session_has_one(self, store: Session) -> None:
        for call in (
            lambda: store.find_sessions(None, 1, 2),  # type: ignore[arg-type]
            lambda: store.fetch(None),  # type: ignore[arg-type]
            lambda: store.fetch_session(None, 1, 2),  # type: ignore[arg-type]
            lambda: store.remove(None),  # type: ignore[arg-type]
            lambda: store.put(None, b"1"),  # type: ignore[arg-type]
            lambda: store.put(Windowed(None, 1, 2), b"1"),  # type: ignore[arg-type]
        ):
            with pytest.raises(TypeError):
                call()

    def test_a_session_does_not_end_before_it_starts(self, store: Session) -> None:
        for start, end in ((2, 1), (-1, 0)):
            with pytest.raises(ValueError, match="session must start"):
                store.put(Windowed(b"a", start, end), b"1")


class TestSeveralKeys:
    @pytest.mark.case("S-04")
    @pytest.mark.parametrize(
        ("first", "last", "expected"), [(0, 20, "ab"), (0, 19, "a"), (1, 20, "b"), (19, 41, "bc"), (0, 40, "abc")]
    )
    def test_sessions_are_found_by_their_end_alone(self, store: Session, first: int, last: int, expected: str) -> None:
        put(store, [("a", 0, 0), ("b", 10, 20), ("c", 30, 40)])
        assert list(expected) == keys(store.find_ended(first, last))

    @pytest.mark.case("S-05", "S-06", "S-07")
    @pytest.mark.parametrize(
        ("lower", "upper", "expected"),
        [
            (b"aa", b"bb", ["aa", "aaa", "aaaa", "b", "bb"]),
            (None, b"bb", ["a", "aa", "aaa", "aaaa", "b", "bb"]),
            (b"aa", None, ["aa", "aaa", "aaaa", "b", "bb", "bbb"]),
            (None, None, ["a", "aa", "aaa", "aaaa", "b", "bb", "bbb"]),
        ],
    )
    def test_key_ranges_include_both_ends_and_may_be_open(
        self, store: Session, lower: bytes | None, upper: bytes | None, expected: list[str]
    ) -> None:
        put(store, [(key, 0, 0) for key in ("aaaa", "b", "a", "bbb", "aa", "bb", "aaa")])
        assert expected == keys(store.fetch_range(lower, upper))
        assert expected == keys(store.find_sessions_range(lower, upper, 0, MAX_TIME_MS))
        assert expected[::-1] == keys(store.backward_fetch_range(lower, upper))
        assert expected[::-1] == keys(store.backward_find_sessions_range(lower, upper, 0, MAX_TIME_MS))

    @pytest.mark.case("S-14", "S-15")
    def test_keys_that_begin_with_another_are_told_apart(self, task: TaskUnderTest) -> None:
        store = opened(task, retention_ms=HUGE_MS)
        put(store, FIVE)
        assert [1, 3, 5] == values(store.find_sessions(b"a", 0, MAX_TIME_MS))
        assert [2, 4] == values(store.find_sessions(b"aa", 0, MAX_TIME_MS))
        assert [2] == values(store.find_sessions_range(b"a", b"aa", 10, 0))
        for lower, upper in ((b"a", b"aa"), (None, b"aa"), (b"a", None), (None, None)):
            found = values(store.find_sessions_range(lower, upper, 0, MAX_TIME_MS))
            assert [1, 2, 3, 4, 5] == sorted(found)
            assert found[::-1] == values(store.backward_find_sessions_range(lower, upper, 0, MAX_TIME_MS))

    @pytest.mark.case("S-16")
    def test_binary_keys_of_any_length_do_not_mix(self, store: Session) -> None:
        one, two, three = b"\0", b"\0\0", b"\0\0\0"
        for number, start in enumerate((1, 1, 1, 10, 10, 10, 60, 60, 60)):
            store.put(Windowed((one, two, three)[number % 3], start, 100), str(number + 1).encode())
        assert [1, 4, 7] == values(store.find_sessions(one, 0, MAX_TIME_MS))
        assert [2, 5, 8] == values(store.find_sessions(two, 0, MAX_TIME_MS))
        assert [3, 6, 9] == values(store.find_sessions(three, 0, MAX_TIME_MS))

    @pytest.mark.case("S-20")
    def test_a_range_of_one_key_gives_what_the_key_gives(self, store: Session) -> None:
        put(store, [("aa", 2, 3), ("aa", 4, 5)])
        assert (
            [1, 2]
            == values(store.find_sessions(b"aa", 0, 10))
            == values(store.find_sessions_range(b"aa", b"aa", 0, 10))
        )


class TestIterators:
    @pytest.mark.case("S-17")
    def test_peeking_does_not_advance(self, store: Session) -> None:
        put(store, [("a", 0, 0), ("a", 10, 10), ("a", 20, 20)])
        for found in (store.find_sessions(b"a", 0, 20), store.backward_find_sessions(b"a", 0, 20)):
            assert found.peek_next_key() == found.peek_next_key() == next(found)[0]
            assert 10 == found.peek_next_key().end_ms
            assert 2 == len(list(found))

    @pytest.mark.case("S-19")
    def test_closing_the_store_ends_its_iterators(self, store: Session) -> None:
        put(store, [("a", 0, 0), ("a", 10, 10)])
        found = store.fetch(b"a")
        assert found.has_next()
        store.close()
        assert not found.has_next()
        with pytest.raises(InvalidStateStore):
            store.fetch(b"a")

    @in_memory
    @pytest.mark.case("S-27")
    def test_in_memory_an_open_iterator_keeps_what_expires(self, store: Session) -> None:
        put(store, [("a", 0, 0), ("aa", 0, 10), ("a", 10, 20)])
        found = store.find_sessions_range(b"a", b"b", 0, RETENTION_MS)
        put(store, [("aa", 100, 2 * RETENTION_MS)], first=4)
        assert [1, 2, 3, 4] == values(found)
        assert [] == list(store.find_sessions_range(b"a", b"b", 0, 20))

    @in_memory
    def test_in_memory_an_open_iterator_keeps_a_dropped_segment(self, store: Session) -> None:
        put(store, [("a", 0, 0), ("a", 10, 20)])
        found = store.fetch(b"a")
        put(store, [("b", 0, 10 * MINUTE_MS)])
        assert [1, 2] == values(found)
        assert [] == list(store.fetch(b"a"))


class TestExpiry:
    @pytest.mark.case("S-21")
    def test_a_late_session_is_counted_and_dropped(self, task: TaskUnderTest, store: Session) -> None:
        put(store, [("a", 0, 2 * MINUTE_MS), ("a", 0, 0), ("b", 0, 2 * MINUTE_MS)])
        assert 1 == task.stores.counters["dropped-records-total", "sessions"]
        assert task.stores.metrics.figures("sessions")["dropped-records-rate"] > 0
        assert [1, 3] == values(store.fetch_range(None, None))

    @on_disk
    @pytest.mark.case("S-25")
    def test_on_disk_sessions_that_end_before_the_retention_are_hidden(self, store: Session) -> None:
        put(store, [("a", 0, 0), ("aa", 0, MINUTE_MS), ("a", 10, MINUTE_MS), ("aa", 10, 2 * MINUTE_MS)])
        assert [4] == values(store.find_sessions_range(b"a", b"b", 0, MAX_TIME_MS))

    @in_memory
    @pytest.mark.case("S-25")
    def test_in_memory_sessions_that_end_before_the_retention_are_hidden(self, store: Session) -> None:
        put(store, [("a", 0, 0), ("aa", 0, 10), ("a", 10, 20), ("aa", 10, RETENTION_MS)])
        assert [2, 3, 4] == values(store.find_sessions_range(b"a", b"b", 0, MAX_TIME_MS))

    @pytest.mark.case("S-26")
    def test_an_expired_session_is_in_no_range(self, store: Session) -> None:
        now = 10 * MINUTE_MS
        ends = [("p", now - 20_000), ("q", now - 10_000), ("r", now - 5_000), ("p", now - 5_000)]
        put(store, [(key, end - 1000, end) for key, end in ends])
        assert [4] == values(store.find_sessions(b"p", 0, now))
        assert [2, 3, 4] == sorted(values(store.find_sessions_range(b"p", b"r", 0, now)))
        assert [2, 3, 4] == sorted(values(store.backward_find_sessions_range(b"p", b"r", 0, now)))
        assert [] == list(store.find_sessions_range(b"p", b"r", 0, now - 20_000))
        assert store.fetch_session(b"p", now - 21_000, now - 20_000) is None

    @pytest.mark.case("S-29")
    def test_the_end_chooses_the_segment(self, store: Session) -> None:
        put(store, [("a", 0, 0), ("a", 0, MINUTE_MS)])
        assert ["sessions.0", "sessions.60000"] == [s for s in store.transaction.spaces() if s != "sessions"]


class TestCommit:
    @transactional
    def test_committed_reads_see_nothing_of_the_open_transaction(self, store: Session) -> None:
        committed = Isolation.READ_COMMITTED
        put(store, [("a", 0, 5)])
        store.commit(1)
        store.remove(Windowed(b"a", 0, 5))
        put(store, [("a", 0, 9)], first=2)
        assert [1] == values(store.fetch(b"a", committed)) == values(store.find_ended(0, 9, committed))
        assert b"1" == store.fetch_session(b"a", 0, 5, committed)
        assert [2] == values(store.fetch(b"a"))
        store.rollback()
        assert [1] == values(store.fetch(b"a"))

    @pytest.mark.case("S-18")
    def test_a_restore_gives_what_was_written(self, task: TaskUnderTest, store: Session) -> None:
        put(store, [("a", 0, 0), ("a", 10, 10), ("a", 100, 100), ("a", 1000, 1000)])
        store.remove(Windowed(b"a", 10, 10))
        store.close()
        with pytest.raises(InvalidStateStore):
            store.fetch(b"a")
        again = opened(task, name="again")
        assert [] == list(again.fetch(b"a"))
        again.restore(task.logged, offset=5)
        assert [1, 3, 4] == values(again.fetch(b"a"))
        assert (1000, 5) == (again.stream_time_ms, again.committed_offset())

    @pytest.mark.case("S-28")
    def test_the_position_is_that_of_the_newest_write(self, task: TaskUnderTest, store: Session) -> None:
        for offset in range(1, 4):
            task.at(offset)
            put(store, [("a", offset, offset)])
        assert Position({"": {0: 3}}) == store.position()
