"""Processes of ours: whether one that somebody wrote down still runs, and what those that were killed have left."""

from __future__ import annotations

import shutil
from pathlib import Path

import psutil

# The boot time, from which creation times are computed, moves when the clock is set; no pid comes back that fast.
_SAME_S = 1.5


def runs(pid: int, started: float | None = None) -> bool:
    """Whether the process is at work: one that nobody has reaped yet is not.

    With `started`, seconds since the epoch as psutil tells it, another process that got the number since does not count.
    """
    try:
        process = psutil.Process(pid)
        same = started is None or abs(process.create_time() - started) <= _SAME_S
        return same and bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def remove_left(parent: Path, prefix: str = "") -> None:
    """Remove the folders `<prefix>...-<pid>` in `parent` whose process runs no more, and what was built beside them."""
    for folder in parent.glob(f"{prefix}*"):
        pid = folder.name.rpartition("-")[2].partition(".")[0]
        if pid.isdigit() and not runs(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)
