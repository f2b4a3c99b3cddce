"""What a task reads is what its store has committed, however much of it the cache of entries knows."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from statestore.batches import Order
from statestore.config import RocksConfig
from statestore.errors import Unavailable
from statestore.layouts.window import pack
from statestore.store import Isolation
from tests.statestore.conftest import ONE, TWO
from tests.support.task import PLAN, ROCKS, TaskWorld, commit_batch, keys_of, stage_windows

KEYS = keys_of(0, 1, 40)
THREE = KEYS[2]


@pytest.fixture(params=[0, 4_000, ROCKS.entry_cache_bytes], ids=["no-cache", "small-cache", "cache"])
def sized(request: pytest.FixtureRequest, kafka: str, unique: str, tmp_path: Path) -> Iterator[TaskWorld]:
    """A task that runs, with room for no entry, some, or all."""
    rocks = replace(ROCKS, entry_cache_bytes=request.param)
    world = TaskWorld(kafka, unique, tmp_path / "state", None, rocks=rocks)
    world.open()
    yield world
    world.close()


def states(world: TaskWorld) -> dict[bytes, bytes]:
    """Of every key, as the engine reads them before a batch: without their times."""
    found = world.running.read(pa.array(KEYS, pa.binary()))[0].to_pylist()
    return {key: state[8:] for key, state in zip(KEYS, found, strict=True) if state is not None}


def test_every_batch_is_read_as_it_was_committed(sized: TaskWorld) -> None:
    draw, expected = random.Random(5), dict[bytes, bytes]()
    for batch in range(25):
        changes = {key: b"%d" % batch * draw.randrange(1, 30) for key in draw.sample(KEYS, draw.randrange(12))}
        commit_batch(sized.running, batch, changes, plan=PLAN, ends={})
        expected |= changes
        assert states(sized) == expected == sized.entries()


def test_what_another_owner_has_changed_is_read(sized: TaskWorld) -> None:
    sized.commit({ONE: b"1", TWO: b"2"})
    sized.commit_elsewhere({ONE: b"other", TWO: None, THREE: b"3"})
    sized.open()
    assert states(sized) == {ONE: b"other", THREE: b"3"} == sized.entries()
    sized.commit({TWO: b"new"})
    assert states(sized) == {ONE: b"other", TWO: b"new", THREE: b"3"} == sized.entries()


def test_committed_entries_are_read_from_memory(world: TaskWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world.commit({TWO: b"2"})
    asked: list[bytes] = []
    store = world.running.store
    get_many = store.get_many

    def counted(space: str, keys: list[bytes], isolation: Isolation) -> list[bytes | None]:
        asked.extend(keys)
        return get_many(space, keys, isolation)

    monkeypatch.setattr(store, "get_many", counted)
    found = world.running.read(pa.array([ONE, THREE, TWO], pa.binary()))[0].to_pylist()
    assert [b"1", None, b"2"] == [state and state[8:] for state in found]
    assert [THREE] == asked


@pytest.mark.parametrize("written", [False, True], ids=["before-write", "after-write"])
def test_nothing_is_known_of_a_batch_that_could_not_be_applied(
    world: TaskWorld, monkeypatch: pytest.MonkeyPatch, written: bool
) -> None:
    task = world.running
    commit = task.store.commit

    def fails(space: str, entries: Iterable[tuple[bytes, bytes | None]]) -> None:
        if written:
            commit(space, entries)
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(task.store, "commit", fails)
        with pytest.raises(MemoryError):
            world.commit({ONE: b"2", TWO: b"2"})
    with pytest.raises(Unavailable, match="task is not running"):
        states(world)
    task.open()
    assert states(world) == {ONE: b"2", TWO: b"2"} == world.entries()


def test_an_attempt_that_is_not_committed_is_not_read(world: TaskWorld) -> None:
    task = world.running
    staged: Mapping[bytes, bytes] = {ONE: b"attempt", TWO: b"attempt"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task, "commit", lambda **_: True)
        commit_batch(task, 1, staged, plan=PLAN, ends={})
    assert states(world) == {ONE: b"1"}
    commit_batch(task, 1, {TWO: b"2"}, plan=PLAN, ends={})
    assert states(world) == {ONE: b"1", TWO: b"2"} == world.entries()


def test_windows_out_of_retention_are_not_known(kafka: str, unique: str, tmp_path: Path) -> None:
    minute, begin = 60_000, 1_700_000_040_000
    world = TaskWorld(kafka, unique, tmp_path / "state", None)
    world.spec = replace(world.spec, store=replace(world.spec.store, retention_ms=2 * minute))
    world.open()
    try:
        for at in range(5):
            start = begin + at * minute
            windows = {(ONE, start): b"%d" % at}
            batch = stage_windows(world.running, windows, Order(start))
            assert world.running.commit(batch=batch, attempt=1, plan=PLAN)
        asked = pa.array([pack(ONE, begin + at * minute) for at in range(5)], pa.binary())
        found = world.running.read(asked)[0].to_pylist()
        assert [None, None, b"2", b"3", b"4"] == [state and state[8:] for state in found]
    finally:
        world.close()


@pytest.mark.parametrize("size", [-1, 1 << 31])
def test_a_cache_larger_than_a_column_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="entry_cache_bytes"):
        RocksConfig(entry_cache_bytes=size)
