"""What has lost its end is not written to, as long as it can be seen that it lacks something, nor taken for all there was."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from infra.stack import Stack
from statestore.errors import Unavailable, Unrecoverable
from statestore.kafka.reader import Reader
from statestore.task import TaskState
from statestore.travel.rewrite import Rewrite
from statestore.version import TaskDatabase
from tests.statestore.conftest import ONE, TWO
from tests.support.counting import Counting, Input, config_for
from tests.support.own_broker import lose_end, own_broker
from tests.support.task import PLAN, ROCKS, TaskWorld, commit_batch, config_of
from tests.support.waiting import await_


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A broker that may lose something."""
    with own_broker(tmp_path_factory.mktemp("broker")) as stack:
        yield stack


@pytest.fixture
def kafka(own: Stack) -> str:
    return own.status().bootstrap_servers or ""


class Log:
    """Partition 0 of a topic, and the file that it is in."""

    def __init__(self, stack: Stack, reader: Reader, topic: str) -> None:
        self._stack, self._reader, self._topic = stack, reader, topic
        [self._segment] = stack.home.rglob(f"{topic}-0/*.log")

    def end(self) -> int:
        return self._reader.begin_and_end(self._topic, 0)[1]

    def size(self) -> int:
        """In bytes, with the end of every transaction."""
        await_("settled", lambda: self._reader.stable_end(self._topic, 0) == self.end())
        return self._segment.stat().st_size

    def lose(self, size: int) -> None:
        """All behind that size: what had not yet reached the broker's disk."""
        self.size()
        lose_end(self._stack, self._segment, size)


def test_a_pipeline_s_task_stops_and_fills_no_hole(own: Stack, world: TaskWorld) -> None:
    log = Log(own, world.reader, world.spec.store.changelog_topic)
    size, end = log.size(), log.end()
    world.commit({TWO: b"2"})
    log.lose(size)
    # As long as what is lost: behind it nobody could tell.
    with pytest.raises(Unrecoverable, match="kafka has lost its tail"):
        world.commit({ONE: b"3"})
    assert world.running.state is not TaskState.RUNNING
    assert end == log.end()
    with pytest.raises(Unrecoverable, match="kafka has lost its tail"):
        world.open()


def test_going_back_fills_no_hole(own: Stack, world: TaskWorld) -> None:
    log = Log(own, world.reader, world.spec.store.changelog_topic)
    size, end = log.size(), log.end()
    world.commit({TWO: b"2"})
    world.finish(1)
    world.close()
    rewrite = Rewrite(world.kafka, f"{world.spec.pipeline}-q-driver", [world.spec], plan=PLAN)
    try:
        rewrite.take()
        before = rewrite.own({}).planned
        assert before is not None
        log.lose(size)
        with pytest.raises(Unavailable, match="kafka has lost committed records"):
            rewrite.empty(replace(before, batch=2), "group", results=False, in_record_order=False)
    finally:
        rewrite.close()
    assert end == log.end()


@pytest.fixture
def snapshotted(kafka: str, unique: str, tmp_path: Path) -> Iterator[TaskWorld]:
    """A pipeline's task that nobody has opened yet, with snapshots."""
    config = config_of(tmp_path / "objects", pin_life_s=600, minimum_age_s=1200)
    world = TaskWorld(kafka, unique, tmp_path / "state", config)
    yield world
    world.close()


def older_of(world: TaskWorld) -> Path:
    return world.spec.folder.parent / "older"


def written(own: Stack, world: TaskWorld) -> tuple[tuple[Log, int], tuple[Log, int]]:
    """Three batches, a snapshot of the last and a copy of the store as of the first.

    Gives the task's positions and its changelog, and how long each was after the first.
    """
    world.open()
    world.commit({ONE: b"1"})
    world.running.copy(older_of(world))
    positions, changelog = (
        Log(own, world.reader, name) for name in (world.batches.name, world.spec.store.changelog_topic)
    )
    lengths = (positions, positions.size()), (changelog, changelog.size())
    for value in (b"2", b"3"):
        world.commit({TWO: value})
    world.snapshot()
    return lengths


