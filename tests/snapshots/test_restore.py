"""A restored snapshot outlives power loss: all of it is on the disk before it takes the place of what was there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from statestore.folders import take_place
from tests.snapshots.test_collect import World


def test_every_file_and_the_folder_are_synced_before_they_take_their_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    files = {"a": b"one", "b": b"another", "empty": b""}
    world.take(1, files)
    synced: set[str] = set()
    sync = os.fsync

    def noted(descriptor: int) -> None:
        sync(descriptor)
        synced.add(os.readlink(f"/proc/self/fd/{descriptor}"))

    def placed(folder: Path, **about: Any) -> None:
        new = folder.with_name(f"{folder.name}.recovering")
        assert {str(new), *(str(new / name) for name in files)} <= synced
        take_place(folder, **about)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr("statestore.snapshots.restore.take_place", placed)
    assert files == world.restored(1)
