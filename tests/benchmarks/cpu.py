"""CPU time and memory of a system: all its processes, none of the broker's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil

# The first mark that a command line holds names its kind.
KINDS = (("jvm", "java"), ("servers", "statestore.server"), ("workers", "worker_daemon"), ("workers", "pyspark.daemon"))


def processes(root: int) -> Iterator[psutil.Process]:
    """The process and all below it."""
    parent = psutil.Process(root)
    yield parent
    yield from parent.children(recursive=True)


class CpuMeter:
    """Counts from when it is made.

    By process, since those that end, as Spark's idle workers do after a minute, take all that they ever spent out of a sum.
    What they spent of the time that counts is missing.
    """

    def __init__(self, root: int) -> None:
        self._root = root
        self._before = _by_process(root)

    def by_kind(self) -> dict[str, float]:
        """CPU seconds so far by kind of process: `jvm`, `servers`, `workers`, and `main` for the rest."""
        spent: dict[str, float] = {}
        for process, (kind, seconds) in _by_process(self._root).items():
            _, before = self._before.get(process, (kind, 0.0))
            spent[kind] = spent.get(kind, 0.0) + seconds - before
        return spent

    def seconds(self) -> float:
        """CPU seconds so far."""
        return sum(self.by_kind().values())


def _by_process(root: int) -> dict[psutil.Process, tuple[str, float]]:
    """Kind, and CPU seconds since its start, of each process."""
    found = {}
    for process in processes(root):
        try:
            command, times = " ".join(process.cmdline()), process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        kind = next((kind for kind, mark in KINDS if mark in command), "main")
        found[process] = kind, times.user + times.system
    return found


def allocated_bytes(root: int) -> dict[int, int]:
    """By process: resident memory that it has allocated; what it shares by a fork is divided among those that do.

    Pages of files (libraries, class archives) are not in it: how many others use them, and so its share, changes with
    what else runs on the machine.
    """
    found: dict[int, int] = {}
    for process in processes(root):
        try:
            rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        found[process.pid] = (
            next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss_Anon:")) * 1024
        )
    return found
