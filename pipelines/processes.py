"""Processes of ours: whether one that somebody wrote down still runs, and what those that were killed have left.

A process is known by its number and its beginning. That is counted from the machine's boot: the kernel computes times of
day from its clock, and when that is set (a machine that was paused, a late answer of its time server) every process seems
to have begun at another moment. Processes of two boots may have the same number and the same seconds since the boot, so
the boot's own number is in front of them.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import psutil

# The boot time, which psutil adds to creation times, is known to the second; no pid comes back that fast.
_SAME_S = 1.5
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# Above every time of day in seconds, and so small that a double keeps eighths of a second beside 16 bits of the boot.
_BOOT = 2.0**33


def runs(pid: int, started: float | None = None) -> bool:
    """Whether the process is at work: one that nobody has reaped yet is not.

    With `started`, as `started_of` gave it, another process that got the number since does not count. Earlier builds
    wrote seconds since the epoch, as psutil tells them.
    """
    try:
        process = psutil.Process(pid)
        same = started is None or abs(_started(process, since_epoch=started < _BOOT) - started) <= _SAME_S
        return same and bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def started_of(pid: int) -> float:
    """When the process began, for `runs`: a number that does not change when the clock is set. Raises NoSuchProcess."""
    return _started(psutil.Process(pid), since_epoch=False)


def _started(process: psutil.Process, *, since_epoch: bool) -> float:
    boot = 0 if since_epoch else _boot()
    created: float = process.create_time()
    return created if boot == 0 else boot * _BOOT + created - psutil.boot_time()


def _boot() -> int:
    """The machine's boot as a number of 1 to 65,536; 0 where it has no id, and creation times do not move."""
    try:
        return 1 + int(_BOOT_ID.read_text()[:4], 16)
    except (OSError, ValueError):
        return 0


def remove_left(parent: Path, prefix: str = "") -> None:
    """Remove the folders `<prefix>...-<pid>` in `parent` whose process runs no more, and what was built beside them."""
    for folder in parent.glob(f"{prefix}*"):
        pid = folder.name.rpartition("-")[2].partition(".")[0]
        if pid.isdigit() and not runs(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)
