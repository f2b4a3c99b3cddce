"""A store against its changelog: equal, or named key by key."""

from __future__ import annotations

from pathlib import Path

import pytest

from statestore.verification import Verified, is_sampled, verify, verify_against
from statestore.version import TaskDatabase
from tests.support.task import ROCKS, TaskWorld


def verified(world: TaskWorld, tmp_path: Path, percent: float = 100.0) -> Verified:
    database = TaskDatabase(world.spec.folder, ["s"], ROCKS, read_only=True)
    try:
        return verify(world.spec, world.reader, database, tmp_path / "work", percent=percent)
    finally:
        database.close()


def some(count: int) -> dict[bytes, bytes]:
    return {b"key-%04d" % number: b"%d" % number for number in range(count)}


def test_an_equal_store_is_equal_beside_its_running_task(world: TaskWorld, tmp_path: Path) -> None:
    world.open()
    world.commit(some(500))
    world.commit({b"key-0001": b"again", b"new": b""})
    found = verified(world, tmp_path)
    assert (1, 501, 0, 0) == (found.batch, found.keys, found.changed_since, found.mismatch_count)
    assert found.store_digest == found.changelog_digest
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize(
    ("kind", "change"),
    [("another value", (b"key-0007", b"wrong")), ("missing", (b"key-0007", None)), ("unexpected", (b"nobody", b"x"))],
)
def test_a_difference_is_named(world: TaskWorld, kind: str, change: tuple[bytes, bytes | None], tmp_path: Path) -> None:
    world.open()
    world.commit(some(100))
    world.close()
    database = TaskDatabase(world.spec.folder, ["s"], ROCKS)
    database.database.write({"s": [change]})
    database.close()
    found = verified(world, tmp_path)
    assert [(change[0].hex(), kind)] == [(m.key, m.kind) for m in found.mismatches]
    assert found.store_digest != found.changelog_digest


def test_keys_that_were_changed_since_are_left_out(world: TaskWorld, tmp_path: Path) -> None:
    world.open()
    world.commit(some(100))
    world.commit_elsewhere({b"key-0001": b"newer", b"key-0002": None, b"new": b"1"})
    found = verified(world, tmp_path)
    assert (0, 98, 3, 0) == (found.batch, found.keys, found.changed_since, found.mismatch_count)


def test_a_sample_takes_about_so_many_keys_and_the_same_each_time(world: TaskWorld, tmp_path: Path) -> None:
    world.open()
    world.commit(some(1_000))
    found = verified(world, tmp_path, percent=10)
    assert found.keys == sum(is_sampled(key, 10) for key in some(1_000))
    assert 60 < found.keys < 140
    assert found == Verified(**{**vars(verified(world, tmp_path, percent=10)), "seconds": found.seconds})


def test_a_snapshot_that_would_give_another_store_is_told(world: TaskWorld, tmp_path: Path) -> None:
    world.open()
    world.commit(some(100))
    world.snapshot()
    world.commit({b"key-0001": b"again"})
    world.finish(1)

    def against() -> Verified:
        database = TaskDatabase(world.spec.folder, ["s"], ROCKS, read_only=True)
        try:
            return verify_against(world.spec, database, world.look_back().tasks[0], tmp_path / "work", pin_life_s=600)
        finally:
            database.close()

    found = against()
    assert ("snapshot 0", 1, 100, 0) == (found.against, found.batch, found.keys, found.mismatch_count)
    assert found.store_digest == found.changelog_digest
    world.close()
    database = TaskDatabase(world.spec.folder, ["s"], ROCKS)
    database.database.write({"s": [(b"key-0002", None)]})
    database.close()
    assert [(b"key-0002".hex(), "missing")] == [(m.key, m.kind) for m in against().mismatches]
    assert not (tmp_path / "work").exists()
