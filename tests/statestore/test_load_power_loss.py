"""Power loss while a changelog is loaded: what was not synced is lost, and what is left is the old or the new version.

A folder has the names that it had when this process last synced it; RocksDB's own syncs do not count. Logs are empty.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from statestore.columns import Columns
from statestore.config import RocksConfig
from statestore.failpoints import LOAD_COPY_POINTS, LOAD_POINTS
from statestore.folders import take_place
from statestore.kinds.base import Kind
from statestore.kinds.key_value import KeyValue
from statestore.kinds.window import Window
from statestore.layouts import window as layout
from statestore.load import beside
from statestore.rocks.database import Database
from statestore.store import TransactionalMechanism
from statestore.taskstores import TaskStores
from tests.statestore.crashes import Killed, dying

KEYS = [b"%04d" % number for number in range(3_000)]
# `load.in-build` is met where Kafka is read.
POINTS = [point for point in (*LOAD_COPY_POINTS, *LOAD_POINTS) if point != "load.in-build"]


class Disk:
    """What is on the disk of everything below a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._names: dict[int, dict[str, int]] = {}
        self._sync = os.fsync
        for folder in (root, *(path for path in root.rglob("*") if path.is_dir())):
            self._remember(folder)

    def _remember(self, folder: Path) -> None:
        self._names[folder.stat().st_ino] = {path.name: path.stat().st_ino for path in folder.iterdir()}

    def fsync(self, descriptor: int) -> None:
        """In the place of `os.fsync`."""
        self._sync(descriptor)
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            self._remember(Path(os.readlink(f"/proc/self/fd/{descriptor}")))

    def left(self, copy: Path) -> None:
        """Make `copy` what the next start finds."""
        self._copied(self.root, copy, {path.stat().st_ino: path for path in self.root.rglob("*")})

    def _copied(self, folder: Path, copy: Path, where: dict[int, Path]) -> None:
        copy.mkdir()
        for name, number in self._names.get(folder.stat().st_ino, {}).items():
            path = where.get(number)
            if path is None:
                continue
            if path.is_dir():
                self._copied(path, copy / name, where)
            elif path.suffix == ".log":
                (copy / name).touch()
            else:
                shutil.copy2(path, copy / name)


class Task:
    """A key-value and a window store: the first commit is written, the second one loaded."""

    def __init__(self, folder: Path) -> None:
        self.task = TaskStores(folder)
        self.stores = self._opened(self.task)
        values, windows = self.stores
        for key in KEYS[::2]:
            values.put(key, b"old")
            windows.put(key, b"old", 0)
        for store in self.stores:
            store.commit(1)
        self.task.database.flush()

    def _opened(self, task: TaskStores) -> tuple[KeyValue, Window]:
        mechanism = TransactionalMechanism.INDEXED_BATCH
        lengths: dict[str, Any] = {"retention_ms": 100, "window_size_ms": 10, "segment_interval_ms": 50}
        stores = KeyValue("s", mechanism=mechanism), Window("w", **lengths, mechanism=mechanism)
        for store in stores:
            store.init(task)
        return stores

    def load(self) -> None:
        for store in self.stores:
            store.close()
        values, windows = self.stores
        with beside(self.task.committed, RocksConfig(), copied=self.task.database) as database:
            self._load(database, values, KEYS)
            # The segments are new ones, and the old one expires.
            self._load(database, windows, [layout.pack(key, 200 + row % 60) for row, key in enumerate(KEYS)])
        self.task.close()
        take_place(self.task.committed, points="load")

    def _load(self, database: Database, store: Kind, keys: list[bytes]) -> None:
        for space, entries in store.load(Columns.of(keys, [b"new"] * len(keys), [0] * len(keys), len(keys))).items():
            database.load(space, entries)
        for space in store.expired(database.spaces()):
            database.drop(space)
        database.write(store.loaded(offset=2, topic_id="t"), sync=True)

    def found(self, folder: Path) -> int | None:
        """Which commit is there, whole."""
        task = TaskStores(folder)
        values, windows = self._opened(task)
        offset = values.committed_offset()
        assert offset == windows.committed_offset()
        keys, value = (KEYS, b"new") if offset == 2 else (KEYS[::2], b"old")
        assert dict.fromkeys(keys, value) == dict(values.all())
        assert dict.fromkeys(keys, value) == {window.key: found for window, found in windows.all()}
        task.close()
        return offset


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Task, Disk]]:
    task = Task(tmp_path / "task")
    disk = Disk(task.task.folder)
    monkeypatch.setattr(os, "fsync", disk.fsync)
    yield task, disk
    task.task.close()


@pytest.mark.parametrize("point", POINTS)
def test_power_loss_at_each_step_of_a_load_leaves_the_old_or_the_new_version(
    disk: tuple[Task, Disk], point: str, tmp_path: Path
) -> None:
    task, unsynced = disk
    with pytest.raises(Killed), dying([point], task.task.folder, tmp_path / "killed"):
        task.load()
    unsynced.left(tmp_path / "left")
    assert (2 if point == "load.renamed" else 1) == task.found(tmp_path / "left")
    # Death of the process alone loses nothing of what was written.
    assert (2 if point in ("load.before-rename", "load.renamed") else 1) == task.found(tmp_path / "killed")


def test_what_was_loaded_outlives_power_loss(disk: tuple[Task, Disk], tmp_path: Path) -> None:
    task, unsynced = disk
    task.load()
    unsynced.left(tmp_path / "left")
    assert 2 == task.found(tmp_path / "left")
