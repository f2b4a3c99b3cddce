"""A real S3 server killed in the middle of a snapshot or a restore, and started again.

Whether the work outlasts it or fails: every manifest that exists can be restored, a folder is of one version, and the
next attempt succeeds.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest

from infra.s3 import BUCKET
from statestore.config import ObjectsConfig, SnapshotConfig
from statestore.errors import Unavailable
from statestore.objects.s3 import S3Objects
from statestore.snapshots.hashes import Hashes
from statestore.snapshots.layout import TaskLayout
from statestore.snapshots.manifest import Manifest
from statestore.snapshots.repository import Repository
from statestore.snapshots.restore import restore_snapshot
from statestore.snapshots.take import Taken, take_snapshot
from statestore.version import ChangelogPosition
from tests.support.s3 import RunningServer

LIFE_S = 300.0
CONFIG = SnapshotConfig(ObjectsConfig("file:///unused"), pin_life_s=LIFE_S, minimum_age_s=2 * LIFE_S)
# More than one part each.
FILE_BYTES = 6 * 1024 * 1024
NAMES = ("a", "b", "c", "d", "e", "f")
Files = dict[str, bytes]


class World:
    """Snapshots of folders with made-up files on a server, two transfers at once."""

    def __init__(self, server: RunningServer, folder: Path, *, attempts: int) -> None:
        self.folder = folder
        self.server = server
        self.attempts = attempts
        prefix = uuid.uuid4().hex
        config = server.under(
            prefix, attempts=attempts, parallel=2, part_bytes=5 * 1024 * 1024, bandwidth_bytes_per_s=64 * 1024 * 1024
        )
        self.objects = S3Objects(BUCKET, prefix, config)
        self.repository = Repository(self.objects, TaskLayout("p/q/id/0/", "id"))

    def take(self, batch: int, files: Files) -> Taken:
        copy = self.folder / f"copy-{batch}"
        copy.mkdir(exist_ok=True)
        for name, body in files.items():
            (copy / name).write_bytes(body)
        about = Manifest("p", "q", 0, 1, "id", 1, "plan", 1, batch, 0, 0, {"s": ChangelogPosition("t", batch)}, (), "")
        return take_snapshot(self.repository, about, copy, Hashes(), CONFIG)

    def restore(self, batch: int, folder: Path) -> None:
        restore_snapshot(self.repository, self.repository.read(batch), folder, pin_life_s=LIFE_S)

    @contextmanager
    def killed_at(self, point: str) -> Iterator[None]:
        """The server dies when the work within reaches the point, and is back a moment later. It does reach it, early."""
        module = "take" if point.startswith("snapshot") else "restore"
        arrived: list[str] = []

        def reached(name: str) -> None:
            arrived.append(name)
            if arrived.count(point) == 1 and name == point:
                self.server.kill()
                self.server.start()

        with patch(f"statestore.snapshots.{module}.reach", reached):
            yield
        assert point in arrived

    def outcome(self, point: str, work: Callable[[], object]) -> bool:
        """Whether the work outlasted the server. In the middle of transfers one attempt is not enough."""
        outlasted = True
        with self.killed_at(point):
            try:
                work()
            except Unavailable:
                outlasted = False
        assert not (outlasted and self.attempts == 1 and ".in-" in point)
        return outlasted


@pytest.fixture(params=[1, 6])
def world(request: pytest.FixtureRequest, server: RunningServer, tmp_path: Path) -> Iterator[World]:
    """Of one attempt a request, which fails, and of six, which may outlast it."""
    world = World(server, tmp_path, attempts=request.param)
    yield world
    world.objects.close()


@pytest.fixture(params=["s3proxy", pytest.param("ministack", marks=pytest.mark.slow)])
def server(request: pytest.FixtureRequest) -> RunningServer:
    found: RunningServer = request.getfixturevalue(request.param)
    return found


def content(folder: Path) -> Files:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(
    "point",
    ["snapshot.in-upload", *(pytest.param(f"snapshot.{at}", marks=pytest.mark.slow) for at in ("pinned", "uploaded"))],
)
def test_every_manifest_can_be_restored_after_a_server_died_in_a_snapshot(world: World, point: str) -> None:
    first, second = ({name: os.urandom(FILE_BYTES) for name in NAMES} for _ in range(2))
    versions = {1: first, 2: {**second, "a": first["a"]}}
    world.take(1, versions[1])
    outlasted = world.outcome(point, lambda: world.take(2, versions[2]))
    there = world.repository.batches()
    assert ([1, 2] if outlasted else [1]) == there
    for batch in there:
        world.restore(batch, world.folder / "check")
        assert versions[batch] == content(world.folder / "check")
    world.take(2, versions[2])
    world.restore(2, world.folder / "check")
    assert versions[2] == content(world.folder / "check")


@pytest.mark.parametrize("point", ["restore.in-download", pytest.param("restore.pinned", marks=pytest.mark.slow)])
def test_a_folder_is_of_one_version_after_a_server_died_in_a_restore(world: World, point: str) -> None:
    old, new = {"old": b"1"}, {name: os.urandom(FILE_BYTES) for name in NAMES}
    world.take(1, old)
    world.take(2, new)
    folder = world.folder / "store"
    world.restore(1, folder)
    outlasted = world.outcome(point, lambda: world.restore(2, folder))
    assert (new if outlasted else old) == content(folder)
    assert [1, 2] == world.repository.batches()
    world.restore(2, folder)
    assert new == content(folder)
