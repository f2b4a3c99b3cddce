"""Verifications side by side: each has a work folder of its own, and what killed ones left goes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

from ops.verification import _with_changelog
from pipelines.settings import Settings
from statestore.verification import Verified
from statestore.version import TaskDatabase
from tests.support.task import ROCKS, TaskWorld


def verified(world: TaskWorld, settings: Settings, tell: Callable[[str, str], None]) -> Verified:
    database = TaskDatabase(world.spec.folder, ["s"], ROCKS, read_only=True)
    try:
        return _with_changelog(world.spec, database, settings, tell, 100)
    finally:
        database.close()


def test_two_verifications_at_once_find_the_same_and_leave_nothing(kafka: str, unique: str, tmp_path: Path) -> None:
    world = TaskWorld(kafka, unique, tmp_path / "states", None)
    settings = Settings(home=tmp_path, bootstrap_servers=kafka)
    world.open()
    world.commit({b"key-%d" % number: b"%d" % number for number in range(200)})
    world.close()
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    killed, living = (world.spec.folder.with_name(f"0.verify-0-{pid}") for pid in (dead.pid, os.getppid()))
    killed.mkdir()
    living.mkdir()
    # Each is in the middle of its replay while the other one is.
    both = Barrier(2)

    def tell(_task: str, _detail: str) -> None:
        both.wait(30)

    with ThreadPoolExecutor(2) as threads:
        running = [threads.submit(verified, world, settings, tell) for _ in range(2)]
        found = [one.result() for one in running]
    assert [(200, 0), (200, 0)] == [(one.keys, one.mismatch_count) for one in found]
    assert [living] == list(living.parent.glob("0.verify*"))
