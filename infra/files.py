"""Small durable files, empty folders and the lock between processes.

Two things need care. `write_atomic` replaces a whole file: temporary file in the same folder, flush, sync, rename, so that a
reader sees the old or the new content and never a part; the folder is not synced, so after power loss the old content
may be back. `FileLock` is an exclusive flock(2) on a file that holds the owner's pid for messages only. The kernel
drops the lock with its process, so a killed owner never blocks anyone. A lock file may be deleted by its owner: whoever
waited for the deleted one notices and takes the new one.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from infra.errors import StackBusy

LOCK_POLL_S = 0.05


def write_atomic(path: Path, content: str) -> None:
    """Replaces a text file as a whole; its folder is made if need be, for this user alone."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def new_folder(path: Path) -> Path:
    """Makes the folder, empty and for this user alone; what was in it is gone."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Replaces a JSON file as a whole."""
    write_atomic(path, json.dumps(content, indent=2, sort_keys=True) + "\n")


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file; None when the file is missing, cut short or not an object."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


class FileLock:
    """Exclusive lock between processes and between threads; waits up to `timeout_s`, then raises StackBusy with the owner's pid."""

    def __init__(self, path: Path, *, timeout_s: float = 300.0) -> None:
        self._path = path
        self._timeout_s = timeout_s
        self._fd: int | None = None

    def __enter__(self) -> Self:
        deadline = time.monotonic() + self._timeout_s
        while (fd := self._try()) is None:
            if time.monotonic() >= deadline:
                raise StackBusy(
                    "another command holds the lock",
                    lock=self._path,
                    pid=self._owner(),
                    waited_s=self._timeout_s,
                    hint="wait for it to end, or stop that process and try again",
                )
            time.sleep(LOCK_POLL_S)
        self._fd = fd
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _try(self) -> int | None:
        # Of a home this is what makes it, where no other command has.
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A lock on a file that was deleted meanwhile excludes nobody: the next comer locks a new file of the same
            # name.
            if os.fstat(fd).st_ino != os.stat(self._path).st_ino:
                raise BlockingIOError
        except (BlockingIOError, FileNotFoundError):
            os.close(fd)
            return None
        os.ftruncate(fd, 0)
        os.write(fd, str(os.getpid()).encode())
        return fd

    def _owner(self) -> str:
        try:
            return self._path.read_text() or "unknown"
        except OSError:
            return "unknown"
