"""Killed at every step of a snapshot, a restore and a collection, with the objects in a folder or on an S3 server: every
manifest that exists can be restored, and the store comes back with exactly what was committed."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from statestore.config import ObjectsConfig
from statestore.failpoints import COLLECT_POINTS, LOAD_POINTS, RESTORE_POINTS, ROLLBACK_POINTS, SNAPSHOT_POINTS
from statestore.planning.plan import Way
from statestore.snapshots.collect import collect
from tests.support.killed import prepare, run_child
from tests.support.task import TaskWorld, config_of

Model = dict[bytes, bytes]
COUNT = 400


def changes(batch: int) -> dict[str, str]:
    """Half of a batch's keys are those of the batch before."""
    return {f"key-{batch * COUNT // 2 + number:06}": f"{batch}-{number}" * 20 for number in range(COUNT)}


def model_at(batch: int) -> Model:
    model: Model = {}
    for number in range(batch + 1):
        model |= {key.encode(): value.encode() for key, value in changes(number).items()}
    return model


def commit(batch: int) -> dict[str, Any]:
    return {"do": "commit", "changes": changes(batch)}


@dataclass
class Storage:
    """Where the objects are, and the folder that they are files of, whoever serves them."""

    config: ObjectsConfig
    folder: Path

    def age(self, seconds: float) -> None:
        """Make every object older, as if nobody had looked for so long."""
        for path in self.folder.rglob("*"):
            if path.is_file():
                about = path.stat()
                os.utime(path, (about.st_atime - seconds, about.st_mtime - seconds))


@pytest.fixture
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    """A folder, unless a test wants S3."""
    if getattr(request, "param", "folder") == "folder":
        return Storage(ObjectsConfig((tmp_path / "objects").as_uri()), tmp_path / "objects")
    server, prefix = request.getfixturevalue("s3proxy"), uuid.uuid4().hex
    return Storage(server.under(prefix), server.bucket_folder / prefix)


def at_each(points: Sequence[str], *, quick: Sequence[str]) -> pytest.MarkDecorator:
    """Every point with a folder and with S3; of those with S3 all but the quick ones are for a longer run."""
    s3 = [pytest.param("s3", point, marks=() if point in quick else pytest.mark.slow) for point in points]
    return pytest.mark.parametrize(
        ("storage", "point"), [*(("folder", point) for point in points), *s3], indirect=["storage"]
    )


OPEN, SNAPSHOT, COLLECT = {"do": "open"}, {"do": "snapshot"}, {"do": "collect"}


@pytest.fixture
def world(kafka: str, unique: str, tmp_path: Path, storage: Storage) -> Iterator[TaskWorld]:
    """Collections delete everything beyond the newest snapshot, however young, once the killed one's leases are over."""
    config = config_of(tmp_path, objects=storage.config, keep=1, retention_s=0.0, minimum_age_s=0.002, pin_life_s=0.001)
    # A child needs longer than its leases may live here, so it gets its own.
    world = TaskWorld(kafka, unique, tmp_path / "state", replace(config, pin_life_s=60, minimum_age_s=120))
    yield world
    world.close()


def require_sound(world: TaskWorld, tmp_path: Path, *, committed: int) -> None:
    """Every manifest restores to its batch, and the task opens at the last committed one."""
    for batch in world.repository.batches():
        assert model_at(batch) == world.restored(batch, tmp_path / "check")
        shutil.rmtree(tmp_path / "check")
    world.open()
    assert model_at(committed) == world.entries()
    left = {path.name for path in world.spec.folder.parent.iterdir()}
    assert {"0", "0.owner"} <= left


@at_each(SNAPSHOT_POINTS, quick=("snapshot.pinned", "snapshot.in-upload", "snapshot.manifest-put"))
def test_killed_while_taking_a_snapshot(world: TaskWorld, point: str, tmp_path: Path) -> None:
    steps = [OPEN, commit(0), SNAPSHOT, commit(1), SNAPSHOT]
    # Every point is met by each snapshot once; an upload's more often.
    answers, killed = run_child(world, steps, tmp_path / "points", kill_at=point, passes=1)
    assert killed
    first_only = len(answers) < 3
    require_sound(world, tmp_path, committed=0 if first_only else 1)
    # The work goes on: the next snapshot is taken, and the killed one's copy is gone.
    world.snapshot()
    assert not world.spec.folder.with_name("0.copy").exists()
    # After the killed one's pin has ended, nothing of it stays.
    _collect_after_leases(world)
    newest = world.repository.batches()
    assert 1 == len(newest)
    named = {file.sha256 for file in world.repository.read(newest[0]).files}
    assert named == set(world.repository.files())
    require_sound(world, tmp_path, committed=world.running.committed_batch)


