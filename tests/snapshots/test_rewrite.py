"""A version of the past made the committed one, killed at every step: the old content or the new one, never a mixture."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from statestore.batches import DriverLog
from statestore.errors import Fenced
from statestore.failpoints import PAST_POINTS, REWRITE_POINTS
from statestore.kafka.groups import GroupOffsets
from statestore.planning.plan import Way
from tests.snapshots.test_kills import OPEN, SNAPSHOT, commit, model_at
from tests.support.killed import run_child
from tests.support.task import TaskWorld

REWRITE = {"do": "rewrite", "batch": 1, "done": 2}
BEFORE = [OPEN, commit(0), SNAPSHOT, commit(1), commit(2)]


def driver_log(world: TaskWorld) -> DriverLog:
    return world.log.driver_log()


def stands(world: TaskWorld) -> tuple[int, int, dict[str, int]]:
    """The batch that is done, the task's position, and where its input is to go on."""
    log, position = driver_log(world), world.log.position(0)
    assert log.planned is not None and position is not None
    assert log.done == log.planned.batch == position.batch
    return log.done, position.batch, position.ends


def group_offset(world: TaskWorld) -> int | None:
    topic = world.spec.output_topic
    found = GroupOffsets(world.kafka, f"{world.spec.pipeline}-q").committed([(topic, 0)])
    return found[topic, 0][0] if found else None


@pytest.mark.parametrize("point", [*PAST_POINTS, *REWRITE_POINTS])
def test_killed_while_going_back(world: TaskWorld, point: str, tmp_path: Path) -> None:
    answers, killed = run_child(world, [*BEFORE, REWRITE], tmp_path / "points", kill_at=point)
    assert killed, answers
    shutil.rmtree(world.spec.folder.with_name("rewrite"))
    went = point == "rewrite.committed"
    # A new driver ends the transaction that is still open.
    opened = world.open()
    assert ((3, 3, {"0": 2}) if went else (2, 2, {"0": 3})) == stands(world)
    assert (2 if went else None) == group_offset(world)
    assert (Way.ROLL_FORWARD if went else Way.NOTHING) is opened.plan.way
    assert model_at(1 if went else 2) == world.entries()
    if not went:
        # It can be done again, and an empty disk gives the same.
        world.rewrite(1, tmp_path / "again")
        shutil.rmtree(world.spec.folder)
        world.open()
        assert model_at(1) == world.entries()
        assert (3, 3, {"0": 2}) == stands(world)


def test_going_back_fences_who_ran_and_the_work_goes_on_from_there(world: TaskWorld, tmp_path: Path) -> None:
    world.open()
    models = []
    for batch in range(3):
        world.commit({f"k{batch}".encode(): b"1", b"all": b"%d" % batch})
        models.append(world.entries())
    world.finish(2)
    # An owner that was paused, on another disk, while somebody else went back.
    other = TaskWorld(world.kafka.bootstrap_servers, world.spec.pipeline, tmp_path / "elsewhere", world.config)
    done = other.rewrite(0, tmp_path / "past")
    assert (1, 2) == (done.puts, done.deletes)
    with pytest.raises(Fenced):
        world.commit({b"zombie": b"1"})
    world.open()
    assert models[0] == world.entries()
    world.commit({b"next": b"1"})
    world.finish(4)
    # Nothing of the past is lost by it: every batch is what it was, that of going back among them.
    for batch, model in enumerate([*models, models[0], {**models[0], b"next": b"1"}]):
        assert model == world.past(tmp_path / "past", batch=batch), batch
    other.close()
