"""A disk that is full when a task lets go of its store: nothing stays locked, and with room again nothing is missing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from statestore.errors import Unavailable
from statestore.task import Task, TaskState
from tests.support.small_disk import SmallDisk
from tests.support.task import TaskWorld


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    disk = SmallDisk.mounted(tmp_path / "disk", "40m")
    yield disk
    disk.close()


def test_a_store_that_cannot_be_written_when_it_is_closed_is_let_go(kafka: str, unique: str, disk: SmallDisk) -> None:
    world = TaskWorld(kafka, unique, disk.path / "task", None)
    world.open()
    task = world.running
    large = {b"k%d" % n: b"%d" % n * 10_000 for n in range(60)}
    with disk.full():
        # It is committed in Kafka, and the store does not get it.
        world.commit(large)
        assert task.state is TaskState.BROKEN
        with pytest.raises(Unavailable, match="without what was in memory"):
            task.close()
    world.task = Task(task.spec, task.epoch, task._kafka, task._rocks, transactions=True)
    try:
        world.task.open()
        assert world.entries() == large
    finally:
        world.close()
