"""Readers of a task's windows see one committed version, whole, and wait for no batch that is under way."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pytest

from statestore import task as module
from statestore.batches import Order
from statestore.client import StoreClient
from statestore.committedhashes import CommittedHashes
from statestore.config import RocksConfig, ServerConfig
from statestore.layouts.window import pack, unpack
from statestore.server import StoreServer
from statestore.store import Entry, Isolation
from statestore.task import Task
from tests.support.task import PLAN, TaskWorld, keys_of, stage_windows, window_rows

MINUTE = 60_000
RETENTION = 2 * MINUTE  # segments of a minute
BEGIN = 1_700_000_040_000  # begins a minute
WAIT_S = 20
A, B = keys_of(0, 1, 2)
Windows = dict[tuple[bytes, int], bytes]
OLD: Windows = {(A, BEGIN): b"old", (B, BEGIN + MINUTE): b"old"}
# By its stream time the first window of `OLD` cannot be read any more, though its segment is still there.
CHANGES: Windows = {(B, BEGIN + MINUTE): b"new", (A, BEGIN + 2 * MINUTE): b"new"}
NEW: Windows = CHANGES
OLD_ORDER, NEW_ORDER = Order(BEGIN + MINUTE), Order(BEGIN + 2 * MINUTE + 30_000)


@pytest.fixture
def world(kafka: str, unique: str, tmp_path: Path) -> Iterator[TaskWorld]:
    """A task with windows of which `OLD` is committed."""
    world = TaskWorld(kafka, unique, tmp_path / "state", None)
    world.spec = replace(world.spec, store=replace(world.spec.store, retention_ms=RETENTION))
    yield world
    world.close()


@pytest.fixture
def task(world: TaskWorld) -> Task:
    world.open()
    commit(world.running, OLD, OLD_ORDER)
    return world.running


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


def commit(task: Task, windows: Windows, order: Order) -> None:
    assert task.commit(batch=stage_windows(task, windows, order), attempt=1, plan=PLAN)


def windows_of(entries: Iterator[Entry]) -> Windows:
    return {unpack(key)[:2]: value[8:] for key, value in entries}


def content(task: Task, isolation: Isolation = Isolation.READ_COMMITTED) -> Windows:
    return windows_of(task.entries(None, None, isolation))


@contextmanager
def held_at(point: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Event]:
    """Within, whoever comes to the failpoint says so and waits there."""
    there, go_on = Event(), Event()

    def reach(name: str) -> None:
        if name == point:
            there.set()
            assert go_on.wait(3 * WAIT_S)

    with monkeypatch.context() as patch:
        patch.setattr(module, "reach", reach)
        try:
            yield there
        finally:
            go_on.set()


@pytest.mark.parametrize(
    ("point", "expected"),
    [
        ("commit.begun", OLD),
        ("commit.position-sent", OLD),
        ("commit.committed", OLD),
        ("apply.before-write", OLD),
        ("apply.written", NEW),
    ],
)
def test_a_reader_does_not_wait_for_a_commit_and_sees_one_version(
    task: Task, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, point: str, expected: Windows
) -> None:
    batch = stage_windows(task, CHANGES, NEW_ORDER)
    with held_at(point, monkeypatch) as there:
        committing = pool.submit(task.commit, batch=batch, attempt=1, plan=PLAN)
        assert there.wait(WAIT_S)
        assert expected == pool.submit(content, task).result(WAIT_S)
        # What is staged and what is committed of it look the same to whoever wants both.
        uncommitted = pool.submit(content, task, Isolation.READ_UNCOMMITTED).result(WAIT_S)
        assert CHANGES == {window: value for window, value in uncommitted.items() if window in CHANGES}
        assert not committing.done()
    assert committing.result(WAIT_S)
    assert NEW == content(task)


def test_a_commit_between_two_segments_is_seen_whole(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = stage_windows(task, CHANGES, NEW_ORDER)
    scan, opened = task.store.scan, []

    def scan_then_commit(space: str, **arguments: Any) -> Iterator[Entry]:
        entries = scan(space, **arguments)
        opened.append(space)
        if len(opened) == 1:
            assert task.commit(batch=batch, attempt=1, plan=PLAN)
        return entries

    monkeypatch.setattr(task.store, "scan", scan_then_commit)
    assert NEW == content(task)
    assert opened[:1] == opened[2:3]


def test_whoever_wants_staged_rows_gets_all_of_a_batch_or_none(
    task: Task, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_all, reading = task.store.put_all, list[Future[Windows]]()

    def read_meanwhile(space: str, changes: Any) -> None:
        put_all(space, changes)
        if not reading:
            reading.append(pool.submit(content, task, Isolation.READ_UNCOMMITTED))
            # Time to read, if nothing keeps it from that.
            with pytest.raises(TimeoutError):
                reading[0].result(0.3)

    monkeypatch.setattr(task.store, "put_all", read_meanwhile)
    stage_windows(task, CHANGES, OLD_ORDER)
    assert OLD | CHANGES == reading[0].result(WAIT_S)


@pytest.fixture
def client(world: TaskWorld, tmp_path: Path) -> Iterator[StoreClient]:
    """Of a server in this process; a call that waits longer than `WAIT_S` fails."""
    address = tmp_path / "s.sock"
    server = StoreServer(ServerConfig("s", str(address), world.kafka, RocksConfig(), states=tmp_path / "states"))
    with StoreClient(address, timeout_s=WAIT_S) as client:
        yield client
    server.close_tasks()
    server.shutdown()


class Driver:
    """Commits batches over a server's own calls, and queries it."""

    def __init__(self, world: TaskWorld, client: StoreClient) -> None:
        self.client, self.epoch = client, world.start_driver()
        client.open_task(world.spec, self.epoch)

    def stage(self, batch: int, windows: Windows, order: Order) -> None:
        reading = self.client.read("q-0", epoch=self.epoch, batch=batch)
        _, token = reading.states(pa.array([pack(*window) for window in windows], pa.binary()))
        reading.close()
        writing = self.client.write("q-0", epoch=self.epoch, batch=batch, attempt=1, token=token, order=order)
        writing.add(window_rows(windows))
        assert len(windows) == writing.close()

    def commit(self, batch: int) -> None:
        assert self.client.commit("q-0", epoch=self.epoch, batch=batch, attempt=1, plan=PLAN, ends={})["committed_now"]

    def query(self, isolation: Isolation, key: bytes | None = None) -> Windows:
        command = {"isolation": isolation.value} | ({} if key is None else {"key": key.hex()})
        rows = [row for batch in self.client.entries("q-0", **command) for row in batch.to_pylist()]
        return windows_of(iter([(row["key"], row["value"]) for row in rows]))


