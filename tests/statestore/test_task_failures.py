"""What fails within a task in a way that nobody has thought of must not leave a store that says it is right."""

from __future__ import annotations

from typing import Any

import pytest

from statestore.errors import Unavailable
from statestore.task import Task, TaskState
from tests.statestore.conftest import ONE, TWO
from tests.support.task import TaskWorld, commit_batch


def memory_is_short(*_: Any, **__: Any) -> None:
    raise MemoryError


def test_a_batch_that_could_not_be_applied_is_found_again(world: TaskWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    task = world.running
    with monkeypatch.context() as patch:
        patch.setattr(task.store, "commit", memory_is_short)
        with pytest.raises(MemoryError):
            world.commit({TWO: b"2"})
    assert task.state is TaskState.BROKEN
    with pytest.raises(Unavailable, match="task is not running"):
        world.entries()
    task.open()
    assert world.entries() == {ONE: b"1", TWO: b"2"}


def test_half_of_an_attempt_is_not_committed_as_another(world: TaskWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    task = world.running
    whole = task.begin_stage(batch=1, attempt=1, token=task.token)
    task.close_stage(whole)
    with monkeypatch.context() as patch:
        patch.setattr(task.store, "put_all", memory_is_short)
        with pytest.raises(MemoryError):
            task.close_stage(task.begin_stage(batch=1, attempt=2, token=task.token))
    with pytest.raises(Unavailable, match="attempt is not staged"):
        task.commit(batch=1, attempt=1, plan="p")
    commit_batch(task, 1, {TWO: b"2"}, plan="p", ends={})
    assert world.entries() == {ONE: b"1", TWO: b"2"}


def test_an_opening_that_fails_in_its_last_step_lets_everything_go(
    world: TaskWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = world.running
    with monkeypatch.context() as patch:
        patch.setattr(first, "_become_running", memory_is_short)
        with pytest.raises(MemoryError):
            first.open()
    second = Task(first.spec, first.epoch, first._kafka, first._rocks, transactions=True)
    try:
        second.open()
        assert second.state is TaskState.RUNNING
    finally:
        second.close()


def test_a_task_whose_position_kafka_has_lost_goes_back_before_it_writes(world: TaskWorld) -> None:
    task = world.running
    world.commit({TWO: b"2"})
    # So it seems: Kafka has less than what the task has committed.
    task._position_end += 2
    ends = world.reader.begins_and_ends(world.spec.store.changelog_topic, [0])
    with pytest.raises(Unavailable, match=r"batch was not committed .*kafka has lost committed records"):
        world.commit({TWO: b"3"})
    assert ends == world.reader.begins_and_ends(world.spec.store.changelog_topic, [0])
    assert task.state is TaskState.RUNNING
    assert world.entries() == {ONE: b"1", TWO: b"2"}
    position = world.log.position(0)
    assert position is not None and position.batch == task.committed_batch == 1
    assert 2 == world.commit({TWO: b"3"})
    assert world.entries() == {ONE: b"1", TWO: b"3"}
