"""What a window store promises, whatever its mechanism and wherever it lives: reads, ranges, iterators, duplicates."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from statestore.errors import InvalidStateStore
from statestore.kinds.window import Window
from statestore.position import Position
from statestore.store import Isolation
from statestore.windows import MAX_TIME_MS, Windowed
from tests.statestore.conftest import TRANSACTIONAL, TaskUnderTest

transactional = pytest.mark.parametrize("setup", TRANSACTIONAL, ids=str)

T0 = 59_996
RETENTION_MS = 120_000
HUGE_MS = 0x7A00_0000_0000_0000
FIRST = [(0, T0, "zero"), (1, T0 + 1, "one"), (2, T0 + 2, "two"), (3, T0 + 2, "three"), (4, T0 + 4, "four")]
FIRST = [*FIRST, (5, T0 + 5, "five")]
SECOND = [(2, T0 + 2 + n, f"two+{n}") for n in range(1, 7)]


def key(number: int) -> bytes:
    return number.to_bytes(4, "big", signed=True)


def fill(store: Window, records: Iterable[tuple[int, int, str]]) -> None:
    for number, start, value in records:
        store.put(key(number), value.encode(), start)


def values(entries: Iterable[tuple[object, bytes]]) -> list[str]:
    return [value.decode() for _, value in entries]


def opened(
    task: TaskUnderTest,
    *,
    name: str = "windows",
    retention_ms: int = RETENTION_MS,
    window_size_ms: int = 3,
    retain_duplicates: bool = False,
) -> Window:
    return task.open(
        Window(
            name,
            retention_ms=retention_ms,
            window_size_ms=window_size_ms,
            retain_duplicates=retain_duplicates,
            **task.setup.options,
        )
    )


@pytest.fixture
def store(task: TaskUnderTest) -> Window:
    return opened(task)


@pytest.fixture
def duplicates(task: TaskUnderTest) -> Window:
    return opened(task, retain_duplicates=True)


class TestOneKey:
    @pytest.mark.case("W-01")
    def test_fetch_gives_the_windows_of_the_key_alone(self, store: Window) -> None:
        fill(store, FIRST)
        assert ["zero"] == values(store.fetch(key(0), T0 - 3, T0 + 3))

    @pytest.mark.case("W-02")
    def test_a_window_is_found_by_its_start(self, store: Window) -> None:
        fill(store, FIRST + SECOND)
        found = [store.fetch_one(key(2), T0 + 2 + n) for n in range(1, 7)]
        assert [f"two+{n}".encode() for n in range(1, 7)] == found

    @pytest.mark.case("W-03", "W-04", "W-05", "W-06", "W-07")
    @pytest.mark.parametrize(
        ("number", "first", "last", "expected"),
        [
            (2, -5, 1, []),
            (2, -4, 2, ["two"]),
            (2, -3, 3, ["two", "two+1"]),
            (2, 2, 8, ["two", "two+1", "two+2", "two+3", "two+4", "two+5", "two+6"]),
            (2, 3, 9, ["two+1", "two+2", "two+3", "two+4", "two+5", "two+6"]),
            (2, 9, 15, []),
            (2, 2, 5, ["two", "two+1", "two+2", "two+3"]),
            (2, 3, 6, ["two+1", "two+2", "two+3", "two+4"]),
            (3, 3, 6, []),
            (2, 8, 11, ["two+6"]),
        ],
    )
    def test_both_ends_of_an_interval_are_included(
        self, store: Window, number: int, first: int, last: int, expected: list[str]
    ) -> None:
        fill(store, FIRST + SECOND)
        assert expected == values(store.fetch(key(number), T0 + first, T0 + last))
        assert expected[::-1] == values(store.backward_fetch(key(number), T0 + first, T0 + last))

    @pytest.mark.case("W-20")
    def test_a_second_write_replaces_and_none_deletes(self, store: Window) -> None:
        store.put(key(1), b"one", 0)
        store.put(key(1), b"one v2", 0)
        assert [(0, b"one v2")] == list(store.fetch(key(1), 0, 0))
        store.put(key(1), None, 0)
        assert [] == list(store.fetch(key(1), 0, 0))

    @pytest.mark.case("W-21")
    def test_an_unknown_window_is_none(self, store: Window) -> None:
        assert store.fetch_one(key(1), 0) is None

    @pytest.mark.case("W-22")
    def test_a_key_is_bytes(self, store: Window) -> None:
        with pytest.raises(TypeError):
            store.put(None, b"x", 0)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            store.fetch(None, 1, 2)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            store.fetch_one(None, 1)  # type: ignore[arg-type]

    def test_a_window_does_not_start_before_time(self, store: Window) -> None:
        with pytest.raises(ValueError, match="negative"):
            store.put(key(1), b"x", -1)

    def test_an_interval_before_time_or_inverted_is_empty(self, store: Window) -> None:
        fill(store, FIRST)
        assert [] == list(store.fetch(key(0), -10, -1))
        assert [] == list(store.fetch(key(0), T0 + 1, T0))
        assert [] == list(store.fetch_all(-10, -1))

    def test_an_empty_value_is_a_value(self, store: Window) -> None:
        store.put(key(1), b"", 0)
        assert b"" == store.fetch_one(key(1), 0)

    @pytest.mark.case("W-23")
    def test_a_key_that_begins_with_another_is_not_taken_for_it(self, task: TaskUnderTest) -> None:
        store = opened(task, retention_ms=HUGE_MS, window_size_ms=HUGE_MS)
        for number, (name, start) in enumerate(
            [(b"a", 0), (b"aa", 0), (b"a", 1), (b"aa", 1), (b"a", HUGE_MS - 1)], start=1
        ):
            store.put(name, f"000{number}".encode(), start)
        assert ["0001", "0003", "0005"] == values(store.fetch(b"a", 0, MAX_TIME_MS))
        assert ["0001", "0003", "0005"] == values(store.fetch_range(b"a", b"a", 0, MAX_TIME_MS))
        assert ["0002", "0004"] == values(store.fetch_range(b"aa", b"aa", 0, MAX_TIME_MS))
        last = list(store.fetch_range(b"a", b"a", HUGE_MS - 1, MAX_TIME_MS))
        assert [(Windowed(b"a", HUGE_MS - 1, MAX_TIME_MS), b"0005")] == last

    @pytest.mark.case("W-24")
    def test_binary_keys_of_any_length_do_not_mix(self, task: TaskUnderTest) -> None:
        store = opened(task, retain_duplicates=True, retention_ms=60_000)
        one, two, three = b"\0", b"\0\0", b"\0\0\0"
        records = [(one, 1, 0), (two, 2, 0), (three, 3, 0), (one, 4, 1), (two, 5, 59_999), (three, 6, 59_999)]
        for name, value, start in [*records, (one, 7, 59_999), (two, 8, 59_999), (three, 9, 59_999)]:
            store.put(name, str(value).encode(), start)
        assert ["1", "4", "7"] == values(store.fetch(one, 0, MAX_TIME_MS))
        assert ["2", "5", "8"] == values(store.fetch(two, 0, MAX_TIME_MS))
        assert ["3", "6", "9"] == values(store.fetch(three, 0, MAX_TIME_MS))


class TestAllKeys:
    @pytest.mark.case("W-08", "W-09")
    def test_all_is_in_order_of_time(self, store: Window) -> None:
        fill(store, FIRST)
        expected = [(Windowed(key(n), start, start + 3), value.encode()) for n, start, value in FIRST]
        assert expected == list(store.all())
        assert expected[::-1] == list(store.backward_all())

    @pytest.mark.case("W-10")
    def test_deleted_windows_are_left_out(self, store: Window) -> None:
        fill(store, [(n, T0 + n, str(n)) for n in range(5)])
        store.put(key(1), None, T0 + 1)
        store.put(key(3), None, T0 + 3)
        assert ["0", "2", "4"] == values(store.all())

    @pytest.mark.case("W-11")
    def test_the_order_of_writes_does_not_matter(self, store: Window) -> None:
        fill(store, [(n, T0 + n, str(n)) for n in (4, 0, 3, 1, 2)])
        assert ["0", "1", "2", "3", "4"] == values(store.all())

    @pytest.mark.case("W-12")
    def test_an_iterator_closed_early_takes_nothing_away(self, store: Window) -> None:
        fill(store, FIRST)
        with store.all() as entries:
            next(entries)
        assert 6 == len(list(store.all()))

    @pytest.mark.case("W-13", "W-14")
    @pytest.mark.parametrize(
        ("first", "last", "expected"),
        [
            (1, 4, ["one", "two", "three", "four"]),
            (0, 3, ["zero", "one", "two", "three"]),
            (1, 5, ["one", "two", "three", "four", "five"]),
        ],
    )
    def test_fetch_all_cuts_by_time(self, store: Window, first: int, last: int, expected: list[str]) -> None:
        fill(store, FIRST)
        assert expected == values(store.fetch_all(T0 + first, T0 + last))
        assert expected[::-1] == values(store.backward_fetch_all(T0 + first, T0 + last))

    @pytest.mark.case("W-15", "W-16", "W-17", "W-18", "W-19")
    @pytest.mark.parametrize(
        ("lower", "upper", "first", "last", "expected"),
        [
            (0, 1, -3, 3, ["zero", "one"]),
            (1, 3, -3, 3, ["one", "two", "three"]),
            (0, 5, -3, 3, ["zero", "one", "two", "three"]),
            (0, 5, -3, 8, ["zero", "one", "two", "three", "four", "five"]),
            (0, 5, 2, 8, ["two", "three", "four", "five"]),
            (4, 5, 2, 3, []),
            (0, 3, 3, 8, []),
            (None, 2, -3, 8, ["zero", "one", "two"]),
            (2, None, -3, 8, ["two", "three", "four", "five"]),
            (None, None, -3, 8, ["zero", "one", "two", "three", "four", "five"]),
        ],
    )
    def test_key_ranges_include_both_ends_and_may_be_open(
        self,
        store: Window,
        lower: int | None,
        upper: int | None,
        first: int,
        last: int,
        expected: list[str],
    ) -> None:
        fill(store, FIRST)
        first_key, last_key = (None if bound is None else key(bound) for bound in (lower, upper))
        assert expected == values(store.fetch_range(first_key, last_key, T0 + first, T0 + last))
        assert expected[::-1] == values(store.backward_fetch_range(first_key, last_key, T0 + first, T0 + last))

    @pytest.mark.case("W-25")
    def test_a_range_of_one_key_gives_what_the_key_gives(self, store: Window) -> None:
        fill(store, [(1, 0, "one"), (2, 1, "two"), (2, 2, "three"), (3, 3, "four")])
        assert values(store.fetch(key(2), 0, 5)) == values(store.fetch_range(key(2), key(2), 0, 5)) == ["two", "three"]

    def test_keys_come_before_times_on_disk_and_after_them_in_memory(self, store: Window) -> None:
        for name, start in ((b"a", 0), (b"b", 0), (b"a", 1), (b"b", 1), (b"a", 100_000)):
            store.put(name, b"", start)
        by_key = [(b"a", 0), (b"a", 1), (b"b", 0), (b"b", 1), (b"a", 100_000)]
        expected = by_key if store.persistent() else sorted(by_key, key=lambda pair: pair[::-1])
        assert expected == [(windowed.key, windowed.start_ms) for windowed, _ in store.all()]
        assert expected[::-1] == [(windowed.key, windowed.start_ms) for windowed, _ in store.backward_all()]


class TestIterators:
    @pytest.mark.case("W-29")
    def test_peeking_does_not_advance(self, store: Window) -> None:
        store.put(key(1), b"one", 0)
        entries = store.fetch_all(0, 0)
        assert entries.peek_next_key() == entries.peek_next_key() == Windowed(key(1), 0, 3)
        assert (Windowed(key(1), 0, 3), b"one") == next(entries)
        assert not entries.has_next()

    @pytest.mark.case("W-30")
    def test_the_key_of_a_key_s_windows_is_their_start(self, store: Window) -> None:
        store.put(key(1), b"one", 7)
        assert 7 == store.fetch(key(1), 0, 10).peek_next_key()

    @pytest.mark.case("W-31")
    def test_an_iterator_sees_what_is_written_before_it_comes_there(self, store: Window) -> None:
        fill(store, [(1, 0, "one"), (1, 30, "two")])
        entries = store.all()
        fill(store, [(1, 60, "three"), (2, 90, "four")])
        assert ["one", "two", "three", "four"] == values(entries)

    @pytest.mark.case("W-32")
    def test_closing_the_store_ends_its_iterators(self, store: Window) -> None:
        fill(store, [(1, 1, "one"), (1, 2, "two"), (1, 3, "three")])
        entries = store.fetch(key(1), 1, 3)
        next(entries)
        assert entries.has_next()
        store.close()
        assert not entries.has_next()
        with pytest.raises(InvalidStateStore):
            store.fetch(key(1), 1, 3)

    @transactional
    def test_a_committed_iterator_stays_on_its_version(self, store: Window) -> None:
        fill(store, [(1, 0, "one"), (1, 100_000, "two")])
        store.commit(2)
        entries = store.all(Isolation.READ_COMMITTED)
        fill(store, [(1, 0, "changed"), (1, 100_000, "changed"), (1, 100_001, "three")])
        store.commit(5)
        assert ["one", "two"] == values(entries)
        assert ["changed", "changed", "three"] == values(store.all(Isolation.READ_COMMITTED))


class TestIsolation:
    @transactional
    def test_committed_reads_see_nothing_of_the_open_transaction(self, task: TaskUnderTest, store: Window) -> None:
        committed = Isolation.READ_COMMITTED
        fill(store, [(1, 0, "one")])
        store.commit(1)
        fill(store, [(1, 0, "changed"), (1, 1, "two")])
        assert ["one"] == values(store.fetch(key(1), 0, 9, committed)) == values(store.all(committed))
        assert b"one" == store.fetch_one(key(1), 0, committed)
        assert ["changed", "two"] == values(store.fetch(key(1), 0, 9))
        store.rollback()
        assert ["one"] == values(store.all())

    @transactional
    def test_uncommitted_stream_time_hides_no_committed_window(self, task: TaskUnderTest, store: Window) -> None:
        fill(store, [(1, 0, "one")])
        store.commit(1)
        fill(store, [(1, 10 * RETENTION_MS, "two")])
        assert ["two"] == values(store.all())
        assert ["one"] == values(store.all(Isolation.READ_COMMITTED))
        store.rollback()
        assert 0 == store.stream_time_ms
        assert ["one"] == values(store.all())


class TestDuplicates:
    @pytest.mark.case("W-33")
    def test_every_value_written_is_kept(self, duplicates: Window) -> None:
        written = ["zero", "zero", "zero+", "zero++"]
        fill(duplicates, [(0, T0, value) for value in written])
        for shift in range(4):
            assert written == values(duplicates.fetch(key(0), T0 - 3 + shift, T0 + 3 + shift))
        assert [] == values(duplicates.fetch(key(0), T0 + 1, T0 + 7))

    @pytest.mark.case("W-34")
    def test_duplicates_come_in_the_order_written(self, duplicates: Window) -> None:
        fill(duplicates, [(1, 0, "one"), (1, 0, "one-2"), (1, 30, "two"), (1, 30, "two-2"), (1, 60, "three")])
        expected = [(0, b"one"), (0, b"one-2"), (30, b"two"), (30, b"two-2")]
        assert expected == list(duplicates.fetch(key(1), 0, 30))
        assert expected[::-1] == list(duplicates.backward_fetch(key(1), 0, 30))

    @pytest.mark.case("W-35")
    def test_a_deletion_is_ignored_and_logged(self, task: TaskUnderTest, duplicates: Window) -> None:
        duplicates.put(key(1), b"one", 0)
        duplicates.put(key(1), None, 0)
        assert ["one"] == values(duplicates.fetch(key(1), 0, 0))
        assert [(key(1) + bytes(11) + b"\1", b"one"), (key(1) + bytes(11) + b"\2", None)] == [
            (record.key, record.value) for record in task.logged
        ]

    @pytest.mark.case("W-36")
    def test_each_write_has_its_own_changelog_key(self, task: TaskUnderTest, duplicates: Window) -> None:
        duplicates.put(key(1), b"one", 0)
        duplicates.put(key(1), b"one", 0)
        assert [bytes(11) + b"\1", bytes(11) + b"\2"] == [record.key[4:] for record in task.logged]

    def test_the_value_of_a_window_is_the_last_written(self, duplicates: Window) -> None:
        fill(duplicates, [(1, 0, "one"), (1, 0, "two")])
        assert b"two" == duplicates.fetch_one(key(1), 0)

    def test_the_sequence_goes_on_after_a_commit_and_back_at_a_rollback(
        self, task: TaskUnderTest, duplicates: Window
    ) -> None:
        duplicates.put(key(1), b"one", 0)
        duplicates.commit(1)
        if duplicates.transactional():
            duplicates.put(key(1), b"lost", 0)
            duplicates.rollback()
        duplicates.put(key(1), b"two", 0)
        duplicates.commit(2)
        duplicates.close()
        again = opened(task, retain_duplicates=True)
        again.put(key(1), b"three", 0)
        expected = ["one", "two", "three"] if task.setup.persistent else ["three"]
        assert expected == values(again.fetch(key(1), 0, 0))


@pytest.mark.case("W-55")
def test_the_position_is_that_of_the_newest_write(task: TaskUnderTest, store: Window) -> None:
    for offset in range(1, 5):
        task.at(offset)
        store.put(key(offset), b"", 0)
    assert Position({"": {0: 4}}) == store.position()


@pytest.mark.case("W-56")
@pytest.mark.parametrize(
    ("retention_ms", "window_size_ms", "interval_ms"), [(2, 3, None), (-1, 3, None), (3, -1, None), (3, 3, 0)]
)
def test_impossible_lengths_are_refused(retention_ms: int, window_size_ms: int, interval_ms: int | None) -> None:
    with pytest.raises(ValueError, match="ms"):
        Window("s", retention_ms=retention_ms, window_size_ms=window_size_ms, segment_interval_ms=interval_ms)


@pytest.mark.case("W-56")
def test_a_store_has_a_name() -> None:
    with pytest.raises(TypeError):
        Window(None, retention_ms=3, window_size_ms=3)  # type: ignore[arg-type]
