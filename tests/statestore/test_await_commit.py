"""READ of a batch whose job was begun ahead sees the batch before, or nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet

import pytest

from statestore import task as module
from statestore.errors import Unavailable
from statestore.kafka.producer import TransactionAborted
from statestore.task import Task
from tests.support.task import TaskWorld


@pytest.fixture
def reader() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as reader:
        yield reader


def stage(task: Task, batch: int) -> None:
    task.close_stage(task.begin_stage(batch=batch, attempt=1, token=task.token))


def waits(reader: ThreadPoolExecutor, task: Task, batch: int) -> Future[None]:
    waiting = reader.submit(task.await_commit, batch)
    with pytest.raises(NotYet):
        waiting.result(0.2)
    return waiting


def test_it_waits_for_the_commit(world: TaskWorld, reader: ThreadPoolExecutor) -> None:
    task = world.running
    stage(task, 1)
    waiting = waits(reader, task, 1)
    assert task.commit(batch=1, attempt=1, plan="p")
    waiting.result(10)
    task.await_commit(1)


def test_a_task_without_rows_in_the_batch_before_is_read_at_once(world: TaskWorld) -> None:
    world.running.await_commit(-1)
    world.running.await_commit(world.running.committed_batch)


def test_it_fails_where_nothing_is_staged_or_something_else(world: TaskWorld) -> None:
    with pytest.raises(Unavailable, match="batch before is not committed"):
        world.running.await_commit(1)
    stage(world.running, 1)
    with pytest.raises(Unavailable, match="batch before is not committed"):
        world.running.await_commit(2)


def test_it_fails_when_the_commit_does(
    world: TaskWorld, reader: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = world.running
    stage(task, 1)
    waiting = waits(reader, task, 1)

    def aborted(*_: object) -> None:
        raise TransactionAborted("for the test")

    monkeypatch.setattr(task, "_transaction", aborted)
    with pytest.raises(Unavailable, match="transaction was aborted"):
        task.commit(batch=1, attempt=1, plan="p")
    with pytest.raises(Unavailable, match="batch before is not committed"):
        waiting.result(10)


def test_it_fails_when_the_task_is_let_go(world: TaskWorld, reader: ThreadPoolExecutor) -> None:
    stage(world.running, 1)
    waiting = waits(reader, world.running, 1)
    world.running.close()
    with pytest.raises(Unavailable, match="batch before is not committed"):
        waiting.result(10)


def test_it_does_not_wait_for_ever(world: TaskWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_COMMIT_WAIT_S", 0.2)
    stage(world.running, 1)
    began = time.monotonic()
    with pytest.raises(Unavailable, match="batch before is not committed"):
        world.running.await_commit(1)
    assert time.monotonic() - began < 10
