"""RocksDB's errors become ours here: which of them a restore mends, and which somebody else."""

from __future__ import annotations

from pathlib import Path

import rocksdict as rd

from statestore.errors import InvalidStateStore, RollforwardError, TaskCorrupted, Unavailable

# Of what reading and writing an open store may fail of, what the files themselves are to blame for.
_DAMAGE = ("corruption", "input/output error", "no such file")


class LockHeld(RollforwardError):
    """Another process has this folder open."""


def translated(error: Exception, folder: Path) -> RollforwardError:
    text = str(error)
    lowered = text.lower()
    if isinstance(error, rd.DbClosedError):
        return InvalidStateStore("store is closed", folder=folder)
    if "lock" in lowered and ("hold by" in lowered or "temporarily unavailable" in lowered):
        return LockHeld("store folder is locked by another process", folder=folder)
    if "no space left" in lowered:
        return Unavailable("disk is full", folder=folder, hint="free space on the disk of the state folder")
    return TaskCorrupted("rocksdb failed", folder=folder, error=text)


def is_damage(error: TaskCorrupted) -> bool:
    """Whether the store's files are to blame, and not the moment, as with too many open files."""
    return any(sign in str(error).lower() for sign in _DAMAGE)
