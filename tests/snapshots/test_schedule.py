"""When snapshots are taken by themselves, and what is told of their age. The clock is the test's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from statestore.config import SnapshotConfig
from statestore.errors import Unavailable
from statestore.snapshots.schedule import Snapshotter, why_due
from statestore.task import Task
from tests.support.task import TaskWorld, config_of
from tests.support.waiting import await_

CONFIG = config_of(Path("/unused"), interval_s=600, changelog_records=100)


@pytest.mark.parametrize(
    ("batches", "grown", "since_s", "cause"),
    [
        (1, 99, 599.9, ""),
        (1, 99, 600, "interval"),
        (1, 100, 599.9, "growth"),
        (1, 100, 600, "interval"),
        # What has a snapshot already is never due.
        (0, 0, 10_000, ""),
        (0, 100, 10_000, ""),
        # A store that was thrown away stands before its newest snapshot.
        (-1, 0, 10_000, ""),
    ],
)
def test_a_snapshot_is_due_by_the_clock_or_by_growth(batches: int, grown: int, since_s: float, cause: str) -> None:
    assert cause == why_due(CONFIG, batches=batches, grown=grown, since_s=since_s)


def test_clock_and_growth_can_be_turned_off() -> None:
    without = replace(CONFIG, interval_s=0)
    assert ["", "growth"] == [why_due(without, batches=1, grown=n, since_s=10_000) for n in (99, 100)]
    without = replace(CONFIG, changelog_records=0)
    assert ["", "interval"] == [why_due(without, batches=1, grown=10_000, since_s=s) for s in (599, 600)]


class Clock:
    """Seconds that the test makes pass."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


Make = Callable[[], Snapshotter]


@pytest.fixture
def due(world: TaskWorld, clock: Clock) -> Iterator[Make]:
    """A server's snapshotter, every ten minutes and every hundred records; each one knows nothing of those before."""
    made: list[Snapshotter] = []

    def make() -> Snapshotter:
        assert world.config is not None
        config: SnapshotConfig = replace(world.config, interval_s=600, changelog_records=100)
        made.append(Snapshotter(config, lambda: [] if world.task is None else [world.task], clock=clock))
        return made[-1]

    yield make
    for one in made:
        one.close()


def some(count: int) -> dict[bytes, bytes]:
    return {b"key-%06d" % number: b"%d" % number for number in range(count)}


def taken(world: TaskWorld) -> list[int]:
    return world.repository.batches()


def test_a_running_task_is_snapshotted_when_it_is_due_and_not_before(world: TaskWorld, clock: Clock, due: Make) -> None:
    snapshotter = due()
    snapshotter.take_due()
    world.open()
    snapshotter.take_due()
    world.commit(some(10))
    snapshotter.take_due()
    clock.now_s += 599
    snapshotter.take_due()
    assert [] == taken(world)
    clock.now_s += 1
    snapshotter.take_due()
    assert [0] == taken(world)
    # Nothing new: not again. Something new: when its time has come, or when it is much.
    clock.now_s += 600
    snapshotter.take_due()
    assert [0] == taken(world)
    world.commit(some(10))
    snapshotter.take_due()
    assert [0, 1] == taken(world)
    world.commit(some(50))
    snapshotter.take_due()
    assert [0, 1] == taken(world)
    world.commit(some(60))
    snapshotter.take_due()
    assert [0, 1, 3] == taken(world)


def test_the_clock_goes_on_where_another_server_left_it(world: TaskWorld, clock: Clock, due: Make) -> None:
    world.open()
    world.commit(some(10))
    world.snapshot()
    older(world, 0, by_s=500)
    world.commit(some(10))
    snapshotter = due()
    snapshotter.take_due()
    clock.now_s += 50
    snapshotter.take_due()
    assert [0] == taken(world)
    clock.now_s += 51
    snapshotter.take_due()
    assert [0, 1] == taken(world)


def older(world: TaskWorld, batch: int, *, by_s: int) -> None:
    """Let the snapshot of a batch have been taken so much earlier."""
    repository = world.repository
    manifest = repository.read(batch)
    changed = replace(manifest, taken_at_ms=manifest.taken_at_ms - 1000 * by_s)
    repository.objects.put(repository.layout.manifest(batch), changed.encode())


