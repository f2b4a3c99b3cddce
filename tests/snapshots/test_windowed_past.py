"""The past of a windowed task: every batch is what could be read then, and one can be made the newest again."""

from __future__ import annotations

import json
import random
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from statestore.batches import Order
from statestore.errors import Fenced
from statestore.failpoints import PAST_POINTS, REWRITE_POINTS
from statestore.layouts.window import pack
from statestore.snapshots.manifest import Step, parse
from statestore.travel.known import Known
from statestore.travel.past import OutOfReach
from statestore.verification import verify_digest
from statestore.version import TaskDatabase
from tests.snapshots.test_windowed_task import MINUTE, RETENTION, Window, commit
from tests.support.killed import run_child
from tests.support.task import ROCKS, TaskWorld

Model = dict[bytes, bytes]
# Of today, at the beginning of a minute: records of long ago would be a segment of their own each, and be compacted.
BEGIN = int(time.time()) // 60 * MINUTE - 120 * MINUTE
AT = [BEGIN + n * MINUTE for n in range(9)]
HALF = MINUTE // 2


@pytest.fixture
def windowed(world: TaskWorld) -> TaskWorld:
    world.spec = replace(world.spec, store=replace(world.spec.store, retention_ms=RETENTION))
    return world


class History:
    """A task's batches, and the model of each: what can be read is less old than the retention, by stream time."""

    def __init__(self, world: TaskWorld) -> None:
        self.world = world
        self.models: list[Model] = []
        self.orders: list[Order] = []
        self._windows: dict[Window, bytes] = {}

    def commit(self, windows: dict[Window, bytes], stream_time_ms: int, dropped: int = 0) -> None:
        commit(self.world, windows, stream_time_ms, dropped)
        before = self.orders[-1].dropped if self.orders else 0
        self._windows |= windows
        self._note(Order(stream_time_ms, before + dropped))

    def _note(self, order: Order) -> None:
        oldest = order.stream_time_ms - RETENTION + 1
        self._windows = {at: value for at, value in self._windows.items() if at[1] >= oldest}
        self.models.append({pack(*at): value for at, value in self._windows.items()})
        self.orders.append(order)

    def back(self, batch: int, folder: Path) -> None:
        """Make the version at a batch the newest one."""
        self.world.finish(len(self.models) - 1)
        self.world.rewrite(batch, folder)
        self.went_back(batch)

    def went_back(self, batch: int) -> None:
        """Somebody has made the version at a batch the newest one."""
        self.models.append(self.models[batch])
        self.orders.append(self.orders[batch])
        self._windows = {(key[:-12], int.from_bytes(key[-12:-4], "big")): v for key, v in self.models[batch].items()}

    def require(self, folder: Path) -> None:
        """Every batch is what it was."""
        self.world.finish(len(self.models) - 1)
        for batch, (model, order) in enumerate(zip(self.models, self.orders, strict=True)):
            assert model == self.world.past(folder, batch=batch), batch
            assert order == self.world.look_back(batch=batch).order(0), batch


@pytest.fixture
def history(windowed: TaskWorld) -> History:
    """Five batches, a snapshot at the second. All but the first end windows, most of them within a live segment."""
    history, world = History(windowed), windowed
    world.open()
    history.commit({(b"a", AT[0]): b"0", (b"a", AT[0] + HALF + 5): b"1", (b"b", AT[1]): b"2"}, AT[1], dropped=2)
    history.commit({(b"b", AT[1]): b"3", (b"c", AT[2]): b"4"}, AT[2])
    world.snapshot()
    # Of the first segment one window can still be read, of two that are still there.
    history.commit({(b"a", AT[2] + 1): b"5"}, AT[2] + HALF)
    history.commit({(b"d", AT[4]): b"6"}, AT[4] + HALF, dropped=1)
    history.commit({(b"d", AT[4]): b"7", (b"e", AT[6]): b"8"}, AT[6])
    return history


def test_every_batch_is_what_could_be_read_then(history: History, tmp_path: Path) -> None:
    assert [3, 3, 4, 1, 1] == [len(model) for model in history.models]
    history.require(tmp_path / "past")
    # Without the snapshot all comes from the changelog.
    shutil.rmtree(tmp_path / "objects")
    history.require(tmp_path / "past")


