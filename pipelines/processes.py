"""Processes of ours: how a driver that failed ends, and whether one that somebody wrote down still runs."""

from __future__ import annotations

import psutil

EXIT_FAILED = 4
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
