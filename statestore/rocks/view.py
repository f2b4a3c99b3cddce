"""Spaces as they were at one moment, by iterators that keep it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from threading import Lock

import rocksdict as rd

from statestore.errors import InvalidStateStore
from statestore.iterator import Flat
from statestore.rocks.errors import translated
from statestore.rocks.scan import CHUNK, cut
from statestore.store import Entry

# So many entries are read at once, by an iterator that others use, too.
_FEW = 64


class Pinned:
    """One RocksDB iterator, which sees its family as it was when it was made, shared by all reads of a view."""

    def __init__(self, family: rd.Rdict, folder: Path) -> None:
        self._folder = folder
        self._lock = Lock()
        try:
            self._iterator: rd.RdictIter | None = family.iter()
        except Exception as error:
            raise translated(error, folder) from error
        # The binding's iterator does not keep its family alive, which may be dropped meanwhile. It is let go of first.
        self._family: rd.Rdict | None = family
        # Where `few` has left the iterator: at `_here`, the first key after `_passed`.
        self._passed = self._here = b""

    def get(self, key: bytes) -> bytes | None:
        found = self.read(key, reverse=False, most=1)
        return found[0][1] if found and found[0][0] == key else None

    def read(self, first: bytes | None, *, reverse: bool, most: int) -> list[Entry]:
        """At most so many entries from `first` on, which is included; None begins at the end."""
        with self._lock:
            if self._iterator is None:
                raise InvalidStateStore("store was closed under an iterator", folder=self._folder)
            self._passed = self._here = b""
            try:
                return self._read(self._iterator, first, reverse, most)
            except Exception as error:
                raise translated(error, self._folder) from error

    def _read(self, at: rd.RdictIter, first: bytes | None, reverse: bool, most: int) -> list[Entry]:
        entries: list[Entry] = []
        try:
            if first is None:
                at.seek_to_last() if reverse else at.seek_to_first()
            else:
                at.seek_for_prev(first) if reverse else at.seek(first)
            while at.valid() and len(entries) < most:
                entries.append((at.key(), at.value()))
                at.prev() if reverse else at.next()
            at.status()
        finally:
            # An error keeps this frame, and must not keep the iterator.
            del at
        return entries

    def few(self, lower: bytes, upper: bytes) -> list[Entry] | None:
        """All entries between two keys, both included; None if they are `_FEW` or more."""
        with self._lock:
            if self._iterator is None:
                raise InvalidStateStore("store is closed", folder=self._folder)
            try:
                return self._few(self._iterator, lower, upper)
            except Exception as error:
                raise translated(error, self._folder) from error

    def _few(self, at: rd.RdictIter, lower: bytes, upper: bytes) -> list[Entry] | None:
        entries: list[Entry] = []
        key_here, value_here, go_on, add = at.key, at.value, at.next, entries.append
        try:
            # Keys are often asked for in their order: then the iterator is where it has to be.
            if not self._passed < lower <= self._here:
                at.seek(lower)
            self._passed = self._here = b""
            for key in islice(iter(key_here, None), _FEW):
                if key > upper:
                    self._passed, self._here = max(lower, upper), key
                    return entries
                add((key, value_here()))
                go_on()
            if len(entries) == _FEW:
                return None
            at.status()
            return entries
        finally:
            del at, key_here, value_here, go_on

    def pieces(self, first: bytes | None, *, reverse: bool) -> Iterator[list[Entry]]:
        """Everything from `first` on, in pieces, so that scans do not disturb each other."""
        entries = self.read(first, reverse=reverse, most=CHUNK)
        while entries:
            last = entries[-1][0]
            yield entries
            entries = self.read(last, reverse=reverse, most=CHUNK + 1)[1:]

    def release(self) -> None:
        """Let go of RocksDB; every further read fails."""
        with self._lock:
            self._iterator = self._family = None


class Present:
    """By space, an iterator of the present version, made when it is asked for; None while a write is under way.

    It stands around every write, which replaces the dict: what a late reader puts into the old one others do not find.
    """

    __slots__ = ("pinned",)

    def __init__(self) -> None:
        self.pinned: dict[str, Pinned] | None = {}

    def __enter__(self) -> None:
        self.pinned = None

    def __exit__(self, *_: object) -> None:
        self.pinned = {}


class View:
    """Some spaces of a database as they were at one moment.

    Made of iterators, since the binding's snapshots answer single keys only: their iterators see later writes.
    """

    def __init__(self, pinned: dict[str, Pinned]) -> None:
        self._pinned = pinned

    def get(self, space: str, key: bytes) -> bytes | None:
        """The value of one key then."""
        pinned = self._pinned.get(space)
        return None if pinned is None else pinned.get(key)

    def get_many(self, space: str, keys: list[bytes]) -> list[bytes | None]:
        """Values of the keys then, in their order."""
        return [self.get(space, key) for key in keys]

    def spaces(self) -> list[str]:
        """Names of the spaces that existed then, sorted."""
        return sorted(self._pinned)

    def scan(
        self,
        space: str,
        *,
        lower: bytes | None = None,
        upper: bytes | None = None,
        upper_inclusive: bool = True,
        reverse: bool = False,
    ) -> Iterator[Entry]:
        """Entries between two keys then."""
        pinned = self._pinned.get(space)
        if pinned is None:
            return iter(())
        pieces = pinned.pieces(upper if reverse else lower, reverse=reverse)
        return Flat.of(cut(pieces, lower, upper, upper_inclusive=upper_inclusive, reverse=reverse))

    def close(self) -> None:
        """Let go. Scans opened from it go on."""
        self._pinned = {}
