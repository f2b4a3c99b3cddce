"""SHA-256 of files, remembered by inode.

RocksDB never changes a table file, and a hard-link copy shares its inode with the live folder, so a file that was in
the snapshot before is not read again.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

_Identity = tuple[int, int, int, int]


def sha256_of(path: Path) -> str:
    """The content's digest in hexadecimal. The interpreter is free for others meanwhile."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Hashes:
    """Digests of one task's files. Keeps those of the newest copy only. Used by one thread at a time."""

    def __init__(self) -> None:
        self._known: dict[_Identity, str] = {}

    def of_folder(self, folder: Path) -> dict[str, tuple[str, int]]:
        """(sha256, bytes) of every file in a folder, by name."""
        found: dict[str, tuple[str, int]] = {}
        seen: dict[_Identity, str] = {}
        for path in sorted(folder.iterdir()):
            about = path.stat()
            identity = (about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns)
            # Only table files are never written again under their name.
            known = self._known.get(identity) if path.suffix == ".sst" else None
            seen[identity] = known or sha256_of(path)
            found[path.name] = (seen[identity], about.st_size)
        self._known = seen
        return found
