"""Pipelines that are desired to run for as long as a process of this home wants it, as `rollforward run` does.

    <home>/locks/<pipeline>.lent-<pid>     is there while that process wants it, and nobody else has

Whoever wants the pipeline to run takes the marks away, and it stays desired behind the end of those processes. What is
wanted on another machine, or over HTTP, does not reach them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pipelines.home import in_home

_LOCKS, _MARK = "locks", ".lent-"


@contextmanager
def lent(home: Path, pipeline: str) -> Iterator[Callable[[], bool]]:
    """Marks within that the pipeline is desired for as long as this process wants it; gives whether it still is so."""
    mark = in_home(home, _LOCKS) / f"{pipeline}{_MARK}{os.getpid()}"
    mark.touch()
    try:
        yield mark.exists
    finally:
        mark.unlink(missing_ok=True)


def keep(home: Path, pipeline: str) -> None:
    """What is desired for now stays so behind that."""
    for mark in (home / _LOCKS).glob(f"*{_MARK}*"):
        if mark.name.rpartition(_MARK)[0] == pipeline:
            mark.unlink(missing_ok=True)
