"""Snapshots that are not of what was committed: of batches that Kafka has lost, and beside a newer owner's own."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from statestore.batches import BatchesLog
from statestore.bring_up import BringUp
from statestore.errors import Fenced
from statestore.planning.facts import SNAPSHOTS_MAX, Found, with_snapshots
from statestore.planning.plan import Way
from statestore.snapshots.manifest import Manifest
from statestore.snapshots.repository import Repository
from statestore.snapshots.schedule import Snapshotter
from statestore.task import Task
from statestore.version import ChangelogPosition, TaskDatabase
from tests.support.task import PLAN, ROCKS, TaskWorld, commit_batch
from tests.support.waiting import require_within

LOST = "snapshot is not of this timeline"


def lose_disk(world: TaskWorld) -> None:
    """Replaying is slow afterwards, so that whatever snapshot may be used is."""
    world.close()
    shutil.rmtree(world.spec.folder)
    (world.spec.folder.parent / "rates.json").write_text(
        '{"replay_records_per_s": 1.0, "rebuild_records_per_s": 1.0, "restore_bytes_per_s": {"file": 1e12}}'
    )


def put(world: TaskWorld, manifest: Manifest) -> None:
    world.repository.objects.put(world.repository.layout.manifest(manifest.batch), manifest.encode())


def refusals(world: TaskWorld, batch: int) -> list[str]:
    """Opens the task; gives why the snapshot of a batch was refused."""
    key = world.repository.layout.manifest(batch)
    return [option.refused for option in world.open().plan.ways if option.snapshot == key]


# Ahead of what is committed.


def other_owner(world: TaskWorld, folder: Path) -> Task:
    """Of a newer driver, on another machine."""
    spec = replace(world.spec, folder=folder / "0")
    task = Task(spec, world.start_driver(), world.kafka, ROCKS, transactions=True, snapshots=world.snapshots)
    task.open()
    return task


def before_listing(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], object]) -> None:
    """It happens once, when the task that opens is the owner already and has not looked for snapshots yet."""
    still = [happens]

    def listed(*about: Any, patience_s: float) -> Found:
        if still:
            still.pop()()
        return with_snapshots(*about, patience_s=patience_s)

    monkeypatch.setattr("statestore.task.with_snapshots", listed)


def test_an_owner_that_was_paused_deletes_no_snapshot_of_the_newer_one(
    world: TaskWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.open()
    world.commit({b"a": b"1"})
    lose_disk(world)

    def newer_owner_works() -> None:
        assert world.config is not None
        newer = other_owner(world, tmp_path / "elsewhere")
        commit_batch(newer, 1, {b"a": b"2"}, plan=PLAN, ends={})
        Snapshotter(world.config, lambda: [newer]).take(newer)
        newer.close()

    before_listing(monkeypatch, newer_owner_works)
    with pytest.raises(Fenced, match="a newer owner has the task"):
        world.open()
    assert [1] == world.repository.batches()


def test_an_owner_deletes_nothing_once_a_newer_driver_has_started(
    world: TaskWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.open()
    world.commit({b"a": b"1"})
    world.snapshot()
    put(world, replace(world.repository.read(0), batch=7))
    lose_disk(world)
    epoch = world.start_driver()
    before_listing(monkeypatch, world.start_driver)
    monkeypatch.setattr("statestore.task.BringUp", partial(BringUp, epoch=epoch))
    world.task = Task(world.spec, epoch, world.kafka, ROCKS, transactions=True, snapshots=world.snapshots)
    with pytest.raises(Fenced, match="a newer owner has the task"):
        world.task.open()
    assert [0, 7] == world.repository.batches()


def test_a_silent_storage_holds_up_nobody_who_only_asks_it_for_what_kafka_may_have_lost(
    world: TaskWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.open()
    world.commit({b"a": b"1"})
    # A batch without a row for the task, as far as anybody can tell.
    world.finish(5)
    asked, silent = threading.Event(), threading.Event()
    monkeypatch.setattr("statestore.planning.plan._LOOK_S", 0.5)
    monkeypatch.setattr(Repository, "batches", lambda _: asked.set() or silent.wait(60))
    started = time.monotonic()
    opened = world.open()
    require_within(30, started)
    assert asked.is_set()
    silent.set()
    refused = [option.refused for option in opened.plan.ways if option.way is Way.SNAPSHOT]
    assert ["snapshots cannot be read: a list of snapshots takes longer than 0.5 s"] == refused
    assert Way.NOTHING is opened.plan.way


def test_all_snapshots_ahead_of_kafka_are_removed_and_hide_none_that_is_not(world: TaskWorld) -> None:
    world.open()
    world.commit({b"a": b"1"})
    world.snapshot()
    manifest = world.repository.read(0)
    for batch in range(1, SNAPSHOTS_MAX + 5):
        put(world, replace(manifest, batch=batch))
    lose_disk(world)
    opened = world.open()
    assert world.repository.layout.manifest(0) == opened.plan.snapshot
    assert [0] == world.repository.batches()
    assert {b"a": b"1"} == world.entries()


# Of a timeline that Kafka has lost, with the number of a batch that was committed since.


def with_lost_snapshot(world: TaskWorld, **edit: object) -> None:
    """Batches 0 and 1, and of each a snapshot; that of batch 1 has another content and says so with `edit`."""
    world.open()
    world.commit({b"a": b"1"})
    world.snapshot()
    world.commit({b"b": b"2"})
    world.close()
    database = TaskDatabase(world.spec.folder, ["s"], ROCKS)
    database.database.write({"s": [(b"b", bytes(8) + b"lost")]})
    database.close()
    world.open()
    world.snapshot()
    put(world, replace(world.repository.read(1), **edit))  # type: ignore[arg-type]


def test_a_snapshot_of_another_digest_than_its_batch_is_refused(world: TaskWorld) -> None:
    with_lost_snapshot(world, digest="0" * 16)
    lose_disk(world)
    with capture_logs() as logged:
        assert ["snapshot is of a lost timeline: another batch 1 was committed"] == refusals(world, 1)
    assert ["error"] == [line["log_level"] for line in logged if line["event"] == LOST]
    assert {b"a": b"1", b"b": b"2"} == world.entries()


def test_the_past_is_not_built_from_a_batch_that_kafka_has_lost(world: TaskWorld, tmp_path: Path) -> None:
    with_lost_snapshot(world, digest="0" * 16)
    world.finish(1)
    assert {b"a": b"1", b"b": b"2"} == world.past(tmp_path / "past", batch=1)
    # Nor do its steps count.
    lost = world.repository.read(1)
    put(world, replace(lost, steps=(replace(lost.steps[-1], at_ms=0),)))
    assert 0 < world.look_back(batch=1).tasks[0].known.steps[1].at_ms


def without_older_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compaction has left the newest position only."""
    positions = BatchesLog.positions
    monkeypatch.setattr(BatchesLog, "positions", lambda log, task: positions(log, task)[-1:])


