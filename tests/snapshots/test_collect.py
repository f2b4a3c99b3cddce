"""What a collection deletes, what it never deletes, and what it does beside others."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import statestore.clock
from statestore.clock import Moment
from statestore.config import ObjectsConfig, SnapshotConfig
from statestore.errors import DataCorrupted, InvalidConfig, Unavailable
from statestore.objects.base import ObjectMissing, ObjectStore
from statestore.objects.local import LocalObjects
from statestore.snapshots.collect import collect
from statestore.snapshots.hashes import Hashes
from statestore.snapshots.layout import TaskLayout
from statestore.snapshots.leases import put_lease
from statestore.snapshots.manifest import Manifest
from statestore.snapshots.repository import Repository
from statestore.snapshots.restore import restore_snapshot
from statestore.snapshots.take import take_snapshot
from statestore.version import ChangelogPosition
from tests.objects.test_local import unreadable
from tests.support.faulty import DELAY_MAX_S, FaultyObjects

LIFE_S, AGE_S = 300.0, 600.0
CONFIG = SnapshotConfig(ObjectsConfig("file:///unused"), keep=1, retention_s=0, minimum_age_s=AGE_S, pin_life_s=LIFE_S)


class World:
    """Snapshots of folders with made-up files: what collections see of a store."""

    def __init__(self, folder: Path, objects: ObjectStore | None = None) -> None:
        self.folder = folder
        self.repository = Repository(objects or LocalObjects(folder / "objects"), TaskLayout("p/q/id/0/", "id"))

    def take(self, batch: int, files: dict[str, bytes]) -> None:
        copy = self.folder / f"copy-{batch}"
        copy.mkdir(parents=True)
        for name, body in files.items():
            (copy / name).write_bytes(body)
        about = Manifest("p", "q", 0, 1, "id", 1, "plan", 1, batch, 0, 0, {"s": ChangelogPosition("t", batch)}, (), "")
        assert take_snapshot(self.repository, about, copy, Hashes(), CONFIG).written

    def age(self, seconds: float) -> None:
        """Make everything older."""
        for path in (self.folder / "objects").rglob("*"):
            if path.is_file():
                at = path.stat().st_mtime - seconds
                os.utime(path, (at, at))

    def restored(self, batch: int) -> dict[str, bytes]:
        folder = self.folder / f"restored-{batch}"
        restore_snapshot(self.repository, self.repository.read(batch), folder, pin_life_s=LIFE_S)
        return {path.name: path.read_bytes() for path in folder.iterdir()}

    def collect(self, *, dry_run: bool = False, **changed: object) -> tuple[tuple[int, ...], int, int]:
        collected = collect(self.repository, replace(CONFIG, **changed), dry_run=dry_run)  # type: ignore[arg-type]
        return collected.snapshots_deleted, collected.files_deleted, collected.bytes_freed


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    world.take(1, {"a": b"shared", "b": b"old"})
    world.take(2, {"a": b"shared", "c": b"newer"})
    world.age(2 * AGE_S)
    yield world


def test_what_only_old_snapshots_name_is_deleted(world: World) -> None:
    assert ((1,), 1, len(b"old")) == world.collect()
    assert [2] == world.repository.batches()
    assert {"a": b"shared", "c": b"newer"} == world.restored(2)
    assert ((), 0, 0) == world.collect()


def test_a_dry_run_says_the_same_and_deletes_nothing(world: World) -> None:
    assert ((1,), 1, len(b"old")) == world.collect(dry_run=True)
    assert {"a": b"shared", "b": b"old"} == world.restored(1)
    assert ((1,), 1, len(b"old")) == world.collect()


def test_the_newest_and_the_young_are_kept(world: World) -> None:
    assert ((), 0, 0) == world.collect(keep=2)
    assert ((), 0, 0) == world.collect(retention_s=1e12)
    assert [1, 2] == world.repository.batches()


def test_a_young_file_is_kept_whoever_wrote_it(world: World) -> None:
    # A writer that was paused sends what nobody waits for any more.
    late = world.repository.layout.file("f" * 64)
    world.repository.objects.put(late, b"late")
    assert ((1,), 1, 3) == world.collect()
    assert world.repository.objects.head(late) is not None
    world.age(2 * AGE_S)
    assert ((), 1, 4) == world.collect()
    assert world.repository.objects.head(late) is None


def test_what_a_server_left_of_a_put_that_was_cut_off_is_deleted(world: World) -> None:
    left = world.repository.layout.files + "a" * 64 + "-0f3e"
    world.repository.objects.put(left, b"")
    world.age(2 * AGE_S)
    world.collect()
    assert world.repository.objects.head(left) is None


def test_pinned_files_stay_until_the_pin_ends(world: World) -> None:
    files = [file.sha256 for file in world.repository.read(1).files]
    objects, layout = world.repository.objects, world.repository.layout
    pin = put_lease(objects, layout.pins, "restore", files, LIFE_S)
    assert ((1,), 0, 0) == world.collect()
    assert set(files) <= set(world.repository.files())
    world.age(LIFE_S + 1)
    assert ((), 1, 3) == world.collect()
    assert objects.head(pin.key) is None


def test_a_snapshot_that_lost_a_file_does_not_count_as_the_one_to_keep(world: World) -> None:
    world.repository.objects.delete([world.repository.layout.file(world.repository.read(2).files[1].sha256)])
    assert ((), 0, 0) == world.collect()
    assert {"a": b"shared", "b": b"old"} == world.restored(1)


def test_one_unreadable_manifest_stops_the_collection(world: World) -> None:
    objects, layout = world.repository.objects, world.repository.layout
    body = objects.get(layout.manifest(2))
    objects.put(layout.manifest(2), body[:20])
    with pytest.raises(DataCorrupted, match="nothing is collected"):
        world.collect()
    assert {"a": b"shared", "b": b"old"} == world.restored(1)
    assert [] == list(objects.list(layout.marks))


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES])
def test_a_folder_of_manifests_that_cannot_be_read_stops_the_collection(
    world: World, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifests = world.folder / "objects" / world.repository.layout.manifests
    with monkeypatch.context() as patched:
        unreadable(manifests, code, patched)
        with pytest.raises((Unavailable, InvalidConfig)):
            world.collect()
    assert {"a": b"shared", "b": b"old"} == world.restored(1)
    assert {"a": b"shared", "c": b"newer"} == world.restored(2)


def test_a_collection_that_takes_too_long_stops_deleting(world: World) -> None:
    with pytest.raises(Unavailable, match="took longer"):
        world.collect(pin_life_s=0.0)
    assert [1, 2] == world.repository.batches()


def test_a_restore_that_begins_while_its_snapshot_goes_fails_or_is_whole(world: World) -> None:
    """Whichever step of a collection a restore meets, it gets the whole version or a clear refusal."""
    manifest = world.repository.read(1)
    for step, expected in enumerate(("whole", "whole", "gone", "gone")):
        folder = world.folder / f"case-{step}"
        case = World(folder)
        case.take(1, {"a": b"shared", "b": b"old"})
        case.take(2, {"a": b"shared", "c": b"newer"})
        case.age(2 * AGE_S)
        manifest = case.repository.read(1)
        outcome: list[str] = []

        def restore(case: World = case, manifest: Manifest = manifest, outcome: list[str] = outcome) -> None:
            try:
                restore_snapshot(case.repository, manifest, case.folder / "restored", pin_life_s=LIFE_S)
                outcome.append("whole")
            except ObjectMissing:
                outcome.append("gone")

        _collect_with(case, step, restore)
        assert [expected] == outcome
        assert {"a": b"shared", "c": b"newer"} == case.restored(2)


def _collect_with(case: World, step: int, work: object) -> None:
    """Collect, and do `work` when the collection reaches its `step`-th step."""
    names = ("collect.marked", "collect.listed", "collect.manifests-deleted", "collect.pins-read")

    pending = [names[step]]

    def reached(name: str) -> None:
        if name in pending:
            pending.remove(name)
            work()  # type: ignore[operator]

    with patch.dict(collect.__globals__, {"reach": reached}):
        case.collect()


def test_a_snapshot_that_begins_during_a_collection_waits_for_the_next(world: World) -> None:
    refused: list[str] = []
    for step in range(4):

        def take(step: int = step) -> None:
            with pytest.raises(Unavailable, match="being collected"):
                world.take(10 + step, {"b": b"old"})
            refused.append(str(step))

        _collect_with(world, step, take)
    assert ["0", "1", "2", "3"] == refused
    world.take(20, {"b": b"old"})
    assert {"b": b"old"} == world.restored(20)


def test_two_collections_at_once_are_harmless(world: World) -> None:
    def other() -> None:
        world.collect()

    for step in range(4):
        _collect_with(world, step, other)
    assert {"a": b"shared", "c": b"newer"} == world.restored(2)
    assert [] == list(world.repository.objects.list(world.repository.layout.marks))


def test_a_deletion_that_arrives_late_takes_nothing_that_was_reused_meanwhile(tmp_path: Path) -> None:
    """Its collection has failed by then, and may not let snapshots begin."""
    objects = FaultyObjects(LocalObjects(tmp_path / "objects"), chance=1.0)
    world = World(tmp_path, objects)
    world.take(1, {"a": b"shared", "b": b"old"})
    world.take(2, {"a": b"shared", "c": b"newer"})
    objects.advance(2 * AGE_S)
    deletions = []

    def files_late(keys: Iterable[str], delete: Callable[[Iterable[str]], None] = objects.delete) -> None:
        listed = list(keys)
        is_files = listed[0].startswith(world.repository.layout.files)
        deletions.append(is_files)
        objects.begin({"late"} if is_files else (), 0)
        try:
            delete(listed)
        finally:
            objects.begin((), 0)

    objects.delete = files_late  # type: ignore[method-assign]
    with pytest.raises(Unavailable):
        world.collect()
    assert deletions[1]
    with pytest.raises(Unavailable, match="being collected"):
        world.take(3, {"b": b"old"})
    objects.land()
    # What nobody waits for any more has arrived or is lost when the mark ends.
    objects.advance(LIFE_S + 1)
    world.take(4, {"b": b"old"})
    assert {"b": b"old"} == world.restored(4)


def test_nothing_is_deleted_at_the_end_of_a_marks_life(tmp_path: Path) -> None:
    """A deletion that is asked for then would take place when snapshots may begin."""
    objects = FaultyObjects(LocalObjects(tmp_path / "objects"))
    world = World(tmp_path, objects)
    world.take(1, {"b": b"old"})
    world.take(2, {"c": b"newer"})
    objects.advance(2 * AGE_S)
    with patch("statestore.snapshots.leases.Moment", objects.moment), pytest.raises(Unavailable, match="took longer"):
        _collect_with(world, 3, lambda: objects.advance(LIFE_S - 2 * DELAY_MAX_S / 3))
    assert {sha256(b"old").hexdigest(), sha256(b"newer").hexdigest()} == set(world.repository.files())


@pytest.mark.parametrize("clock", ["now_ms", "up_ms"])
def test_a_collection_that_wakes_up_behind_its_marks_life_deletes_no_file(
    world: World, clock: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The monotonic clock stands still while a machine sleeps, and its own clocks while a virtual one is paused."""
    was: Callable[[], int] = getattr(statestore.clock, clock)

    def sleep() -> None:
        monkeypatch.setattr(statestore.clock, clock, lambda: was() + int(LIFE_S * 1000))

    files = set(world.repository.files())
    with pytest.raises(Unavailable, match="took longer"):
        _collect_with(world, 3, sleep)
    assert files == set(world.repository.files())