def test_one_that_fails_is_due_again_half_a_minute_later(
    world: TaskWorld, clock: Clock, due: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.open()
    world.commit(some(100))
    snapshotter, tried = due(), []

    def away(*_: Any) -> None:
        tried.append(clock.now_s)
        raise Unavailable("storage is away")

    with monkeypatch.context() as patch:
        patch.setattr("statestore.snapshots.schedule.take_snapshot", away)
        # What is known of a task begins with its first look, and growth is counted from there.
        snapshotter.take_due()
        world.commit(some(100))
        for _ in range(3):
            snapshotter.take_due()
        clock.now_s += 29
        snapshotter.take_due()
        assert [1_000.0] == tried
        clock.now_s += 1
        snapshotter.take_due()
        assert [1_000.0, 1_030.0] == tried
    clock.now_s += 30
    snapshotter.take_due()
    assert [1] == taken(world)


def test_the_thread_takes_them_outlives_what_fails_and_ends(
    world: TaskWorld, clock: Clock, due: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("statestore.snapshots.schedule._LOOK_EVERY_S", 0.01)
    world.open()
    world.commit(some(10))
    snapshotter, failed = due(), threading.Event()
    begin = world.running.copy

    def broken(folder: Path) -> Any:
        if failed.is_set():
            return begin(folder)
        failed.set()
        raise MemoryError

    monkeypatch.setattr(world.running, "copy", broken)
    snapshotter.start()
    await_("the first look", lambda: snapshotter.figures(world.running))
    clock.now_s += 600
    assert failed.wait(30)

    def tried_again() -> bool:
        clock.now_s += 30
        return bool(taken(world))

    await_("a snapshot behind the failed one", tried_again, 30)
    snapshotter.close()
    snapshotter._thread.join(30)
    assert not snapshotter._thread.is_alive()


def test_an_unexpected_error_is_logged_with_what_it_says() -> None:
    class Broken:
        spec = SimpleNamespace(name="counts-0")

        @property
        def state(self) -> None:
            raise ZeroDivisionError("all of it")

    with capture_logs() as logged:
        Snapshotter(CONFIG, lambda: [cast(Task, Broken())]).take_due()
    [line] = logged
    assert ("error", "counts-0", "all of it", True) == tuple(
        line[key] for key in ("log_level", "task", "error", "exc_info")
    )


# What is told of their age: an alert is made of it.


def age(snapshotter: Snapshotter, world: TaskWorld) -> float | None:
    snapshotter.take_due()
    return snapshotter.figures(world.running).get("age_s")


def test_a_snapshot_s_age_is_known_after_a_restart(world: TaskWorld, clock: Clock, due: Make) -> None:
    world.open()
    world.commit(some(10))
    world.snapshot()
    older(world, 0, by_s=300)
    snapshotter = due()
    assert 0 == age(snapshotter, world), "all that is committed is in it"
    world.commit(some(10))
    assert pytest.approx(300, abs=60) == age(snapshotter, world)
    clock.now_s += 200
    found = age(snapshotter, world)
    assert found is not None
    assert pytest.approx(500, abs=60) == found
    figures = snapshotter.figures(world.running)
    assert world.repository.read(0).total_bytes == figures["referenced_bytes"]


def test_a_snapshot_that_never_comes_grows_old(
    world: TaskWorld, clock: Clock, due: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.open()
    snapshotter = due()
    assert age(snapshotter, world) is None, "there is nothing to take"
    world.commit(some(10))

    def away(*_: Any) -> list[int]:
        raise Unavailable("storage is away")

    with monkeypatch.context() as patch:
        patch.setattr("statestore.snapshots.repository.Repository.batches", away)
        assert 0 == age(snapshotter, world)
        clock.now_s += 100
        assert 100 == age(snapshotter, world)
    # Storage answers, and has none: still the same.
    clock.now_s += 100
    assert 200 == age(snapshotter, world)
    clock.now_s += 400
    assert 0 == age(snapshotter, world), "taken"


def test_a_broken_manifest_does_not_keep_others_from_being_taken(world: TaskWorld, clock: Clock, due: Make) -> None:
    world.open()
    for _ in range(2):
        world.commit(some(10))
        world.snapshot()
    older(world, 0, by_s=3_600)
    objects, layout = world.repository.objects, world.repository.layout
    objects.put(layout.manifest(1), b"{")
    world.commit(some(10))
    snapshotter = due()
    snapshotter.take_due()
    assert [0, 1, 2] == taken(world)
    assert 2 == world.repository.read(2).batch