def with_lost_snapshot_alone(world: TaskWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """`with_lost_snapshot`, another batch behind it, and neither a store nor a position that tells what the snapshot is."""
    with_lost_snapshot(world, digest="0" * 16)
    world.commit({b"c": b"3"})
    lose_disk(world)
    without_older_positions(monkeypatch)


def test_a_snapshot_that_does_not_lead_to_the_committed_digest_is_refused(
    world: TaskWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_lost_snapshot_alone(world, monkeypatch)
    with capture_logs() as logged:
        [refused] = refusals(world, 1)
    assert "it does not lead to the committed version" in refused
    assert ["error"] == [line["log_level"] for line in logged if line["event"] == LOST]
    # From the snapshot before it.
    assert {b"a": b"1", b"b": b"2", b"c": b"3"} == world.entries()
    assert Way.NOTHING is world.open().plan.way


def test_an_opening_that_ends_before_the_digest_is_compared_leaves_nothing_to_be_taken_for_right(
    world: TaskWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_lost_snapshot_alone(world, monkeypatch)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        # Behind the tail: the store stands at the committed batch, and nobody has looked at it.
        patch.setattr("statestore.bring_up.digest_of", killed)
        world.open()
    assert world.spec.folder.exists()
    world.task = None
    assert Way.NOTHING is not world.open().plan.way
    assert {b"a": b"1", b"b": b"2", b"c": b"3"} == world.entries()
    assert Way.NOTHING is world.open().plan.way


@pytest.mark.parametrize("position", ["there", "compacted away, and the store is large"])
def test_a_store_is_not_read_for_its_digest_where(
    world: TaskWorld, position: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.open()
    world.commit({b"a": b"1"})
    world.snapshot()
    world.commit({b"b": b"2"})
    lose_disk(world)
    if position != "there":
        without_older_positions(monkeypatch)
        monkeypatch.setattr("statestore.bring_up.READ_BYTES_MAX", 1)
    monkeypatch.setattr("statestore.bring_up.digest_of", None)
    assert Way.SNAPSHOT is world.open().plan.way
    assert {b"a": b"1", b"b": b"2"} == world.entries()


def described(world: TaskWorld, folder: Path) -> Manifest:
    """What the next snapshot's manifest would say, without its files."""
    about = world.running.copy(folder)
    shutil.rmtree(folder)
    return about


ELSEWHERE = {"s": ChangelogPosition("another topic", 1)}


@pytest.mark.parametrize("lost", [{"epoch": 10**6}, {"digest": "0" * 16}, {"stores": ELSEWHERE}, {"files": None}])
def test_a_snapshot_takes_the_place_of_one_of_another_version(
    world: TaskWorld, lost: dict[str, Any], tmp_path: Path
) -> None:
    world.open()
    world.commit({b"a": b"1"})
    world.snapshot()
    world.commit({b"a": b"2"})
    put(world, replace(described(world, tmp_path / "copy"), **lost))
    with capture_logs() as logged:
        assert world.snapshot()["written"]
    assert ["warning"] == [line["log_level"] for line in logged if "replacing a snapshot" in line["event"]]
    assert {b"a": b"2"} == world.restored(1, tmp_path / "restored")


@pytest.mark.parametrize("same", [{}, {"digest": None}])
def test_a_snapshot_leaves_one_of_its_version_where_it_is(
    world: TaskWorld, same: dict[str, Any], tmp_path: Path
) -> None:
    world.open()
    world.commit({b"a": b"1"})
    world.snapshot()
    world.commit({b"a": b"2"})
    put(world, replace(described(world, tmp_path / "copy"), write_id="another", **same))
    assert not world.snapshot()["written"]
    assert "another" == world.repository.read(1).write_id
