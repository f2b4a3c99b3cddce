"""A store server that hangs and holds a task's folder is ended by the next one, and nobody else is."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from statestore.lockholder import FolderLock, end_zombie
from statestore.rocks.errors import LockHeld

HOLDER = """
import sys
from pathlib import Path
from statestore.lockholder import FolderLock
lock = FolderLock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "task"


@pytest.fixture
def zombie(folder: Path) -> Iterator[psutil.Process]:
    """A process that is called as a store server is, holds the folder and is stopped."""
    # What it is called by stands behind its code.
    command = [sys.executable, "-c", HOLDER, str(folder), "statestore.server"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None and child.stdout.readline() == "held\n"
        process = psutil.Process(child.pid)
        process.suspend()
        yield process
        child.kill()


def test_a_zombie_is_ended_and_the_folder_is_free(folder: Path, zombie: psutil.Process) -> None:
    with pytest.raises(LockHeld):
        FolderLock(folder)
    assert end_zombie(folder)
    FolderLock(folder).close()
    assert not zombie.is_running() or zombie.status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("moved_s", [-86_400, -1, 1, 30])
def test_a_zombie_is_known_when_the_clock_has_been_set(
    folder: Path, zombie: psutil.Process, monkeypatch: pytest.MonkeyPatch, moved_s: int
) -> None:
    moved = psutil.boot_time() + moved_s
    created = zombie.create_time()
    # The kernel computes the time of its boot from the clock.
    monkeypatch.setattr(psutil._psplatform, "boot_time", lambda: moved)
    assert psutil.Process(zombie.pid).create_time() == pytest.approx(created + moved_s)
    assert end_zombie(folder)
    FolderLock(folder).close()


def test_another_process_of_the_same_number_is_left_alone(folder: Path, zombie: psutil.Process) -> None:
    path = folder.with_name(f"{folder.name}.owner")
    about = json.loads(path.read_text())
    path.write_text(json.dumps({**about, "started_s": about["started_s"] - 100}))
    assert not end_zombie(folder)
    path.write_text(json.dumps({"pid": psutil.Process().ppid(), "started_s": 0.0}))
    assert not end_zombie(folder)
    path.write_text("")
    assert not end_zombie(folder)
    assert zombie.is_running()


def test_a_lock_on_a_full_disk_is_not_held_by_who_did_not_get_it(folder: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with pytest.raises(OSError, match="too large") as kept:
            FolderLock(folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    FolderLock(folder).close()
    # Alive until here, and with it whatever the one that failed still had open.
    assert kept.value.errno
