"""The file that says a transaction in a temporary store is committed, and what its last write has to say.

    line 1   CRC-32 of line 2, 8 hex digits
    line 2   JSON: format, the metadata's space, its entries as pairs of hex strings (null deletes)

It appears whole or not at all: written under another name, synced, renamed, and the folder synced. Its deletion is
synced, too, before the temporary store takes another write, for a file that came back would commit that one.
"""

from __future__ import annotations

import json
import os
import zlib
from dataclasses import dataclass
from pathlib import Path

from statestore.errors import FormatUnsupported, TaskCorrupted
from statestore.failpoints import reach
from statestore.spaces.base import Change

FORMAT = 1


@dataclass(frozen=True)
class Metadata:
    """What goes in with the last copied write."""

    space: str
    entries: list[Change]

    def to_bytes(self) -> bytes:
        """Line 2."""
        pairs = [(key.hex(), None if value is None else value.hex()) for key, value in self.entries]
        return json.dumps({"format": FORMAT, "space": self.space, "entries": pairs}, separators=(",", ":")).encode()


class CommitFile:
    """One path. It exists while a committed transaction is being copied."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, metadata: Metadata) -> None:
        """Make the file, durably."""
        line = metadata.to_bytes()
        unnamed = self.path.with_name(self.path.name + ".tmp")
        with unnamed.open("wb") as file:
            file.write(b"%08x\n%s\n" % (zlib.crc32(line), line))
            file.flush()
            os.fsync(file.fileno())
        reach("secondary.commit-file-unnamed")
        unnamed.rename(self.path)
        self._sync_folder()

    def read(self) -> Metadata | None:
        """What it says; None if there is none. Raises `TaskCorrupted` if it is damaged."""
        try:
            checksum, line = self.path.read_bytes().rstrip(b"\n").split(b"\n")
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise TaskCorrupted("commit file is damaged", path=self.path) from error
        if checksum != b"%08x" % zlib.crc32(line):
            raise TaskCorrupted("commit file is damaged", path=self.path)
        fields = json.loads(line)
        if fields["format"] != FORMAT:
            raise FormatUnsupported(
                "commit file has another format", path=self.path, found=fields["format"], supported=FORMAT
            )
        entries = [
            (bytes.fromhex(key), None if value is None else bytes.fromhex(value)) for key, value in fields["entries"]
        ]
        return Metadata(fields["space"], entries)

    def delete(self) -> None:
        """Delete the file, durably. Harmless if there is none."""
        self.path.unlink(missing_ok=True)
        self._sync_folder()

    def _sync_folder(self) -> None:
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