def test_a_query_of_the_committed_version_never_shows_a_staged_batch(
    world: TaskWorld, client: StoreClient, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, changed = Driver(world, client), (B, BEGIN + MINUTE)
    driver.stage(0, OLD, OLD_ORDER)
    assert {} == driver.query(Isolation.READ_COMMITTED)
    driver.commit(0)
    driver.stage(1, CHANGES, NEW_ORDER)

    def is_old() -> None:
        assert OLD == driver.query(Isolation.READ_COMMITTED)
        assert {changed: b"old"} == driver.query(Isolation.READ_COMMITTED, pack(*changed))
        assert {changed: b"new"} == driver.query(Isolation.READ_UNCOMMITTED, pack(*changed))
        assert OLD | CHANGES == driver.query(Isolation.READ_UNCOMMITTED)

    is_old()
    with held_at("commit.position-sent", monkeypatch) as there:
        committing = pool.submit(driver.commit, 1)
        assert there.wait(WAIT_S)
        is_old()
    committing.result(WAIT_S)
    assert NEW == driver.query(Isolation.READ_COMMITTED) == driver.query(Isolation.READ_UNCOMMITTED)


def test_an_attempt_that_is_made_again_does_not_hold_what_the_one_before_has_read(
    world: TaskWorld, client: StoreClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Watched] = []

    class Watched(CommittedHashes):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

        @property
        def held(self) -> int:
            return sum(map(len, self._keys))

    monkeypatch.setattr(module, "CommittedHashes", Watched)
    driver = Driver(world, client)
    for _ in range(3):
        driver.stage(0, OLD, OLD_ORDER)
    assert [len(OLD)] == [hashes.held for hashes in made]
    driver.commit(0)
    assert OLD == driver.query(Isolation.READ_COMMITTED)
