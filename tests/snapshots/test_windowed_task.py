"""A task with a windowed store: what expires, and what comes back from a snapshot, a tail and the whole changelog."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import confluent_kafka as ck
import pyarrow as pa
import pytest

from statestore.batches import Order
from statestore.layouts.window import unpack
from statestore.planning.rates import Rates, save_rates
from statestore.store import Isolation
from statestore.verification import verify, verify_digest
from statestore.version import TaskDatabase
from tests.support.feed import read_topic
from tests.support.present import present
from tests.support.task import PLAN, ROCKS, TaskWorld, stage_windows

MINUTE = 60_000
RETENTION = 2 * MINUTE  # segments of a minute
BEGIN = 1_700_000_040_000  # begins a minute
Window = tuple[bytes, int]


@pytest.fixture
def windowed(world: TaskWorld) -> TaskWorld:
    world.spec = replace(world.spec, store=replace(world.spec.store, retention_ms=RETENTION))
    return world


def commit(world: TaskWorld, windows: dict[Window, bytes], stream_time_ms: int | None, dropped: int = 0) -> None:
    """Stage and commit the next batch: state and result of each window. Without a stream time none is recorded."""
    order = None if stream_time_ms is None else Order(stream_time_ms, dropped)
    batch = stage_windows(world.running, windows, order)
    assert world.running.commit(batch=batch, attempt=1, plan=PLAN, ends={"0": batch + 1})


def content(world: TaskWorld) -> dict[Window, bytes]:
    """All windows that can be read."""
    entries = world.running.entries(None, None, Isolation.READ_COMMITTED)
    return {unpack(key)[:2]: value[8:] for key, value in entries}


def segments(world: TaskWorld) -> list[str]:
    assert world.task is not None
    assert world.task._database is not None
    return [space for space in world.task._database.database.spaces() if space.startswith("s.")]


def test_windows_expire_by_stream_time_and_stay_so_whatever_the_store_comes_from(
    windowed: TaskWorld, tmp_path: Path
) -> None:
    world, at = windowed, [BEGIN + n * MINUTE for n in range(6)]
    world.open()
    commit(world, {(b"a", at[0]): b"1", (b"a", at[0] + 5): b"2", (b"b", at[1]): b"3"}, at[1], dropped=2)
    assert {(b"a", at[0]): b"1", (b"a", at[0] + 5): b"2", (b"b", at[1]): b"3"} == content(world)
    assert 2 == len(segments(world))
    world.snapshot()
    # Half a minute later nothing of the first segment can be read, and it is still there for what is left of it.
    commit(world, {(b"a", at[2]): b"4"}, at[2] + 30_000)
    assert {(b"b", at[1]): b"3", (b"a", at[2]): b"4"} == content(world)
    assert 3 == len(segments(world))
    # A window that is out of retention when its batch ends is a result and no state.
    commit(world, {(b"c", at[1] + 7): b"5", (b"a", at[5]): b"6"}, at[5], dropped=1)
    expected, order = {(b"a", at[5]): b"6"}, Order(at[5], 3)
    assert (expected, order) == (content(world), world.running.order)
    assert [f"s.{at[5]}"] == segments(world)

    ways = []
    # Replaying is slow: so few records would be read from the beginning before anything was downloaded.
    save_rates(world.spec.folder.parent, Rates(replay_records_per_s=1.0))
    for lost in ("nothing", "folder", "folder and snapshots"):
        world.close()
        if lost != "nothing":
            shutil.rmtree(world.spec.folder)
        if lost == "folder and snapshots":
            shutil.rmtree(tmp_path / "objects")
        ways.append(world.open().plan.way.value)
        assert (expected, order) == (content(world), world.running.order), lost
    assert ["nothing", "snapshot", "full replay"] == ways
    # Late as before: a batch of nothing but late records moves the count alone.
    commit(world, {}, at[5], dropped=4)
    assert (expected, Order(at[5], 7)) == (content(world), world.running.order)

    database = TaskDatabase(world.spec.folder, ["s"], ROCKS, read_only=True)
    found = verify(world.spec, world.reader, database, tmp_path / "work")
    by_digest = verify_digest(world.spec, world.log, database)
    database.close()
    assert by_digest is not None
    assert (1, False) == (by_digest.keys, by_digest.differs)
    assert (1, 0) == (found.keys, found.mismatch_count)


@pytest.mark.parametrize("lost", ["nothing", "memory", "folder", "attempt"])
def test_so_many_windows_expire_in_a_batch_that_its_transaction_ends_in_time(
    windowed: TaskWorld, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lost: str
) -> None:
    monkeypatch.setattr("statestore.task.EXPIRED_AT_ONCE", 4)
    world, late = windowed, BEGIN + 9 * MINUTE
    world.open()
    # Six windows in each of two segments.
    old = {(b"k%d" % n, BEGIN + segment * MINUTE + n): b"x" for segment in range(2) for n in range(6)}
    commit(world, old, BEGIN + MINUTE)
    left: list[int] = []
    # The first batch behind the jump writes two windows, so four may go; the next writes three, so six may.
    for batch, written in enumerate((2, 3, 0, 0)):
        new = {(b"n%d-%d" % (batch, n), late): b"y" for n in range(written)}
        if lost == "attempt" and new:
            # What is staged and not committed has swept nothing.
            stage_windows(world.running, new, Order(late, 0))
        commit(world, new, late)
        if lost in {"memory", "folder"}:
            world.close()
            if lost == "folder":
                shutil.rmtree(world.spec.folder)
            world.open()
        # None of them is given, swept or not.
        assert all(key.startswith(b"n") for key, _ in content(world))
        assert world.task is not None and world.task._database is not None
        rows = [sum(1 for _ in world.task._database.database.scan(space)) for space in segments(world)[:-1]]
        left.append(sum(rows))
        found = verify(world.spec, world.reader, world.task._database, tmp_path / f"work{batch}")
        assert (0, sum(rows) + len(content(world))) == (found.mismatch_count, found.keys)
    assert [8, 2, 0, 0] == left
    # A segment goes with the batch that finds its end. A replay makes it again, and deletes in it what was deleted.
    assert (3 if lost == "folder" else 1) == len(segments(world))
    assert 5 == len(content(world))


def test_a_batch_without_rows_asks_for_the_version_alone(windowed: TaskWorld) -> None:
    windowed.open()
    commit(windowed, {(b"k", BEGIN): b"1"}, BEGIN)
    states, token, stream_time_ms = windowed.running.read(pa.array([], pa.binary()))
    assert ([], windowed.running.token, BEGIN) == (states.to_pylist(), token, stream_time_ms)


def test_a_key_s_results_are_in_one_partition_with_the_window_in_the_key(windowed: TaskWorld) -> None:
    world = windowed
    topic = world.admin.create(f"{world.spec.pipeline}-wide", partitions=5, settings={})
    world.spec = replace(world.spec, output_topic=topic.name)
    world.open()
    keys = [b"key-%d" % n for n in range(20)]
    commit(world, {(key, BEGIN + n): key for key in keys for n in range(3)}, BEGIN + 2)
    found = read_topic(world.kafka.bootstrap_servers, topic.name)
    places = {message.value(): message.partition() for message in found}
    assert {(key + (BEGIN + n).to_bytes(8, "big"), places[key]) for key in keys for n in range(3)} == {
        (message.key(), message.partition()) for message in found
    }
    # The same partition as Java's producer, and this client, choose for the bare key.
    client = ck.Producer({"bootstrap.servers": world.kafka.bootstrap_servers, "partitioner": "murmur2_random"})
    chosen: dict[bytes, int] = {}
    for key in keys:
        client.produce(
            topic.name, b"x", key, on_delivery=lambda _, m: chosen.update({present(m.key()): present(m.partition())})
        )
    assert 0 == client.flush(20)
    assert chosen == places
