"""Snapshots that dropped pipelines have left: freed by their name, and nothing of those that live."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.snapshots import collect_dropped, repositories
from pipelines.deploy import deployed_queries
from pipelines.metastore.embedded import deploy, execute
from pipelines.metastore.statement import drop_pipeline
from statestore.snapshots.collect import Collected
from statestore.snapshots.leases import put_lease
from statestore.snapshots.repository import Repository
from tests.travel.test_pipelines import SQL, Written

AGE_S = 1_000
ROWS = {b"k%d" % number: b"0" for number in range(20)}


class Storage:
    """A deployed pipeline of two tasks with a snapshot of each."""

    def __init__(self, written: Written) -> None:
        self.written = written
        changed = {"snapshot_minimum_age_s": AGE_S, "snapshot_pin_life_s": AGE_S / 2}
        written.settings = written.settings.model_copy(update=changed)
        written.batch(ROWS, snapshot=True)

    @property
    def folder(self) -> Path:
        return self.written.settings.home / "snapshots"

    def files(self) -> set[str]:
        """All that is stored."""
        return {str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file()}

    def repositories(self) -> list[Repository]:
        return list(repositories(self.written.row, self.written.settings).values())

    def age(self) -> None:
        """Make everything older than the minimum age."""
        for path in self.folder.rglob("*"):
            if path.parent.name == "manifests":
                manifest = json.loads(path.read_bytes())
                path.write_text(json.dumps({**manifest, "taken_at_ms": manifest["taken_at_ms"] - 2_000 * AGE_S}))
            if path.is_file():
                at = path.stat().st_mtime - 2 * AGE_S
                os.utime(path, (at, at))

    def drop(self) -> None:
        execute(drop_pipeline(self.written.row.name), self.written.settings)

    def deploy_again(self) -> None:
        written, name = self.written, self.written.row.name
        deploy(SQL.format(topic=written.source.name), name, written.settings, written.registry)
        written.row = written.registry.pipeline(name)
        written.deployed, written.models = deployed_queries(written.row)[0], []

    def collect(self, *, dry_run: bool = False) -> list[Collected]:
        written, name = self.written, self.written.row.name
        return collect_dropped(written.registry, name, written.settings, lambda _t, _d: None, dry_run=dry_run)


@pytest.fixture
def storage(kafka: str, unique: str, tmp_path: Path) -> Iterator[Storage]:
    storage = Storage(Written(kafka, unique, tmp_path / "home"))
    yield storage
    storage.written.registry.close()


def test_what_is_deployed_is_not_dropped_however_old(storage: Storage) -> None:
    storage.age()
    before = storage.files()
    assert [] == storage.collect()
    assert before == storage.files()


def test_a_dropped_pipeline_s_snapshots_go_when_they_are_old_enough(storage: Storage) -> None:
    storage.drop()
    before = storage.files()
    assert [((), 0)] * 2 == [(one.snapshots_deleted, one.files_deleted) for one in storage.collect()]
    assert before == storage.files()
    storage.age()
    told = storage.collect(dry_run=True)
    assert [(0,), (0,)] == [one.snapshots_deleted for one in told]
    assert before == storage.files()
    assert sum(one.bytes_freed for one in told) == sum(one.bytes_freed for one in storage.collect()) > 0
    assert set() == storage.files()
    assert [] == storage.collect()


def test_a_pinned_file_of_a_dropped_pipeline_stays(storage: Storage) -> None:
    repository = storage.repositories()[0]
    file = repository.read(0).files[0].sha256
    storage.drop()
    storage.age()
    pin = put_lease(repository.objects, repository.layout.pins, "restore", [file], AGE_S / 2)
    storage.collect()
    assert {repository.layout.file(file), pin.key} == storage.files()


def test_a_name_that_is_deployed_again_keeps_its_new_snapshots(storage: Storage) -> None:
    old = [repository.layout.prefix for repository in storage.repositories()]
    storage.drop()
    storage.deploy_again()
    storage.written.batch(ROWS, snapshot=True)
    storage.age()
    assert sorted(old) == sorted(one.prefix for one in storage.collect())
    left = storage.repositories()
    assert all(repository.is_whole(repository.read(0)) for repository in left)
    assert all(any(key.startswith(one.layout.prefix) for one in left) for key in storage.files())
    assert ROWS == storage.written.content(storage.written.deployed)
