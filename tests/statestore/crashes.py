"""Death inside one process: the folder is copied at the moment, as `kill -9` would leave it, and the call ends there.

The operating system keeps what a killed process has written, so a copy of the files is what the next process finds.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from statestore import failpoints


class Killed(BaseException):
    """The process died at this point. No `except Exception` may stop it."""

    def __init__(self, point: str) -> None:
        super().__init__(point)
        self.point = point


def photograph(folder: Path, copy: Path) -> None:
    """Copy a task's folder as it is at this moment, though RocksDB may be at work in the background."""
    while True:
        shutil.rmtree(copy, ignore_errors=True)
        try:
            before = _sizes(folder)
            shutil.copytree(folder, copy)
            if before == _sizes(folder) == _sizes(copy):
                return
        except (FileNotFoundError, shutil.Error):
            continue


def _sizes(folder: Path) -> dict[str, int]:
    # The info log tells what RocksDB does, and is not part of the state.
    return {
        str(path.relative_to(folder)): path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith("LOG")
    }


@contextmanager
def dying(points: Iterable[str], folder: Path, copy: Path, *, passes: int = 0) -> Iterator[None]:
    """Within, when one of the points is reached for the `passes + 1`-th time, the folder is copied and `Killed` raised."""
    left = passes
    dead: Killed | None = None
    with TemporaryDirectory() as armed, pytest.MonkeyPatch.context() as patch:

        def die(_by: signal.Signals) -> None:
            nonlocal left, dead
            if dead is not None:
                # Only here is anything cleaned up on the way out: a killed process comes to no further point.
                raise dead
            (point,) = (point for point in points if not failpoints.is_armed(Path(armed), point))
            if left == 0:
                photograph(folder, copy)
                dead = Killed(point)
                raise dead
            left -= 1
            failpoints.arm(Path(armed), point)

        for point in points:
            failpoints.arm(Path(armed), point)
        patch.setattr(failpoints, "FOLDER", armed)
        patch.setattr(failpoints, "die", die)
        yield