def test_a_clock_that_is_put_back_makes_nothing_younger(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    moment, now_ms = Moment(), statestore.clock.now_ms
    monkeypatch.setattr(statestore.clock, "now_ms", lambda: now_ms() - 3_600_000)
    assert 0 <= moment.age_s() < 60


@pytest.mark.parametrize("call", ["put", "head"])
@pytest.mark.parametrize("fault", ["before", "after"])
def test_a_collection_that_fails_at_its_mark_leaves_none(tmp_path: Path, call: str, fault: str) -> None:
    """It would keep snapshots from being taken until its life is over."""
    objects = FaultyObjects(LocalObjects(tmp_path / "objects"), chance=1.0)
    world = World(tmp_path, objects)
    real = getattr(objects, call)

    def failing(*about: Any) -> Any:
        if fault == "after":
            real(*about)
        raise Unavailable("answer was lost")

    with patch.object(objects, call, failing), pytest.raises(Unavailable, match="answer was lost"):
        world.collect()
    world.take(1, {"a": b"1"})
    assert [] == list(objects.list(world.repository.layout.marks))


def test_a_collection_whose_mark_does_not_show_leaves_none(world: World) -> None:
    objects = world.repository.objects
    with patch.object(objects, "head", lambda _: None), pytest.raises(Unavailable, match="does not show"):
        world.collect()
    assert [] == list(objects.list(world.repository.layout.marks))