@pytest.mark.parametrize("loses", ["nothing else", "the disk"])
def test_batches_that_are_done_and_lost_of_a_task_are_not_given_up(
    own: Stack, snapshotted: TaskWorld, loses: str
) -> None:
    world = snapshotted
    (positions, size), _ = written(own, world)
    world.close()
    world.finish(2)
    if loses == "the disk":
        shutil.rmtree(world.spec.folder)
    positions.lose(size)
    for _ in range(2):
        with pytest.raises(Unrecoverable, match="kafka has lost committed batches of this task"):
            world.open()
    assert [2] == world.repository.batches()
    if loses != "the disk":
        database = TaskDatabase(world.spec.folder, ["s"], ROCKS, read_only=True)
        checkpoint = database.checkpoint()
        database.close()
        assert checkpoint is not None and 2 == checkpoint.batch
    # Nor when nothing has them any more but the changelog: whoever replays what comes behind them would apply them.
    shutil.rmtree(world.spec.folder, ignore_errors=True)
    world.repository.objects.delete([world.repository.layout.manifest(2)])
    with pytest.raises(Unrecoverable, match="kafka has lost committed batches of this task") as raised:
        world.open()
    assert "move away" not in raised.value.hint


@pytest.mark.parametrize("has_older_store", [True, False])
def test_where_the_changelog_has_lost_them_as_well_a_task_can_go_on_from_its_position(
    own: Stack, snapshotted: TaskWorld, has_older_store: bool
) -> None:
    world = snapshotted
    lengths = written(own, world)
    world.close()
    world.finish(2)
    for log, size in lengths:
        log.lose(size)
    shutil.rmtree(world.spec.folder)
    if has_older_store:
        # The machine has lost its power, and with it what had not been synced.
        shutil.copytree(older_of(world), world.spec.folder)
    with pytest.raises(Unrecoverable, match="kafka has lost committed batches of this task") as raised:
        world.open()
    assert "move away" in raised.value.hint and "local" not in raised.value.fields
    world.repository.objects.delete(raised.value.fields["snapshots"])  # type: ignore[arg-type]
    assert 0 == world.open().plan.batch
    assert {ONE: b"1"} == world.entries()
    commit_batch(world.running, 3, {TWO: b"4"}, plan=PLAN, ends={"0": 4})
    # However often it is brought up from here on.
    world.close()
    shutil.rmtree(world.spec.folder)
    assert 3 == world.open().plan.batch
    assert {ONE: b"1", TWO: b"4"} == world.entries()


def test_a_running_task_does_not_go_on_without_batches_that_are_done(own: Stack, snapshotted: TaskWorld) -> None:
    (positions, size), _ = written(own, snapshotted)
    snapshotted.finish(2)
    positions.lose(size)
    with pytest.raises(Unrecoverable, match="kafka has lost committed batches of this task"):
        snapshotted.commit({ONE: b"4"})
    assert snapshotted.running.state is not TaskState.RUNNING
    assert [2] == snapshotted.repository.batches()


def test_batches_that_are_lost_and_come_again_are_dropped(own: Stack, snapshotted: TaskWorld) -> None:
    (positions, size), _ = written(own, snapshotted)
    snapshotted.close()
    positions.lose(size)
    assert 0 == snapshotted.open().plan.batch
    assert {ONE: b"1"} == snapshotted.entries()
    assert [] == snapshotted.repository.batches()


def test_a_program_s_task_stops_and_fills_no_hole(own: Stack, kafka: str, unique: str, tmp_path: Path) -> None:
    feed, program = Input(kafka, unique), Counting(config_for(kafka, unique, tmp_path / "state"), ("indexed",))
    program.task.open()
    feed.send(1)
    program.run()
    log = Log(own, program.reader, f"{unique}-indexed-changelog")
    size, end = log.size(), log.end()
    feed.send(1)
    program.run()
    log.lose(size)
    feed.send(1)
    for _ in range(2):
        with pytest.raises(Unrecoverable, match="kafka has lost its tail"):
            program.run()
    assert not program.task.is_open
    assert end == log.end()
