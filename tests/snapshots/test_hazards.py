"""Hazards of recovery on a real task: what is refused, with which words, and by which way the store comes back."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from statestore.batches import Position
from statestore.clock import now_ms
from statestore.errors import Unavailable, Unrecoverable
from statestore.folders import unfinished
from statestore.kafka.producer import TransactionalProducer
from statestore.ownership import own
from statestore.planning import facts
from statestore.planning.facts import Found
from statestore.planning.plan import Way
from statestore.task import Task
from statestore.version import Checkpoint, TaskDatabase
from tests.support.task import COMPACT, ROCKS, TaskWorld, commit_batch

KEPT = {b"a": b"1", b"b": b"2"}
Edit = Callable[[dict[str, Any]], object]


def rewrite(world: TaskWorld, edit: Edit) -> None:
    """Change what the closed store says of itself."""
    database = TaskDatabase(world.spec.folder, ["s"], ROCKS)
    said = json.loads(database.database.get("checkpoint", b"checkpoint") or b"")
    edit(said)
    database.database.write({"checkpoint": [(b"checkpoint", json.dumps(said).encode())]})
    database.close()


def checkpoint(world: TaskWorld) -> Checkpoint:
    """What the closed store says of itself."""
    database = TaskDatabase(world.spec.folder, ["s"], ROCKS, read_only=True)
    try:
        said = database.checkpoint()
        assert said is not None
        return said
    finally:
        database.close()


def written(world: TaskWorld, *, snapshot: bool = False) -> None:
    """Two batches, and the task closed."""
    world.open()
    world.commit({b"a": b"1"})
    world.commit({b"b": b"2"})
    if snapshot:
        world.snapshot()
    world.close()


# A local store.

ANOTHER: dict[str, dict[str, Any]] = {
    "local store has format 2, this program reads 1": {"format": 2},
    "local store was written under another plan: its states may have another schema": {"plan": "another"},
    "local store was written with 8 state partitions, the query has 1": {"tasks": 8},
    "local store is unusable: checkpoint is unreadable": {"stores": 1},
    "local store is of a lost timeline: another batch 1 was committed": {"digest": "0" * 16},
}


@pytest.mark.parametrize(("snapshot", "way"), [(True, Way.SNAPSHOT), (False, Way.FULL_REPLAY)], ids=["s", "r"])
@pytest.mark.parametrize("reason", ANOTHER)
def test_a_local_store_is_replaced_which(world: TaskWorld, reason: str, snapshot: bool, way: Way) -> None:
    written(world, snapshot=snapshot)
    rewrite(world, lambda said: said.update(ANOTHER[reason]))
    if snapshot:
        # Replaying is slow here: so few records would be read before anything was downloaded.
        (world.spec.folder.parent / "rates.json").write_text('{"replay_records_per_s": 1.0}')
    opened = world.open()
    assert way is opened.plan.way
    assert opened.plan.reason.startswith(reason)
    refused = [o.refused for o in opened.plan.ways if o.way in (Way.NOTHING, Way.ROLL_BACK, Way.ROLL_FORWARD)]
    assert [True] * 3 == [text.startswith(reason) for text in refused]
    assert KEPT == world.entries()
    assert Way.NOTHING is world.open().plan.way


@pytest.mark.parametrize("way", ["commit", "tail", "replay", "load"])
def test_a_store_says_of_what_it_is_however_it_was_made(
    world: TaskWorld, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(world)
    if way == "tail":
        world.commit_elsewhere({b"b": b"2"})
    elif way != "commit":
        monkeypatch.setattr("statestore.rebuild.LOAD_RECORDS_MIN", 1 if way == "load" else 1_000)
        rewrite(world, lambda said: said.update(format=2))
    world.open()
    world.close()
    said = checkpoint(world)
    assert ("plan", 1) == (said.plan, said.tasks)
    # What was committed elsewhere has none.
    assert (said.digest is None) == (way == "tail")


def test_a_local_store_of_a_lost_timeline_is_replaced_where_kafka_has_passed_it(world: TaskWorld) -> None:
    written(world)
    rewrite(world, lambda said: said.update(digest="0" * 16))
    world.commit_elsewhere({b"c": b"3"})
    plan = world.open().plan
    assert Way.FULL_REPLAY is plan.way
    assert plan.reason.startswith("local store is of a lost timeline: another batch 1 was committed")
    assert {**KEPT, b"c": b"3"} == world.entries()


def test_a_store_of_before_it_said_of_what_it_is_stays_in_use(world: TaskWorld) -> None:
    written(world)
    rewrite(world, lambda said: (said.pop("plan"), said.pop("tasks"), said.pop("digest")))
    assert Way.NOTHING is world.open().plan.way
    assert KEPT == world.entries()


# Kafka's side.


def test_a_changelog_with_records_and_no_committed_batch_is_unrecoverable(world: TaskWorld) -> None:
    """As after the batches topic was deleted and made again: what is on the disk stays for whoever repairs it."""
    written(world)
    world.admin.delete([world.batches.name])
    world.admin.await_gone(world.batches.name)
    world.admin.create(world.batches.name, partitions=2, settings=COMPACT)
    with pytest.raises(Unrecoverable, match="changelog has records, but the batches topic knows of no committed batch"):
        world.open()
    assert 1 == checkpoint(world).batch


def test_a_missing_changelog_is_unrecoverable(world: TaskWorld) -> None:
    written(world)
    world.admin.delete([world.spec.store.changelog_topic])
    world.admin.await_gone(world.spec.store.changelog_topic)
    with pytest.raises(Unrecoverable, match="changelog topic is missing"):
        world.open()
    assert 1 == checkpoint(world).batch


@pytest.mark.parametrize("policy", ["compact", "compact,delete", "delete"])
def test_a_changelog_that_has_lost_its_beginning_gives_no_store_whatever_its_policy(
    world: TaskWorld, policy: str
) -> None:
    written(world)
    topic = world.spec.store.changelog_topic
    world.admin.configure(topic, {"cleanup.policy": "compact,delete"})
    world.admin.trim(topic, 0, before=1)
    world.admin.configure(topic, {"cleanup.policy": policy})
    # The local store has all.
    assert Way.NOTHING is world.open().plan.way
    world.close()
    shutil.rmtree(world.spec.folder)
    with pytest.raises(Unrecoverable, match="full replay: changelog's records before offset 1 were deleted"):
        world.open()


@pytest.mark.parametrize("way", ["tail", "replay", "load"])
def test_a_replay_longer_than_deletions_are_kept_is_given_up(
    world: TaskWorld, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("statestore.rebuild.LOAD_RECORDS_MIN", 1 if way == "load" else 1_000)
    monkeypatch.setattr("statestore.clock.Moment.age_s", lambda _: 86_400.0)
    written(world)
    if way == "tail":
        world.commit_elsewhere({b"b": b"2"})
    else:
        rewrite(world, lambda said: said.update(format=2))
    with pytest.raises(Unavailable, match="replay took longer than the changelog keeps deletions"):
        world.open()
    # What was read must not be taken for a store by the next opening.
    assert not (unfinished(world.spec.folder) if way == "load" else world.spec.folder).exists()
    monkeypatch.undo()
    assert Way.FULL_REPLAY is world.open().plan.way
    assert KEPT == world.entries()


def test_a_version_that_grows_too_old_while_it_catches_up_is_given_up(
    world: TaskWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Young enough when the plan was made; by the end of the replay a deletion since then may have been dropped."""
    written(world)
    world.commit_elsewhere({b"b": b"2"})
    gather = facts.gather

    def nearly_too_old(*about: Any) -> Found:
        found = gather(*about)
        assert found.checkpoint is not None
        return replace(found, now_ms=found.checkpoint.written_at_ms + found.delete_retention_ms - 1)

    monkeypatch.setattr("statestore.task.gather", nearly_too_old)
    with pytest.raises(Unavailable, match="replay took longer than the changelog keeps deletions"):
        world.open()
    assert not world.spec.folder.exists()
    monkeypatch.undo()
    assert Way.FULL_REPLAY is world.open().plan.way
    assert KEPT == world.entries()


