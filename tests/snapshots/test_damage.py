"""Damage of a store's files that shows when they are read: the task begins without them, and without snapshots of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from statestore.errors import TaskCorrupted, Unavailable, Unrecoverable
from statestore.folders import doubted
from statestore.placement import Placement
from statestore.planning.plan import Way
from statestore.task import TaskState
from tests.support.task import TaskWorld

MANY = {b"key-%05d" % number: b"%d" % number for number in range(5_000)}


def damage(folder: Path) -> None:
    """Turn bytes of the store's first block round. What opening reads lies at the table's end, and in smaller tables."""
    largest = max(folder.glob("*.sst"), key=lambda path: path.stat().st_size)
    with largest.open("r+b") as file:
        block = file.read(64)
        file.seek(0)
        file.write(bytes(byte ^ 0xFF for byte in block))


def reopened_damaged(world: TaskWorld) -> None:
    """A task whose entries lie in files that are damaged, and that has not noticed."""
    world.open()
    world.commit(MANY)
    world.running._database.database.flush()  # type: ignore[union-attr]
    world.close()
    damage(world.spec.folder)
    assert Way.NOTHING is world.open().plan.way


def read(world: TaskWorld) -> object:
    return world.running.read(pa.array([min(MANY)], pa.binary()))


def meets_damage(work: Callable[[], object], world: TaskWorld) -> None:
    with pytest.raises(Unavailable, match="local store cannot be used"):
        work()
    assert TaskState.BROKEN is world.running.state
    assert doubted(world.spec.folder).exists()


def test_a_damaged_store_stays_where_nothing_can_take_its_place(
    world: TaskWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    reopened_damaged(world)
    meets_damage(lambda: read(world), world)
    with monkeypatch.context() as patch:
        patch.setattr("statestore.planning.hazards.why_beheaded", lambda *_: "changelog's records were deleted")
        with pytest.raises(Unrecoverable, match="local store was damaged"):
            world.open()
    assert any(world.spec.folder.iterdir())
    assert doubted(world.spec.folder).exists()
    assert Way.FULL_REPLAY is world.open().plan.way
    assert MANY == world.entries()


def test_damage_that_a_read_meets_is_answered_with_another_way(world: TaskWorld) -> None:
    reopened_damaged(world)
    meets_damage(lambda: read(world), world)
    plan = world.open().plan
    assert (Way.FULL_REPLAY, True) == (plan.way, "local store was damaged" in plan.reason)
    assert MANY == world.entries()
    assert not doubted(world.spec.folder).exists()
    assert Way.NOTHING is world.open().plan.way


def test_a_process_that_dies_behind_the_damage_leaves_word_of_it(world: TaskWorld) -> None:
    reopened_damaged(world)
    meets_damage(lambda: read(world), world)
    world.close()
    assert Way.FULL_REPLAY is world.open().plan.way
    assert MANY == world.entries()


def test_a_snapshot_of_damaged_files_is_met_once(world: TaskWorld) -> None:
    reopened_damaged(world)
    world.snapshot()
    meets_damage(lambda: read(world), world)
    opened = world.open()
    assert Way.FULL_REPLAY is opened.plan.way
    [refused] = [way.refused for way in opened.plan.ways if way.snapshot]
    assert "rocksdb failed" in refused
    assert MANY == world.entries()


def test_a_snapshot_from_before_the_damage_is_taken(world: TaskWorld) -> None:
    world.open()
    world.commit(MANY)
    world.snapshot()
    world.close()
    damage(world.spec.folder)
    world.open()
    meets_damage(lambda: read(world), world)
    assert Way.SNAPSHOT is world.open().plan.way
    assert MANY == world.entries()


def test_what_is_not_the_files_fault_leaves_them_where_they_are(
    world: TaskWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.open()
    world.commit(MANY)

    def too_many(*_: object) -> None:
        raise TaskCorrupted("rocksdb failed", error="IO error: Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(Placement, "states", too_many)
        with pytest.raises(Unavailable, match="Too many open files"):
            world.running.read(pa.array([b"never written"], pa.binary()))
    assert not doubted(world.spec.folder).exists()
    assert Way.NOTHING is world.open().plan.way
    assert MANY == world.entries()
