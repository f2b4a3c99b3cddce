"""Window and session stores against dicts, and committed reads beside a committing writer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statestore.kinds.base import Kind
from statestore.kinds.session import Session
from statestore.kinds.window import Window
from statestore.spaces.memory import MemoryBase
from statestore.store import Entry, Isolation, TransactionalMechanism
from statestore.windows import MAX_TIME_MS, Windowed
from tests.statestore.conftest import SETUPS, TRANSACTIONAL, Setup, TaskUnderTest

RETENTION_MS = 100
INTERVAL_MS = 40
COMMITTED = Isolation.READ_COMMITTED
Entries = dict[int, bytes]
BOTH = [Setup(TransactionalMechanism.INDEXED_BATCH), Setup(TransactionalMechanism.INDEXED_BATCH, persistent=False)]

keys = st.sampled_from([b"", b"\0", b"\0\0", b"a", b"aa", b"\xff"])
times = st.integers(0, 400)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), keys, times, st.integers(0, 60), st.none() | st.binary(max_size=2)),
        st.tuples(st.sampled_from(["commit", "rollback"])),
    ),
    max_size=40,
)


class Model:
    """Entries by (key, start, end) with the time that expires them, and the stream time."""

    def __init__(self) -> None:
        self.entries: dict[tuple[bytes, int, int], bytes] = {}
        self.stream_time = -1
        self.committed = (dict[tuple[bytes, int, int], bytes](), -1)

    def put(self, entry: tuple[bytes, int, int], value: bytes | None, time: int, *, whole_segments: bool) -> None:
        self.stream_time = max(self.stream_time, time)
        oldest = max(self.stream_time - RETENTION_MS, 0)
        late = (
            time // INTERVAL_MS < oldest // INTERVAL_MS if whole_segments else self.stream_time - time >= RETENTION_MS
        )
        if value is None and not late:
            self.entries.pop(entry, None)
        elif value is not None and not late:
            self.entries[entry] = value

    def end(self, step: str) -> None:
        if step == "commit":
            self.committed = (dict(self.entries), self.stream_time)
        else:
            self.entries, self.stream_time = dict(self.committed[0]), self.committed[1]

    def readable(self, time_of: Literal[1, 2], *, committed: bool = False) -> dict[tuple[bytes, int, int], bytes]:
        """What is not expired; `time_of` says which part of an entry's name is its time."""
        entries, stream_time = self.committed if committed else (self.entries, self.stream_time)
        return {entry: value for entry, value in entries.items() if entry[time_of] > stream_time - RETENTION_MS}


@pytest.mark.parametrize("setup", BOTH, ids=str)
@settings(max_examples=60, deadline=None)
@given(steps=steps, lower=st.none() | keys, upper=st.none() | keys, first=times, last=times)
def test_a_window_store_equals_a_dict(
    setup: Setup, steps: list[tuple], lower: bytes | None, upper: bytes | None, first: int, last: int
) -> None:
    model = Model()
    with TemporaryDirectory() as folder:
        task = TaskUnderTest(setup, Path(folder))
        lengths: dict[str, Any] = {
            "retention_ms": RETENTION_MS,
            "window_size_ms": 5,
            "segment_interval_ms": INTERVAL_MS,
        }
        store = task.open(Window("s", **lengths, **setup.options))
        for step in steps:
            if step[0] == "put":
                _, key, start, _, value = step
                store.put(key, value, start)
                model.put((key, start, start + 5), value, start, whole_segments=setup.persistent)
            else:
                store.commit(1) if step[0] == "commit" else store.rollback()
                model.end(step[0])
        expected = model.readable(1)
        assert expected == {(*at,): value for at, value in store.all()}
        assert model.readable(1, committed=True) == {(*at,): value for at, value in store.all(COMMITTED)}
        chosen = {
            at: value
            for at, value in expected.items()
            if (lower is None or lower <= at[0]) and (upper is None or at[0] <= upper) and first <= at[1] <= last
        }
        found = [((*at,), value) for at, value in store.fetch_range(lower, upper, first, last)]
        assert (chosen, len(chosen)) == (dict(found), len(found))
        assert found[::-1] == [((*at,), value) for at, value in store.backward_fetch_range(lower, upper, first, last)]
        one = sorted((at[1], value) for at, value in expected.items() if at[0] == lower and first <= at[1] <= last)
        assert lower is None or one == list(store.fetch(lower, first, last))
        again = task.open(Window("again", **lengths, **setup.options))
        again.restore(task.logged)
        if "rollback" not in [step[0] for step in steps]:
            assert list(store.all()) == list(again.all())
        task.stores.close()


