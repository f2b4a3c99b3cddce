"""Versions of the past: every batch is exactly what it was, or refused with its reason and what can be had."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest

from statestore.batches import POSITION, Planned
from statestore.digest import digest_of
from statestore.errors import InvalidInput
from statestore.kafka.producer import TransactionalProducer
from statestore.layouts.timestamped import pack
from statestore.snapshots.manifest import Step
from statestore.store import Isolation
from statestore.travel.known import BEGIN, Known
from statestore.travel.past import OutOfReach
from statestore.travel.rewrite import Rewrite
from statestore.version import TaskDatabase
from tests.snapshots.test_tombstones import EAGER, records
from tests.support.task import COMPACT, PLAN, TaskWorld, config_of
from tests.support.waiting import await_

Model = dict[bytes, bytes]


def some(batch: int) -> Model:
    return {b"key-%04d" % number: b"%d-%d" % (batch, number) for number in range(batch * 30, batch * 30 + 100)}


def applied(model: Model, changes: Mapping[bytes, bytes | None]) -> Model:
    return {key: value for key, value in {**model, **changes}.items() if value is not None}


def history(world: TaskWorld, batches: int, *, snapshots: tuple[int, ...]) -> list[Model]:
    """Batches that put, change and delete; gives the store's content after each."""
    models: list[Model] = []
    model: Model = {}
    world.open()
    for batch in range(batches):
        changes: dict[bytes, bytes | None] = dict(some(batch))
        if batch % 3 == 2:
            deleted = dict.fromkeys(list(model)[:20])
            world.commit_elsewhere(changes := {**changes, **deleted})
            world.open()
        else:
            world.commit(some(batch))
        model = applied(model, changes)
        models.append(model)
        if batch in snapshots:
            world.snapshot()
    world.finish(batches - 1)
    return models


def test_every_batch_is_what_it_was_beside_the_running_task(world: TaskWorld, tmp_path: Path) -> None:
    models = history(world, 8, snapshots=(2, 5))
    live = world.entries()
    for batch, model in enumerate(models):
        assert model == world.past(tmp_path / "past", batch=batch), batch
    assert models[-1] == world.past(tmp_path / "past")
    # The live task is as it was, still the owner, and goes on.
    assert live == world.entries()
    world.commit({b"more": b"1"})
    with pytest.raises(InvalidInput, match="batch is not finished"):
        world.past(tmp_path / "past", batch=8)


def test_attempts_that_were_given_up_hide_no_version(kafka: str, unique: str, tmp_path: Path) -> None:
    """Killed behind its position's record, before the commit: that one is in the topic, and was never there."""
    world = TaskWorld(kafka, unique, tmp_path / "state", None)
    models: list[Model] = [{}]
    for batch in range(3):
        for _ in range(batch):
            producer = TransactionalProducer(world.kafka, world.spec.transactional_id)
            producer.init()
            producer.begin()
            producer.produce(world.batches.name, key=POSITION, value=b"given up", partition=0)
            producer.flush()
            producer.abort()
            producer.close()
        world.open()
        world.commit(some(batch))
        models.append(applied(models[-1], some(batch)))
        world.close()
    world.finish(2)
    for batch, model in enumerate(models[1:]):
        assert model == world.past(tmp_path / "past", batch=batch), batch


