"""CPU time and memory of a system: all its processes, none of the broker's."""

from __future__ import annotations

from collections.abc import Iterator

import psutil

# The first mark that a command line holds names its kind.
KINDS = (("jvm", "java"), ("servers", "statestore.server"), ("workers", "worker_daemon"), ("workers", "pyspark.daemon"))


def processes(root: int) -> Iterator[psutil.Process]:
    """The process and all below it."""
    parent = psutil.Process(root)
    yield parent
    yield from parent.children(recursive=True)


def cpu_by_kind(root: int) -> dict[str, float]:
    """CPU seconds so far by kind of process: `jvm`, `servers`, `workers`, and `main` for the rest."""
    spent: dict[str, float] = {}
    for process in processes(root):
        try:
            command, times = " ".join(process.cmdline()), process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        kind = next((kind for kind, mark in KINDS if mark in command), "main")
        spent[kind] = spent.get(kind, 0.0) + times.user + times.system
    return spent


def cpu_seconds(root: int) -> float:
    """CPU seconds so far."""
    return sum(cpu_by_kind(root).values())


def resident_bytes(root: int) -> dict[int, int]:
    """By process: memory that it shares with no other, and what it shares divided among those that do (PSS)."""
    found: dict[int, int] = {}
    for process in processes(root):
        try:
            found[process.pid] = process.memory_full_info().pss
        except psutil.NoSuchProcess:
            continue
    return found
