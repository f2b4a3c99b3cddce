"""The superseded versions of one key in one segment of a versioned store, and their bytes.

    next time (8) · oldest time (8) · { valid from (8), value size (4) }, newest first · values, oldest first

All integers are big-endian and signed. A version is valid from its own time up to the time of the one above it; the
newest is valid up to `next time`, which lies in the segment. Size -1 is a tombstone (an empty value has size 0). The
count is not stored: the list ends at the version whose time is the oldest.

A tombstone that supersedes nothing and is superseded by nothing has no interval yet. It is kept as a row whose next
and oldest times are both its own: a marker, replaced by the first real neighbour that joins it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

from statestore.errors import DataCorrupted

_BOUNDS = struct.Struct(">qq")
_VERSION = struct.Struct(">qi")
_TOMBSTONE = -1

Version = tuple[int, bytes | None]


@dataclass(frozen=True)
class History:
    """`versions` are (valid from, value), newest first, without gaps between them; at least one."""

    next_ms: int
    versions: tuple[Version, ...]

    @classmethod
    def of(cls, value: bytes | None, valid_from_ms: int, valid_to_ms: int) -> History:
        """A row of one version."""
        return cls(valid_to_ms, ((valid_from_ms, value),))

    @classmethod
    def marker(cls, time_ms: int) -> History:
        """A tombstone without interval."""
        return cls.of(None, time_ms, time_ms)

    @property
    def oldest_ms(self) -> int:
        """From when the oldest version is valid."""
        return self.versions[-1][0]

    @property
    def is_marker(self) -> bool:
        """Whether the row is a tombstone without interval."""
        return self.next_ms == self.oldest_ms

    def at(self, time_ms: int) -> int:
        """The index of the version valid at `time_ms`, which must lie between the row's bounds."""
        return next(index for index, (valid_from, _) in enumerate(self.versions) if valid_from <= time_ms)

    def valid_to(self, index: int) -> int:
        """Until when the version at `index` is valid, exclusive."""
        return self.next_ms if index == 0 else self.versions[index - 1][0]

    def replaced(self, index: int, time_ms: int, value: bytes | None) -> History:
        """The version at `index` exchanged for another."""
        return replace(self, versions=(*self.versions[:index], (time_ms, value), *self.versions[index + 1 :]))

    def inserted(self, index: int, time_ms: int, value: bytes | None) -> History:
        """A version put above the one at `index`."""
        return replace(self, versions=(*self.versions[:index], (time_ms, value), *self.versions[index:]))

    def with_oldest(self, time_ms: int, value: bytes | None) -> History:
        """A version put below all others, valid up to the oldest of them."""
        kept = () if self.is_marker else self.versions
        return replace(self, versions=(*kept, (time_ms, value)))

    def with_newest(self, value: bytes | None, valid_from_ms: int, valid_to_ms: int) -> History:
        """A version put above all others; a gap below it was a deletion and becomes a tombstone.

        Versions that reach past `valid_from_ms` are left over from a put of which a store without transactions kept
        only the first half; they are cut off.
        """
        row = self if valid_from_ms >= self.next_ms else self._cut(valid_from_ms)
        below = () if row.is_marker else row.versions
        if row.next_ms < valid_from_ms:
            below = ((row.next_ms, None), *below)
        return History(valid_to_ms, ((valid_from_ms, value), *below))

    def _cut(self, time_ms: int) -> History:
        kept = tuple(version for version in self.versions if version[0] < time_ms)
        return History(time_ms, kept) if kept else History.marker(time_ms)

    def to_bytes(self) -> bytes:
        """The stored form."""
        parts = [_BOUNDS.pack(self.next_ms, self.oldest_ms)]
        parts += [_VERSION.pack(time, _TOMBSTONE if value is None else len(value)) for time, value in self.versions]
        parts += [value for _, value in reversed(self.versions) if value is not None]
        return b"".join(parts)

    @classmethod
    def from_bytes(cls, raw: bytes) -> History:
        """Reads what `to_bytes` wrote. Raises `DataCorrupted` for anything else."""
        try:
            next_ms, oldest_ms = _BOUNDS.unpack_from(raw)
            versions: list[Version] = []
            at, end, time = _BOUNDS.size, len(raw), None
            while time != oldest_ms:
                time, size = _VERSION.unpack_from(raw, at)
                at += _VERSION.size
                end -= max(size, 0)
                versions.append((time, None if size == _TOMBSTONE else raw[end : end + size]))
        except struct.error as error:
            raise DataCorrupted("a row of versions is cut off", bytes=len(raw)) from error
        if at != end:
            raise DataCorrupted("a row of versions has the wrong length", bytes=len(raw), surplus=end - at)
        return cls(next_ms, tuple(versions))