def _collect_after_leases(world: TaskWorld) -> None:
    """A collection at a time when every lease and every minimum age is over."""
    from unittest.mock import patch

    assert world.config is not None
    real = collect.__globals__["put_dated_lease"]

    def later(*arguments: Any) -> Any:
        lease = real(*arguments)
        return replace(lease, now_s=lease.now_s + 3600)

    with patch.dict(collect.__globals__, {"put_dated_lease": later}):
        collect(world.repository, world.config)


@at_each(
    [*RESTORE_POINTS, "recover.before-replay", "recover.in-replay", "recover.after-replay"],
    quick=("restore.pinned", "restore.in-download"),
)
def test_killed_while_restoring(world: TaskWorld, point: str, tmp_path: Path) -> None:
    prepare(world, [OPEN, commit(0), SNAPSHOT, commit(1)])
    shutil.rmtree(world.spec.folder)
    answers, killed = run_child(world, [OPEN], tmp_path / "points", kill_at=point)
    assert killed and [] == answers
    require_sound(world, tmp_path, committed=1)
    assert not world.spec.folder.with_name("0.recovering").exists()


@pytest.mark.parametrize("point", LOAD_POINTS)
def test_killed_while_rebuilding_from_the_whole_changelog(world: TaskWorld, point: str, tmp_path: Path) -> None:
    model = {f"{number:06}": f"value-{number}" for number in range(12_000)}
    steps: list[dict[str, Any]] = [
        OPEN,
        {"do": "commit", "changes": model},
        {"do": "commit", "changes": dict.fromkeys(list(model)[::3], "new")},
    ]
    prepare(world, steps)
    # A store of another version is in the way: it goes when the new one is complete, and not before.
    shutil.rmtree(world.spec.folder)
    world.spec.folder.mkdir()
    (world.spec.folder / "CURRENT").write_text("nothing of RocksDB")
    # Several files, since a test's memtable is small.
    passes = 1 if point == "load.in-build" else 0
    answers, killed = run_child(world, [OPEN], tmp_path / "points", kill_at=point, passes=passes)
    assert killed and [] == answers
    renamed, between = point == "load.renamed", point == "load.before-rename"
    assert renamed is (not world.spec.folder.with_name("0.recovering").exists())
    assert between is not world.spec.folder.exists()
    assert (renamed or between) is world.spec.folder.with_name("0.replaced").exists()
    opened = world.open()
    # What was complete is not made again.
    assert (Way.NOTHING if renamed or between else Way.FULL_REPLAY) is opened.plan.way
    expected = model | dict.fromkeys(list(model)[::3], "new")
    assert {key.encode(): value.encode() for key, value in expected.items()} == world.entries()
    assert not world.spec.folder.with_name("0.recovering").exists()
    assert not world.spec.folder.with_name("0.replaced").exists()


@pytest.mark.parametrize("point", ROLLBACK_POINTS)
def test_killed_while_rolling_back(world: TaskWorld, point: str, tmp_path: Path) -> None:
    prepare(world, [OPEN, commit(0)])
    world.spec.folder.with_name("0.recovering").mkdir()
    answers, killed = run_child(world, [OPEN], tmp_path / "points", kill_at=point)
    assert killed and [] == answers
    assert Way.ROLL_BACK is world.open().plan.way
    assert model_at(0) == world.entries()
    assert not world.spec.folder.with_name("0.recovering").exists()


@at_each(COLLECT_POINTS, quick=("collect.in-manifests", "collect.in-files"))
def test_killed_while_collecting(kafka: str, unique: str, storage: Storage, point: str, tmp_path: Path) -> None:
    config = config_of(tmp_path, objects=storage.config, keep=1, retention_s=0.0, minimum_age_s=10.0, pin_life_s=5.0)
    world = TaskWorld(kafka, unique, tmp_path / "state", config)
    steps: list[dict[str, Any]] = [OPEN]
    for batch in range(3):
        steps += [commit(batch), SNAPSHOT]
    prepare(world, steps)
    storage.age(3600)
    answers, killed = run_child(world, [COLLECT], tmp_path / "points", kill_at=point)
    assert killed and [] == answers
    require_sound(world, tmp_path, committed=2)
    # The next collection ends what the killed one began.
    storage.age(3600)
    collected = collect(world.repository, config)
    assert (2,) == collected.snapshots_kept
    named = {file.sha256 for file in world.repository.read(2).files}
    assert named == set(world.repository.files())
    assert [] == list(world.repository.objects.list(world.repository.layout.marks))
    require_sound(world, tmp_path, committed=2)
    world.close()