def test_whatever_the_owner_before_has_committed_by_init_is_seen(
    world: TaskWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Position and end are of after `init_transactions`: it is what ends the transactions of the owner before."""
    world.open()
    world.commit({b"a": b"1"})
    before, init = world.running, TransactionalProducer.init

    def late(producer: TransactionalProducer) -> None:
        if before.committed_batch == 0:
            commit_batch(before, 1, {b"b": b"2"}, plan="plan", ends={})
        init(producer)

    newer = world.start_driver()
    monkeypatch.setattr(TransactionalProducer, "init", late)
    spec = replace(world.spec, folder=tmp_path / "elsewhere" / "0")
    task = Task(spec, newer, world.kafka, ROCKS, transactions=True)
    try:
        opened = task.open()
        assert (1, 1) == (before.committed_batch, opened.plan.batch)
        assert [(b"a", b"1"), (b"b", b"2")] == [(k, v[8:]) for k, v in task.store.scan("s", lower=None, upper=None)]
    finally:
        task.close()


# What the log has before a way is gone.


def test_the_log_has_every_way_before_one_is_gone(world: TaskWorld) -> None:
    written(world)
    with capture_logs() as logged:
        world.open()
    [planned] = [line for line in logged if line["event"] == "recovery planned"]
    assert ("q-0", "nothing") == (planned["task"], planned["way"])
    assert "nothing: 0.0 s, 0 bytes, 0 offsets: chosen" == planned["ways"][0]
    assert planned["ways"][-1].startswith("full replay: ")
    assert planned["ways"][-1].endswith(": takes longer than nothing")
    assert logged.index(planned) < [line["event"] for line in logged].index("task opened")


def test_the_log_has_every_refusal_where_there_is_no_way(world: TaskWorld) -> None:
    written(world)
    topic = world.spec.store.changelog_topic
    world.admin.delete([topic])
    world.admin.await_gone(topic)
    world.admin.create(topic, partitions=1, settings=COMPACT)
    with capture_logs() as logged, pytest.raises(Unrecoverable, match="deleted and created again"):
        world.open()
    [told] = [line for line in logged if line["event"] == "task cannot be recovered"]
    assert "error" == told["log_level"]
    reason = "changelog topic was deleted and created again"
    assert [f"{way.value}: {reason}" for way in Way] == told["ways"]
    assert 1 == checkpoint(world).batch


# A snapshot.


def test_a_manifest_of_another_format_is_refused(world: TaskWorld) -> None:
    written(world, snapshot=True)
    objects, key = world.repository.objects, world.repository.layout.manifest(1)
    objects.put(key, json.dumps({**json.loads(objects.get(key)), "format": 3}).encode())
    rewrite(world, lambda said: said.update(format=2))
    opened = world.open()
    assert Way.FULL_REPLAY is opened.plan.way
    refused = next(option.refused for option in opened.plan.ways if option.way is Way.SNAPSHOT)
    assert f"snapshot has another format key=`{key}` found=`3` supported=`[1, 2]`" == refused
    assert KEPT == world.entries()


def test_a_position_makes_the_checkpoint_of_a_store_that_stands_there() -> None:
    assert Checkpoint(3, {}, 77, plan="p", tasks=4) == Position(3, 1, "p").checkpoint(4, 77)


# How old a version is.


def test_a_checkpoint_has_the_time_that_it_was_given(tmp_path: Path) -> None:
    database = TaskDatabase(tmp_path / "0", ["s"], ROCKS)
    space, entries = database.entries(Checkpoint(3, {}, 77))
    database.database.write({space: entries})
    assert Checkpoint(3, {}, 77) == database.checkpoint()
    database.close()


def asleep(monkeypatch: pytest.MonkeyPatch, seconds: int) -> None:
    """The machine sleeps so long."""
    time_ns = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: time_ns() + seconds * 1_000_000_000)


def test_a_version_that_is_written_late_is_as_old_as_its_commit(
    world: TaskWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was deleted meanwhile by a newer owner may be forgotten when it is rolled forward."""
    world.open()

    def reached(point: str) -> None:
        if point == "apply.before-write":
            asleep(monkeypatch, 2 * 86_400)

    with monkeypatch.context() as patch:
        patch.setattr("statestore.task.reach", reached)
        world.commit({b"a": b"1"})
    monkeypatch.undo()
    world.close()
    assert checkpoint(world).written_at_ms <= now_ms()
    # By then another has deleted what this store still has, and the changelog has forgotten that.
    world.commit_elsewhere({b"a": None, b"b": b"2"})
    asleep(monkeypatch, 2 * 86_400)
    plan = world.open().plan
    assert Way.FULL_REPLAY is plan.way
    assert plan.reason.startswith("local store is older than the changelog keeps deletions")


@pytest.mark.parametrize("way", ["tail", "replay", "load"])
def test_a_version_that_was_caught_up_with_is_as_old_as_the_look_at_its_position(
    world: TaskWorld, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("statestore.rebuild.LOAD_RECORDS_MIN", 1 if way == "load" else 1_000)
    written(world)
    if way == "tail":
        world.commit_elsewhere({b"b": b"2"})
    else:
        rewrite(world, lambda said: said.update(format=2))

    def owned(*about: Any, **kwargs: Any) -> Any:
        found = own(*about, **kwargs)
        asleep(monkeypatch, 3_600)
        return found

    monkeypatch.setattr("statestore.task.own", owned)
    world.open()
    monkeypatch.undo()
    world.close()
    assert checkpoint(world).written_at_ms <= now_ms()