def test_a_time_names_the_newest_batch_that_was_committed_then(world: TaskWorld, tmp_path: Path) -> None:
    world.open()
    times: list[int] = []
    models: list[dict[bytes, bytes]] = []
    model: dict[bytes, bytes] = {}
    for batch in range(3):
        world.commit(some(batch))
        model = applied(model, some(batch))
        models.append(model)
        time.sleep(0.02)
        times.append(time.time_ns() // 1_000_000)
        time.sleep(0.02)
        if batch == 1:
            world.snapshot()
    world.finish(2)
    for at_ms, expected in zip(times, models, strict=True):
        assert expected == world.past(tmp_path / "past", at_ms=at_ms)
    assert {} == world.past(tmp_path / "past", at_ms=times[0] - 3_600_000)


def test_the_input_of_a_batch_is_known(world: TaskWorld) -> None:
    world.open()
    for batch in range(3):
        world.commit(some(batch))
    world.finish(2)
    assert {"0": 2} == world.look_back(batch=1).ends()


@pytest.mark.timeout(240)
def test_a_compacted_tail_is_refused_with_the_batches_that_can_be_had(kafka: str, unique: str, tmp_path: Path) -> None:
    config = config_of(tmp_path / "objects", pin_life_s=600, minimum_age_s=1200)
    world = TaskWorld(kafka, unique, tmp_path / "state", config, changelog=EAGER)
    world.open()
    world.commit({b"a": b"0", b"b": b"0"})
    world.snapshot()
    model = {b"a": b"1", b"b": b"1"}
    world.commit(model)
    newest = world.commit({b"a": b"2"})
    deadline = time.monotonic() + 180
    # The record a=1 goes once a newer one of its key is in an older segment than the newest.
    while any((b"a", b"1") == record for record in records(world)):
        assert time.monotonic() < deadline, records(world)
        time.sleep(1)
        newest = world.commit({b"other": b"%d" % newest})
    world.snapshot()
    world.finish(newest)
    assert {b"a": b"0", b"b": b"0"} == world.past(tmp_path / "past", batch=0)
    with pytest.raises(OutOfReach, match="compacted past it") as refused:
        world.past(tmp_path / "past", batch=1)
    assert (0, newest) == (refused.value.fields["nearest_before"], refused.value.fields["nearest_after"])
    assert {**model, b"a": b"2"}.items() <= world.past(tmp_path / "past", batch=newest).items()
    world.close()


@pytest.mark.parametrize("damage", ["snapshots gone", "newest snapshot's files gone"])
def test_the_next_older_way_is_taken(world: TaskWorld, tmp_path: Path, damage: str) -> None:
    models = history(world, 5, snapshots=(1, 3))
    objects, layout = world.repository.objects, world.repository.layout
    if damage == "snapshots gone":
        shutil.rmtree(tmp_path / "objects")
    else:
        older = {file.sha256 for file in world.repository.read(1).files}
        objects.delete([layout.file(f.sha256) for f in world.repository.read(3).files if f.sha256 not in older])
    assert models[4] == world.past(tmp_path / "past", batch=4)


def test_what_an_attempt_before_has_left_is_not_in_the_version(world: TaskWorld, tmp_path: Path) -> None:
    models = history(world, 2, snapshots=())
    left = TaskDatabase(tmp_path / "past", [world.spec.store.name], world.rocks)
    left.database.write({world.spec.store.name: [(b"left", pack(b"behind", 1))]})
    left.close()
    assert models[1] == world.past(tmp_path / "past", batch=1)


def test_a_changelog_made_again_gives_no_tail(world: TaskWorld, tmp_path: Path) -> None:
    models = history(world, 5, snapshots=(1, 3))
    topic = world.spec.store.changelog_topic
    world.close()
    world.admin.delete([topic])
    world.admin.await_gone(topic)
    world.admin.create(topic, partitions=1, settings=COMPACT)
    assert models[1] == world.past(tmp_path / "past", batch=1), "the batch of a snapshot needs none"
    with pytest.raises(OutOfReach, match="deleted and created again"):
        world.past(tmp_path / "past", batch=2)


def step(batch: int) -> Step:
    return Step(batch, {"s": batch * 10}, batch * 1000)


def test_a_rewrite_that_is_interrupted_leaves_no_transaction_open(world: TaskWorld) -> None:
    world.open()
    world.commit(some(0))
    world.finish(0)
    world.close()
    where = (world.spec.store.changelog_topic, world.spec.number)
    driver_id = f"{world.spec.pipeline}-q-driver"
    rewrite = Rewrite(world.kafka, driver_id, [world.spec], plan=PLAN, snapshots=world.snapshots)

    def is_open() -> bool:
        return world.reader.stable_end(*where) < world.reader.begin_and_end(*where)[1]

    def interrupted() -> Iterator[tuple[bytes, bytes]]:
        yield b"a", pack(b"1", 1)
        rewrite._producer.flush()
        assert is_open()
        raise KeyboardInterrupt

    with closing(rewrite):
        rewrite.take()
        rewrite.own({})
        with pytest.raises(KeyboardInterrupt):
            rewrite.commit({0: interrupted()}, Planned(1, PLAN, ()), {}, f"{world.spec.pipeline}-q")
    await_("no transaction is open", lambda: not is_open(), timeout_s=2)
    world.open()
    assert some(0) == world.entries()


def test_states_of_time_0_are_rewritten_as_their_changelog_gives_them_back(world: TaskWorld) -> None:
    world.open()
    world.commit(some(0))
    world.finish(0)
    world.close()
    rewrite = Rewrite(world.kafka, f"{world.spec.pipeline}-q-driver", [world.spec], plan=PLAN)
    with closing(rewrite):
        rewrite.take()
        rewrite.own({})
        version = iter([(b"a", pack(b"1", 0)), (b"b", pack(b"2", 7))])
        rewrite.commit({0: version}, Planned(1, PLAN, ()), {}, f"{world.spec.pipeline}-q")
    shutil.rmtree(world.spec.folder)
    world.open()
    entries = list(world.running.entries(None, None, Isolation.READ_COMMITTED))
    assert [(b"a", pack(b"1", 1)), (b"b", pack(b"2", 7))] == entries
    position = world.log.position(0)
    assert position is not None
    assert digest_of(entries)[0] == position.digest


def test_a_batch_between_two_that_may_have_one_between_them_is_not_certain() -> None:
    known = Known(9)
    known.add([Step(BEGIN, {"s": 0}, 0), step(1), step(4)])
    known.add([step(6), step(9)])
    certain = {batch: found.batch for batch in range(12) if (found := known.at(batch)) is not None}
    assert {0: -1, 1: 1, 2: 1, 3: 1, 4: 4, 6: 6, 7: 6, 8: 6, 9: 9, 10: 9, 11: 9} == certain
    assert known.chain(1, 6) is None
    assert [-1, 1, 4] == [found.batch for found in known.chain(-1, 4) or ()]


def aborted(world: TaskWorld) -> None:
    """A transaction on the changelog that another owner begins and gives up."""
    world.close()
    producer = TransactionalProducer(world.kafka, world.spec.transactional_id)
    producer.init()
    producer.begin()
    producer.produce(world.spec.store.changelog_topic, key=b"never", value=b"1", partition=world.spec.number)
    producer.flush()
    producer.abort()
    producer.close()
    world.open()


@pytest.mark.parametrize("seed", [1, 2])
def test_any_order_of_what_a_task_lives_through(world: TaskWorld, seed: int, tmp_path: Path) -> None:
    """Every batch is exact, those behind aborted transactions too: nothing is compacted here."""
    dice = random.Random(seed)
    models: list[Model] = []

    world.open()
    for _ in range(25):
        model = dict(models[-1]) if models else {}
        what = dice.choices(
            ("commit", "elsewhere", "nothing", "reopen", "snapshot", "abort", "back"), (8, 3, 1, 2, 3, 2, 2)
        )[0]
        changes: dict[bytes, bytes | None] = {
            b"k%d" % dice.randrange(20): b"%d" % dice.randrange(10**6) for _ in range(5)
        }
        if what == "commit":
            world.commit({key: value for key, value in changes.items() if value is not None})
            models.append(applied(model, changes))
        elif what == "elsewhere":
            changes |= dict.fromkeys(dice.sample(sorted(model), len(model) // 4))
            world.commit_elsewhere(changes)
            world.open()
            models.append(applied(model, changes))
        elif what == "nothing":
            world.commit({})
            models.append(model)
        elif what == "back" and models:
            to = dice.randrange(len(models))
            world.finish(len(models) - 1)
            world.rewrite(to, tmp_path / "past")
            models.append(models[to])
            world.open()
        elif what == "snapshot" and models:
            world.snapshot()
        elif what == "abort":
            aborted(world)
        elif what == "reopen":
            world.open()
        assert (models[-1] if models else {}) == world.entries()
    world.finish(len(models) - 1)
    for batch, model in enumerate(models):
        assert model == world.past(tmp_path / "past", batch=batch), (seed, batch)
