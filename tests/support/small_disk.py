"""A disk of its own that can be filled: a tmpfs, which only root may mount."""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_CHUNK = 65_536


class SmallDisk:
    """The disk at `path`, of `size` as mount takes it; `close` unmounts it, and what is on it is gone."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def mounted(cls, path: Path, size: str) -> SmallDisk:
        """A new one."""
        path.mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)], check=True)
        return cls(path)

    @contextmanager
    def full(self) -> Iterator[Callable[[], None]]:
        """No byte is free. Gives what makes it so again when something was deleted meanwhile."""
        ballast = self.path / "ballast"

        def fill() -> None:
            with ballast.open("ab", buffering=0) as file:
                try:
                    while True:
                        file.write(b"\0" * _CHUNK)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise

        try:
            fill()
            yield fill
        finally:
            ballast.unlink()

    def close(self) -> None:
        """Unmount it, whoever still has files open."""
        subprocess.run(["umount", "-l", str(self.path)], check=True)