@pytest.mark.parametrize("setup", BOTH, ids=str)
@settings(max_examples=60, deadline=None)
@given(steps=steps, lower=st.none() | keys, upper=st.none() | keys, end=times, start=times)
def test_a_session_store_equals_a_dict(
    setup: Setup, steps: list[tuple], lower: bytes | None, upper: bytes | None, end: int, start: int
) -> None:
    model = Model()
    with TemporaryDirectory() as folder:
        task = TaskUnderTest(setup, Path(folder))
        lengths: dict[str, Any] = {"retention_ms": RETENTION_MS, "segment_interval_ms": INTERVAL_MS}
        store = task.open(Session("s", **lengths, **setup.options))
        for step in steps:
            if step[0] == "put":
                _, key, begin, length, value = step
                store.put(Windowed(key, begin, begin + length), value)
                model.put((key, begin, begin + length), value, begin + length, whole_segments=setup.persistent)
            else:
                store.commit(1) if step[0] == "commit" else store.rollback()
                model.end(step[0])
        expected = model.readable(2)
        assert expected == {(*at,): value for at, value in store.fetch_range(None, None)}
        assert model.readable(2, committed=True) == {(*a,): v for a, v in store.fetch_range(None, None, COMMITTED)}
        chosen = {
            at: value
            for at, value in expected.items()
            if (lower is None or lower <= at[0])
            and (upper is None or at[0] <= upper)
            and at[2] >= end
            and at[1] <= start
        }
        found = [((*at,), value) for at, value in store.find_sessions_range(lower, upper, end, start)]
        assert (chosen, len(chosen)) == (dict(found), len(found))
        backward = [((*at,), value) for at, value in store.backward_find_sessions_range(lower, upper, end, start)]
        assert found[::-1] == backward
        if lower is not None:
            mine = {at: value for at, value in expected.items() if at[0] == lower and at[2] >= end and at[1] <= start}
            assert mine == {(*at,): value for at, value in store.find_sessions(lower, end, start)}
        task.stores.close()


