"""The home: the folder in which a service keeps on this machine whatever need not be elsewhere. It is its user's alone."""

from __future__ import annotations

from pathlib import Path


def in_home(home: Path, name: str = "") -> Path:
    """The home's folder of this name, or the home itself, made if need be, both for this user alone.

    One after the other: `mkdir` gives a folder that it makes above the last one the mode that everybody may read.
    """
    for folder in (home, home / name):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return home / name
