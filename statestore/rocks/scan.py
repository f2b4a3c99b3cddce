"""Iterations over a family as it is, in pieces between two bounds."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from threading import Lock

import rocksdict as rd

from statestore.errors import InvalidStateStore
from statestore.iterator import piece_sizes
from statestore.rocks.errors import translated
from statestore.store import Entry

# So many entries are read or looked up at once.
CHUNK = 1000


def cut(
    pieces: Iterable[list[Entry]], lower: bytes | None, upper: bytes | None, *, upper_inclusive: bool, reverse: bool
) -> Iterator[list[Entry]]:
    """End an iteration that began at its first bound at the other one.

    Bounds are kept here: the binding's lower bound sets the upper one, and it does not keep either alive.
    """
    beyond = _beyond(lower, upper, upper_inclusive=upper_inclusive, reverse=reverse)
    for entries in pieces:
        if reverse and not upper_inclusive and entries[0][0] == upper:
            del entries[0]
        if beyond is not None and entries and beyond(entries[-1]):
            yield entries[: bisect_left(entries, True, key=beyond)]
            return
        yield entries


def _beyond(
    lower: bytes | None, upper: bytes | None, *, upper_inclusive: bool, reverse: bool
) -> Callable[[Entry], bool] | None:
    """Whether an entry lies past the bound at which an iteration ends."""
    if reverse:
        return None if lower is None else lambda entry: entry[0] < lower
    if upper is None:
        return None
    return (lambda entry: entry[0] > upper) if upper_inclusive else (lambda entry: entry[0] >= upper)


class Scan:
    """An open RocksDB iterator. It keeps the folder locked, so the database lets go of it when it closes.

    The binding ends an iteration at a damaged block as it does at the last entry. Therefore an end is believed only
    after another iterator has gone past the last key without an error.

    A thread that reads has hold of the iterator, and whoever closes the database waits for it: RocksDB must not be
    asked, nor an iterator of it be let go of, when its family is gone.
    """

    __slots__ = ("__weakref__", "_first", "_items", "_last", "_lock", "_reverse", "_source", "folder")

    def __init__(self, source: rd.Rdict, first: bytes | None, folder: Path, *, reverse: bool) -> None:
        self.folder = folder
        self._first = first
        self._last: Entry | None = None
        self._reverse = reverse
        self._lock = Lock()
        self._source: rd.Rdict | None = source
        try:
            self._items: Iterator[Entry] | None = iter(source.items(backwards=reverse, from_key=first))  # type: ignore[assignment]
        except Exception as error:
            raise translated(error, folder) from error

    def pieces(self) -> Iterator[list[Entry]]:
        """What is left, in lists: small ones first, since most scans look for a few entries."""
        for most in piece_sizes(CHUNK):
            entries = self.read(most)
            if not entries:
                return
            yield entries

    def read(self, most: int) -> list[Entry]:
        """The next entries, at most so many; none at the end."""
        with self._lock:
            if self._items is None or self._source is None:
                raise InvalidStateStore("store was closed under an iterator", folder=self.folder)
            try:
                entries = list(islice(self._items, most))
                if entries:
                    self._last = entries[-1]
                if len(entries) < most:
                    self._check_end(self._source.iter())
            except Exception as error:
                raise translated(error, self.folder) from error
            return entries

    def _check_end(self, beyond: rd.RdictIter) -> None:
        at = self._last[0] if self._last else self._first
        try:
            if at is None:
                beyond.seek_to_last() if self._reverse else beyond.seek_to_first()
            else:
                beyond.seek_for_prev(at) if self._reverse else beyond.seek(at)
            if beyond.valid() and self._last:
                beyond.prev() if self._reverse else beyond.next()
            beyond.status()
        finally:
            # An error keeps this frame, and must not keep the iterator.
            del beyond

    def release(self) -> None:
        """Let go of RocksDB; every further step fails."""
        with self._lock:
            self._items = self._source = None