def test_going_back_brings_windows_and_their_time_back(history: History, tmp_path: Path) -> None:
    world, before = history.world, history.orders[1]
    zombie = TaskWorld(world.kafka.bootstrap_servers, world.spec.pipeline, tmp_path / "zombie", world.config)
    zombie.spec = replace(world.spec, folder=zombie.spec.folder)
    zombie.open()
    history.back(1, tmp_path / "rewrite")
    with pytest.raises(Fenced):
        commit(zombie, {(b"z", AT[6]): b"0"}, AT[6])
    zombie.close()
    for lost in ("nothing", "folder", "folder and snapshots"):
        world.close()
        if lost != "nothing":
            shutil.rmtree(world.spec.folder)
        if lost == "folder and snapshots":
            shutil.rmtree(tmp_path / "objects")
        world.open()
        assert (history.models[1], before) == (world.entries(), world.running.order), lost
    # On it goes: what was too late before the way back is in time again, and ends as it did.
    history.commit({(b"a", AT[1] + 1): b"9"}, AT[2] + HALF, dropped=1)
    history.commit({(b"d", AT[5]): b"10"}, AT[5])
    assert {pack(b"d", AT[5]): b"10"} == world.entries()
    database = TaskDatabase(world.spec.folder, ["s"], ROCKS, read_only=True)
    found = verify_digest(world.spec, world.log, database)
    database.close()
    assert found is not None and not found.differs
    history.require(tmp_path / "past")


@pytest.mark.parametrize("point", [*PAST_POINTS, *REWRITE_POINTS])
def test_killed_while_going_back_windows_and_time_are_of_one_version(
    history: History, point: str, tmp_path: Path
) -> None:
    world = history.world
    world.close()
    steps = [{"do": "rewrite", "batch": 2, "done": 4}]
    answers, killed = run_child(world, steps, tmp_path / "points", kill_at=point)
    assert killed, answers
    shutil.rmtree(world.spec.folder.with_name("rewrite"))
    world.open()
    if point == "rewrite.committed":
        history.went_back(2)
    assert (history.models[-1], history.orders[-1]) == (world.entries(), world.running.order)
    history.back(3, tmp_path / "again")
    world.open()
    assert (history.models[3], history.orders[3]) == (world.entries(), world.running.order)


@pytest.mark.parametrize("seed", [1, 2])
def test_any_order_of_batches_snapshots_and_ways_back(windowed: TaskWorld, seed: int, tmp_path: Path) -> None:
    dice, world, history = random.Random(seed), windowed, History(windowed)
    world.open()
    for _ in range(25):
        what = dice.choices(("commit", "snapshot", "reopen", "back"), (8, 2, 1, 2))[0]
        if what == "commit" or not history.models:
            now = history.orders[-1].stream_time_ms if history.orders else BEGIN
            now += dice.choice((0, 1, HALF, MINUTE + 7, 3 * MINUTE))
            starts = [now - dice.randrange(RETENTION) for _ in range(5)]
            history.commit({(b"k%d" % dice.randrange(4), start): b"%d" % dice.random() for start in starts}, now)
        elif what == "snapshot":
            world.snapshot()
        elif what == "reopen":
            world.open()
        else:
            history.back(dice.randrange(len(history.models)), tmp_path / "rewrite")
            world.open()
        assert (history.models[-1], history.orders[-1]) == (world.entries(), world.running.order), seed
    history.require(tmp_path / "past")


def test_a_batch_whose_stream_time_nobody_recorded_is_refused(windowed: TaskWorld, tmp_path: Path) -> None:
    world = windowed
    world.open()
    commit(world, {(b"a", AT[0]): b"0"}, None)
    commit(world, {(b"a", AT[1]): b"1"}, AT[1])
    commit(world, {(b"a", AT[2]): b"2"}, AT[2])
    world.finish(2)
    with pytest.raises(OutOfReach, match="version cannot be had any more") as refused:
        world.past(tmp_path / "past", batch=0)
    assert "how far the records' time had come was not recorded" in str(refused.value.fields["reason"])
    assert (None, 1) == (refused.value.fields["nearest_before"], refused.value.fields["nearest_after"])
    with pytest.raises(OutOfReach, match="time had come at the batch is not known"):
        world.look_back(batch=0).orders()
    assert {pack(b"a", AT[0]): b"0", pack(b"a", AT[1]): b"1"} == world.past(tmp_path / "past", batch=1)


def test_a_manifest_keeps_orders_and_one_without_is_read(history: History) -> None:
    manifest = history.world.repository.read(1)
    assert history.orders[:2] == [step.order for step in manifest.steps]
    fields = json.loads(manifest.encode())
    for step in fields["steps"]:
        del step["order"]
    older = parse(json.dumps(fields).encode(), "key")
    assert tuple(replace(step, order=None) for step in manifest.steps) == older.steps


@pytest.mark.parametrize("first", ["older build", "newer build"])
def test_of_two_records_of_a_batch_the_order_that_was_recorded_counts(first: str) -> None:
    unrecorded, recorded = Step(4, {"s": 9}, 50), Step(4, {"s": 9}, 60, order=Order(7, 1))
    known = Known(4)
    for step in (unrecorded, recorded) if first == "older build" else (recorded, unrecorded):
        known.add([step])
    assert Step(4, {"s": 9}, 50, order=Order(7, 1)) == known.at(4)
