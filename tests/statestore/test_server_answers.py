"""What fails while a store server answers reaches its client as what it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from statestore.client import StoreClient
from statestore.config import KafkaConfig, RocksConfig, ServerConfig, StoreSpec, TaskSpec
from statestore.errors import InvalidStateStore, RollforwardError, TaskCorrupted, Unavailable
from statestore.folders import doubted
from statestore.server import _QUERY_ROWS, StoreServer
from statestore.store import Entry, Isolation
from statestore.task import Task, TaskState

NOBODY = KafkaConfig("127.0.0.1:1")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[StoreServer]:
    server = StoreServer(ServerConfig("s", str(tmp_path / "s.sock"), NOBODY, RocksConfig()))
    yield server
    server.shutdown()


@pytest.fixture
def task(server: StoreServer, tmp_path: Path) -> Task:
    """On the server, though it was never opened."""
    folder = tmp_path / "q" / "0"
    folder.mkdir(parents=True)
    spec = TaskSpec("p", "q", 0, 1, "p-q-batches", "p-q", "p-dead", StoreSpec("q", "p-q-changelog", "id"), folder)
    task = Task(spec, 1, NOBODY, RocksConfig(), transactions=True, reader=server._reader)
    server._tasks[spec.name] = task
    return task


def asked(tmp_path: Path, **command: str) -> list[int]:
    """How many rows each piece of the answer has."""
    with StoreClient(tmp_path / "s.sock", timeout_s=20) as client:
        return [len(piece) for piece in client.entries("q-0", isolation="read_committed", **command)]


def fails(task: Task, error: RollforwardError, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a whole piece of the entries has been read."""

    def entries(lower: bytes | None, upper: bytes | None, isolation: Isolation) -> Iterator[Entry]:
        yield from ((b"%d" % number, b"v") for number in range(_QUERY_ROWS))
        raise error

    monkeypatch.setattr(task, "entries", entries)


def test_an_error_on_the_way_is_told_by_its_class(task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fails(task, InvalidStateStore("store was closed under an iterator"), monkeypatch)
    with pytest.raises(InvalidStateStore, match="closed under an iterator"):
        asked(tmp_path)
    # So is one before the first entry.
    monkeypatch.undo()
    with pytest.raises(Unavailable, match="task is not running"):
        asked(tmp_path, key="00")


def test_damage_that_a_query_meets_is_told_and_the_store_made_again(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails(task, TaskCorrupted("rocksdb failed", error="Corruption: block checksum mismatch"), monkeypatch)
    with pytest.raises(Unavailable, match=r"local store cannot be used .*block checksum mismatch"):
        asked(tmp_path)
    assert task.state is TaskState.BROKEN
    assert doubted(task.spec.folder).exists()


def test_what_a_query_fails_of_for_the_moment_is_no_matter_of_its_task(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "IO error: While open a file for random read: 000012.sst: Too many open files"
    fails(task, TaskCorrupted("rocksdb failed", error=said), monkeypatch)
    task.state = TaskState.RUNNING
    with pytest.raises(Unavailable, match=r"local store cannot be read .*Too many open files"):
        asked(tmp_path)
    assert task.state is TaskState.RUNNING
    assert not doubted(task.spec.folder).exists()
