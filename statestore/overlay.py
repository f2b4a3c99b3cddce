"""The writes of an open transaction, kept in memory in front of a base that they do not touch yet.

A dict answers point reads; the sorted key list that ranges need is made when a range is asked for and dropped by the
next write, so a batch that only writes never pays for order. A deletion is kept as None and hides the base's entry.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from threading import Lock

from statestore.store import Entry

Change = tuple[bytes, bytes | None]


class Overlay:
    """Uncommitted changes of one store. Safe for one writer and any number of readers."""

    def __init__(self) -> None:
        self._changes: dict[bytes, bytes | None] = {}
        self._sorted: list[bytes] | None = None
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._changes)

    def put(self, key: bytes, value: bytes | None) -> None:
        """Set or, with None, delete."""
        with self._lock:
            self._changes[key] = value
            self._sorted = None

    def put_all(self, changes: Iterable[Change]) -> None:
        """Set or delete many at once; the last of equal keys wins."""
        with self._lock:
            self._changes.update(changes)
            self._sorted = None

    def find(self, key: bytes) -> tuple[bool, bytes | None]:
        """(True, value) if the overlay decides over `key`, (False, None) if the base does."""
        try:
            return True, self._changes[key]
        except KeyError:
            return False, None

    def items(self) -> Iterable[Change]:
        """The changes in the order in which their keys were first written."""
        return self._changes.items()

    def clear(self) -> None:
        """Forget everything. Scans under way keep what they copied."""
        with self._lock:
            self._changes = {}
            self._sorted = None

    def slice(
        self, lower: bytes | None, upper: bytes | None, *, upper_inclusive: bool = True, reverse: bool = False
    ) -> list[Change]:
        """A copy of the changes between two keys, in key order."""
        with self._lock:
            if self._sorted is None:
                self._sorted = sorted(self._changes)
            keys = self._sorted
            first = 0 if lower is None else bisect_left(keys, lower)
            if upper is None:
                last = len(keys)
            else:
                last = bisect_right(keys, upper) if upper_inclusive else bisect_left(keys, upper)
            taken = [(key, self._changes[key]) for key in keys[first:last]]
        return taken[::-1] if reverse else taken


def merge(base: Iterator[Entry], changes: list[Change], *, reverse: bool = False) -> Iterator[Entry]:
    """The base's entries with the changes laid over them; both are in the same key order."""
    pending = iter(changes)
    change = next(pending, None)
    for key, value in base:
        while change is not None and (change[0] > key if reverse else change[0] < key):
            if change[1] is not None:
                yield change[0], change[1]
            change = next(pending, None)
        if change is not None and change[0] == key:
            if change[1] is not None:
                yield key, change[1]
            change = next(pending, None)
        else:
            yield key, value
    while change is not None:
        if change[1] is not None:
            yield change[0], change[1]
        change = next(pending, None)