@pytest.mark.parametrize("setup", SETUPS[2:4], ids=str)
def test_a_committed_read_shows_one_version_over_all_segments(task: TaskUnderTest) -> None:
    store = task.open(Window("s", retention_ms=1000, window_size_ms=5, segment_interval_ms=10, **task.setup.options))
    starts = range(0, 100, 10)
    stop, torn = Event(), []

    def write(version: int) -> None:
        for start in starts:
            store.put(b"k", str(version).encode(), start)
        store.commit(version)

    def read() -> None:
        while not stop.is_set():
            versions = {value for _, value in store.fetch(b"k", 0, 100, COMMITTED)}
            if len(versions) != 1:
                torn.append(versions)

    write(0)
    readers = [Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for version in range(1, 300):
        write(version)
    stop.set()
    for reader in readers:
        reader.join()
    assert [] == torn


def window_of(
    task: TaskUnderTest, retention_ms: int
) -> tuple[Callable[[bytes, int], None], Callable[[], list[Entries]], Kind]:
    """How a window is put, and what every kind of committed read says of all of them."""
    store = task.open(
        Window("s", retention_ms=retention_ms, window_size_ms=5, segment_interval_ms=10, **task.setup.options)
    )

    def read() -> list[Entries]:
        single = {start: store.fetch_one(b"k", start, COMMITTED) for start in range(0, 300, 10)}
        return [
            dict(store.fetch(b"k", 0, MAX_TIME_MS, COMMITTED)),
            dict(list(store.backward_fetch(b"k", 0, MAX_TIME_MS, COMMITTED))[::-1]),
            {at.start_ms: value for at, value in store.all(COMMITTED)},
            {start: value for start, value in single.items() if value is not None},
        ]

    return lambda value, start_ms: store.put(b"k", value, start_ms), read, store


def session_of(
    task: TaskUnderTest, retention_ms: int
) -> tuple[Callable[[bytes, int], None], Callable[[], list[Entries]], Kind]:
    """`window_of` sessions of no length."""
    store = task.open(Session("s", retention_ms=retention_ms, segment_interval_ms=10, **task.setup.options))

    def read() -> list[Entries]:
        single = {start: store.fetch_session(b"k", start, start, COMMITTED) for start in range(0, 300, 10)}
        return [
            {at.start_ms: value for at, value in store.fetch(b"k", COMMITTED)},
            {at.start_ms: value for at, value in store.fetch_range(None, None, COMMITTED)},
            {start: value for start, value in single.items() if value is not None},
        ]

    return lambda value, at_ms: store.put(Windowed(b"k", at_ms, at_ms), value), read, store


@pytest.mark.parametrize("setup", TRANSACTIONAL, ids=str)
@pytest.mark.parametrize("opened", [window_of, session_of])
@pytest.mark.parametrize(
    ("retention_ms", "newer"),
    [(1000, range(0, 110, 10)), (50, range(0, 250, 10)), (100, range(0, 20, 10))],
    ids=["one segment more", "another stream time, and none that was read", "the same stream time"],
)
def test_a_committed_read_has_stream_time_and_entries_of_one_version(
    task: TaskUnderTest, monkeypatch: pytest.MonkeyPatch, opened: Any, retention_ms: int, newer: range
) -> None:
    put, read, store = opened(task, retention_ms)
    for start in range(0, 100, 10):
        put(b"old", start)
    store.commit(1)
    (old, *others) = read()
    assert old and all(other == old for other in others)
    seen: list[list[Entries]] = []
    commit = store.transaction.commit

    def commit_and_look(*arguments: Any) -> None:
        commit(*arguments)
        seen.append(read())

    # At each step of a commit, and when it is through but nobody has been told.
    for mechanism in ("indexed_batch", "secondary_store"):
        monkeypatch.setattr(f"statestore.transactions.{mechanism}.reach", lambda _point: seen.append(read()))
    monkeypatch.setattr(store.transaction, "commit", commit_and_look)
    for start in newer:
        put(b"new", start)
    store.commit(2)
    (new, *others) = read()
    assert new != old and all(other == new for other in others)
    versions = [[found == old, found == new] for reads in seen for found in reads]
    assert len(seen) > 1 and [True, False] in versions and [False, True] == versions[-1]
    assert all(any(version) for version in versions)


@pytest.mark.parametrize("setup", TRANSACTIONAL[:2], ids=str)
def test_a_committed_read_beside_a_writer_lacks_no_segment(task: TaskUnderTest) -> None:
    put, _, store = window_of(task, 10_000)
    assert isinstance(store, Window)
    stop, torn = Event(), []

    def write(version: int) -> None:
        for start in (0, 10 * version):
            put(b"%d" % version, start)
        store.commit(version)

    def look() -> None:
        while not stop.is_set():
            found = dict(store.fetch(b"k", 0, MAX_TIME_MS, COMMITTED))
            version = int(found[0])
            if len(found) != version + 1 or found[10 * version] != found[0]:
                torn.append(found)

    write(0)
    reader = Thread(target=look)
    reader.start()
    for version in range(1, 100):
        write(version)
    stop.set()
    reader.join()
    assert [] == torn


@pytest.mark.parametrize("setup", BOTH[1:], ids=str)
def test_a_committed_read_in_memory_ends_though_commits_come_all_the_time(
    task: TaskUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, _, store = window_of(task, 1000)
    assert isinstance(store, Window)
    scan, versions = MemoryBase.scan, count(1)

    def write(version: int) -> None:
        for start in (0, 10, 20):
            put(b"%d" % version, start)
        store.commit(version)

    write(0)
    with ThreadPoolExecutor(1) as writer:

        def scan_and_commit(*about: Any, **bounds: Any) -> Iterator[Entry]:
            found, version = scan(*about, **bounds), next(versions)
            assert version < 50, "the read does not end"
            # A commit that waits for the reader comes later.
            with suppress(TimeoutError):
                writer.submit(write, version).result(0.1)
            return found

        monkeypatch.setattr(MemoryBase, "scan", scan_and_commit)
        found = {at.start_ms: value for at, value in store.all(COMMITTED)}
        monkeypatch.undo()
    assert [0, 10, 20] == list(found)
    assert 1 == len(set(found.values()))
    assert {b"%d" % (next(versions) - 1)} == {value for _, value in store.all(COMMITTED)}


@pytest.mark.parametrize("duplicates", [False, True], ids=["one value", "duplicates"])
@pytest.mark.parametrize("setup", BOTH, ids=str)
@settings(max_examples=60, deadline=None)
@given(batches=st.lists(st.lists(st.tuples(keys, st.none() | st.binary(max_size=2), times), max_size=12), max_size=5))
def test_many_at_once_are_the_same_as_one_after_the_other(
    setup: Setup, duplicates: bool, batches: list[list[tuple[bytes, bytes | None, int]]]
) -> None:
    lengths: dict[str, Any] = {"retention_ms": RETENTION_MS, "window_size_ms": 5, "segment_interval_ms": INTERVAL_MS}
    seen = []
    with TemporaryDirectory() as folder:
        for name in ("single", "many"):
            task = TaskUnderTest(setup, Path(folder) / name)
            store = task.open(Window("w", retain_duplicates=duplicates, **lengths, **setup.options))
            for number, batch in enumerate(batches):
                if name == "many":
                    store.put_all(batch)
                else:
                    for entry in batch:
                        store.put(*entry)
                store.commit(number)
            dropped = task.stores.metrics.totals()
            seen.append((list(store.all()), list(store.all(COMMITTED)), task.records(), store.stream_time_ms, dropped))
            task.stores.close()
    assert seen[0] == seen[1]


def test_many_writes_are_checked_before_the_first(tmp_path: Path) -> None:
    store = TaskUnderTest(BOTH[0], tmp_path).open(
        Window("w", retention_ms=RETENTION_MS, window_size_ms=5, **BOTH[0].options)
    )
    with pytest.raises(ValueError, match="negative"):
        store.put_all([(b"a", b"1", 0), (b"b", b"1", -1)])
    with pytest.raises(TypeError, match="bytes"):
        store.put_all([(b"a", b"1", 0), ("b", b"1", 1)])  # type: ignore[list-item]
    assert [] == list(store.all())
