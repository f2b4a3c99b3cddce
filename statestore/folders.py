"""A task's folder is replaced as a whole: only a complete version is ever under its name."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from statestore.errors import Unavailable
from statestore.failpoints import reach

# What the file beside a task's folder ends with that says who owns it; `lockholder` makes it, and nobody removes it.
OWNER = ".owner"


def unfinished(folder: Path) -> Path:
    """Where a task's folder is built. What is left there belongs to a recovery that died."""
    return folder.with_name(f"{folder.name}.recovering")


def begun(folder: Path) -> Path:
    """`unfinished`, made anew and empty."""
    new = unfinished(folder)
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True, mode=0o700)
    return new


def replaced(folder: Path) -> Path:
    """Where what was under the name goes until the new one is there: while it exists, `unfinished` is complete."""
    return folder.with_name(f"{folder.name}.replaced")


def doubted(folder: Path) -> Path:
    """A file that is there until it is known that what is under the name is of use: unread yet, or found damaged.

    Such a store is not opened, and not deleted before its replacement is there: it may be the last copy. The file goes
    when the task has come up: what comes up beside it was read.
    """
    return folder.with_name(f"{folder.name}.doubted")


def take_place(folder: Path, *, points: str) -> None:
    """Rename `unfinished`, which is complete, to `folder`, durably; what was there is deleted.

    Failpoints begin with `points`.
    """
    old = replaced(folder)
    if old.exists():
        shutil.rmtree(old)
    if folder.exists():
        folder.rename(old)
    reach(f"{points}.before-rename")
    unfinished(folder).rename(folder)
    sync(folder.parent)
    reach(f"{points}.renamed")
    shutil.rmtree(old, ignore_errors=True)


def settle(folder: Path) -> None:
    """Before a folder is opened: go on where a crash has cut `take_place`."""
    old, new = replaced(folder), unfinished(folder)
    if not old.exists():
        return
    if not folder.exists():
        (new if new.exists() else old).rename(folder)
    sync(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def sync(path: Path) -> None:
    """Bring a file's content, or a folder's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise Unavailable("file or folder cannot be synced", path=path, error=error) from error
    finally:
        os.close(descriptor)
