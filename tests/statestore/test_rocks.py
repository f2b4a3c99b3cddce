"""RocksDB as a base: spaces that come and go under readers, views, and damage that must not pass for an end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.config import RocksConfig
from statestore.errors import InvalidStateStore, TaskCorrupted
from statestore.rocks.database import Database

ENTRIES = [(b"%05d" % number, b"value %05d" % number * 5) for number in range(5000)]


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(tmp_path / "db", ["s"], RocksConfig())
    database.write({"s": ENTRIES})
    yield database
    database.close()


@pytest.mark.parametrize("flushed", [False, True])
def test_a_dropped_space_stays_readable_for_who_reads_it_and_for_nobody_else(database: Database, flushed: bool) -> None:
    if flushed:
        database.flush()
    scan, view = database.scan("s"), database.view(["s"])
    first = next(scan)
    database.drop("s")
    database.drop("s")
    assert (None, [], []) == (database.get("s", b"00001"), database.spaces(), list(database.scan("s")))
    database.write({"s": [(b"new", b"1")]})
    assert [(b"new", b"1")] == list(database.scan("s"))
    assert ENTRIES == [first, *scan]
    # The view's iterator is now the last one of the dropped space.
    assert (ENTRIES, ENTRIES[1][1]) == (list(view.scan("s")), view.get("s", b"00001"))
    view.close()


def test_flushing_goes_beside_writes_drops_copies_and_the_end(database: Database, tmp_path: Path) -> None:
    ended = threading.Event()

    def flush() -> int:
        flushes = 0
        while not ended.is_set():
            database.flush_ahead()
            flushes += 1
        return flushes

    with ThreadPoolExecutor(1) as beside:
        flushes = beside.submit(flush)
        for number in range(60):
            database.write({"s": [(b"%05d" % number, b"again")], f"t{number}": [(b"a", b"1")]})
            if number % 10 == 9:
                database.drop(f"t{number - 5}")
        database.copy_to(tmp_path / "copy")
        database.close()
        ended.set()
        assert flushes.result(timeout=60) > 0
    database.flush_ahead()
    for folder in ("copy", "db"):
        found = Database(tmp_path / folder, [], RocksConfig())
        assert [b"again"] * 60 + [ENTRIES[60][1]] == [found.get("s", b"%05d" % number) for number in range(61)]
        assert 55 == len(found.spaces())
        found.close()


def test_what_was_written_before_a_flush_beside_writers_is_in_files(database: Database) -> None:
    assert [] == list(database.folder.glob("*.sst"))
    database.flush_ahead()
    assert [] != list(database.folder.glob("*.sst"))


def test_spaces_come_back_after_reopening(database: Database, tmp_path: Path) -> None:
    database.write({"t": [(b"a", b"1")]})
    database.create("empty")
    database.drop("s")
    database.close()
    again = Database(tmp_path / "db", [], RocksConfig())
    assert (["empty", "t"], b"1") == (again.spaces(), again.get("t", b"a"))
    again.close()


@pytest.mark.parametrize("inclusive", [True, False])
@pytest.mark.parametrize("reverse", [True, False])
@pytest.mark.parametrize(("lower", "upper"), [(0, 4999), (10, 20), (4990, 6000), (None, 7), (4000, None), (None, None)])
def test_a_view_and_a_scan_cut_ranges_alike(
    database: Database, lower: int | None, upper: int | None, reverse: bool, inclusive: bool
) -> None:
    view = database.view(["s"])
    low, high = (None if end is None else b"%05d" % end for end in (lower, upper))
    expected = [
        entry
        for entry in ENTRIES
        if (low is None or entry[0] >= low) and (high is None or entry[0] < high or (inclusive and entry[0] == high))
    ]
    for source in (database, view):
        found = source.scan("s", lower=low, upper=high, upper_inclusive=inclusive, reverse=reverse)
        assert (expected[::-1] if reverse else expected) == list(found)
    view.close()


def test_a_view_sees_no_later_write(database: Database) -> None:
    view = database.view(["s", "unknown"])
    one, other = view.scan("s"), view.scan("s", reverse=True)
    assert (ENTRIES[0], ENTRIES[-1]) == (next(one), next(other))
    database.write({"s": [(b"00001", None), (b"00002", b"changed")]}, {"s": [(b"00100", b"04000")]})
    assert [value for _, value in ENTRIES[:3]] == view.get_many("s", [b"00000", b"00001", b"00002"])
    assert (None, None, ["s"]) == (view.get("s", b"x"), view.get("unknown", b"x"), view.spaces())
    assert ENTRIES[1:] == list(one)
    assert ENTRIES[-2::-1] == list(other)
    view.close()
    assert len(ENTRIES) - 1 - 3901 == len(list(database.scan("s")))


def test_closing_ends_everything_that_reads(database: Database, tmp_path: Path) -> None:
    scan, view = database.scan("s"), database.view(["s"])
    viewed = view.scan("s")
    next(scan), next(viewed)
    database.close()
    for read in (
        lambda: list(scan),
        lambda: list(viewed),
        lambda: view.get("s", b"a"),
        lambda: database.get("s", b"a"),
        database.spaces,
    ):
        with pytest.raises(InvalidStateStore):
            read()
    Database(tmp_path / "db", [], RocksConfig()).close()


small_keys = st.binary(min_size=1, max_size=2)


@given(
    entries=st.dictionaries(small_keys, st.binary(max_size=2), max_size=200),
    steps=st.lists(st.one_of(st.tuples(small_keys, small_keys), st.tuples(small_keys, st.none())), max_size=40),
)
def test_a_few_entries_are_those_that_a_scan_gives(
    tmp_path_factory: pytest.TempPathFactory,
    entries: dict[bytes, bytes],
    steps: list[tuple[bytes, bytes] | tuple[bytes, None]],
) -> None:
    database = Database(tmp_path_factory.mktemp("few"), ["s"], RocksConfig())
    database.write({"s": entries.items()})
    for lower, upper in sorted(steps, key=lambda step: (step[0], step[1] or b"")):
        if upper is None:
            database.put("s", lower, b"changed")
            continue
        expected = list(database.scan("s", lower=lower, upper=upper))
        found = database.few("s", lower, upper)
        assert (expected if found is not None else []) == (found or [])
        assert found is not None or len(expected) >= 64
    database.close()


def test_a_few_entries_are_of_the_present_version(database: Database) -> None:
    ends = b"00010", b"00012"
    assert ENTRIES[10:13] == database.few("s", *ends)
    database.put("s", b"00011", b"put")
    assert [ENTRIES[10], (b"00011", b"put"), ENTRIES[12]] == database.few("s", *ends)
    database.write({"s": [(b"00010", None)]})
    assert [(b"00011", b"put"), ENTRIES[12]] == database.few("s", *ends)
    database.drop("s")
    assert [] == database.few("s", *ends)
    database.write({"s": [(b"00011", b"new")]})
    assert [(b"00011", b"new")] == database.few("s", *ends)
    database.close()
    with pytest.raises(InvalidStateStore):
        database.few("s", *ends)


def test_more_than_a_few_entries_are_for_a_scan(database: Database) -> None:
    assert ENTRIES[:60] == database.few("s", b"", b"00059")
    assert None is database.few("s", b"", b"00080")
    assert ENTRIES[5:7] == database.few("s", b"00005", b"00006")


def test_a_few_of_an_inverted_range_leave_nothing_out_of_the_next(database: Database) -> None:
    assert [] == database.few("s", b"00020", b"00010")
    assert ENTRIES[15:17] == database.few("s", b"00015", b"00016")


def test_an_iterator_for_a_few_is_kept_between_writes_and_not_within_one(database: Database) -> None:
    def kept() -> object:
        database.few("s", b"00001", b"00001")
        return (database._present.pinned or {}).get("s")

    first = kept()
    assert first is not None
    assert first is kept()
    with database._present:
        assert None is kept()
        # The write is through, and the one who makes it has not returned from it.
        database._families["s"].put(b"00001", b"new")
        assert [(b"00001", b"new")] == database.few("s", b"00001", b"00001")
    assert kept() not in (None, first)


def test_a_flipped_byte_is_corruption_and_not_the_end_of_a_few(database: Database, tmp_path: Path) -> None:
    database.flush()
    database.close()
    file = max((tmp_path / "db").glob("*.sst"), key=lambda path: path.stat().st_size)
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 0x40
    file.write_bytes(raw)
    with pytest.raises(TaskCorrupted):
        damaged = Database(tmp_path / "db", ["s"], RocksConfig())
        try:
            for key, value in ENTRIES:
                assert [(key, value)] == damaged.few("s", key, key)
        finally:
            damaged.close()


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("place", [0.05, 0.5, 0.8])
def test_a_flipped_byte_is_corruption_and_not_the_end_of_a_scan(
    database: Database, tmp_path: Path, place: float, reverse: bool
) -> None:
    database.flush()
    database.close()
    file = max((tmp_path / "db").glob("*.sst"), key=lambda path: path.stat().st_size)
    raw = bytearray(file.read_bytes())
    raw[int(len(raw) * place)] ^= 0x40
    file.write_bytes(raw)
    with pytest.raises(TaskCorrupted):
        damaged = Database(tmp_path / "db", ["s"], RocksConfig())
        try:
            assert len(list(damaged.scan("s", reverse=reverse))) == len(ENTRIES)
        finally:
            damaged.close()
