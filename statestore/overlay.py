"""The writes of an open transaction, kept in memory in front of a base that they do not touch yet.

A dict answers point reads; the sorted key list that ranges need is made when a range is asked for, so a batch that
only writes never pays for order. What comes in order as a whole is kept as it came until a key of it is asked for: most
batches are written and never read. A deletion is kept as None and hides the base's entry; a range deletion forgets the
writes it covers and hides the base's entries between its ends until the transaction ends.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from itertools import islice
from operator import lt
from threading import Lock

from statestore.ranges import Ranges
from statestore.spaces.base import Change, ChangeColumns
from statestore.store import Entry

_INSERT_MAX = 100


class Overlay:
    """Uncommitted changes of one space. Safe for one writer and any number of readers."""

    def __init__(self) -> None:
        self._changes: dict[bytes, bytes | None] = {}
        # All changes, in key order, in place of the dict.
        self._whole: ChangeColumns | None = None
        self._sorted: list[bytes] | None = None
        self._unsorted: list[bytes] = []
        self._ranges = Ranges()
        self._lock = Lock()

    def __len__(self) -> int:
        whole = self._whole
        return len(self._changes) if whole is None else len(whole)

    def __bool__(self) -> bool:
        """Whether it decides over any key."""
        return bool(self._whole or self._changes or self._ranges)

    def put(self, key: bytes, value: bytes | None) -> None:
        """Set or, with None, delete."""
        with self._lock:
            self._unfold()
            if self._sorted is not None and key not in self._changes:
                self._unsorted.append(key)
            self._changes[key] = value

    def put_all(self, changes: Iterable[Change]) -> None:
        """Set or delete many at once; the last of equal keys wins."""
        with self._lock:
            if not self and isinstance(changes, ChangeColumns) and _ascending(changes.keys):
                self._whole = changes
                self._forget_order()
                return
            self._unfold()
            # Columns have `keys`, by which a dict would take them for a mapping.
            self._changes.update(iter(changes))
            self._forget_order()

    def _unfold(self) -> None:
        """Make the dict. Who reads without the lock finds the changes in one of the two."""
        if self._whole is not None:
            self._changes = dict(iter(self._whole))
            self._whole = None

    def delete_range(self, lower: bytes | None, upper: bytes | None) -> None:
        """Delete everything between two keys, both included, here and in the base."""
        with self._lock:
            self._unfold()
            self._ranges = self._ranges.with_range((lower, upper))
            covered = Ranges([(lower, upper)])
            # A new dict: readers look without the lock and must find the old or the new changes.
            self._changes = {key: value for key, value in self._changes.items() if not covered.cover(key)}
            self._forget_order()

    def find(self, key: bytes) -> tuple[bool, bytes | None]:
        """(True, value) if the overlay decides over `key`, (False, None) if the base does."""
        if self._whole is not None:
            with self._lock:
                self._unfold()
        try:
            return True, self._changes[key]
        except KeyError:
            return bool(self._ranges) and self._ranges.cover(key), None

    def items(self) -> Iterable[Change]:
        """The changes in the order in which their keys were first written."""
        whole = self._whole
        return self._changes.items() if whole is None else whole

    def in_order(self) -> ChangeColumns:
        """The changes in key order: RocksDB takes them in for less than in any other, the sorting included."""
        whole = self._whole
        if whole is not None:
            return whole
        keys = sorted(self._changes)
        return ChangeColumns(keys, list(map(self._changes.__getitem__, keys)))

    @property
    def deleted(self) -> Ranges:
        """What was deleted by range; a change in `items` is newer."""
        return self._ranges

    def clear(self) -> None:
        """Forget everything. Scans under way keep what they copied."""
        with self._lock:
            self._changes = {}
            self._whole = None
            self._ranges = Ranges()
            self._forget_order()

    def slice(
        self, lower: bytes | None, upper: bytes | None, *, upper_inclusive: bool = True, reverse: bool = False
    ) -> tuple[list[Change], Ranges]:
        """A copy of the changes between two keys, in key order, and the ranges that are deleted in the base."""
        with self._lock:
            self._unfold()
            keys = self._order()
            first = 0 if lower is None else bisect_left(keys, lower)
            if upper is None:
                last = len(keys)
            else:
                last = bisect_right(keys, upper) if upper_inclusive else bisect_left(keys, upper)
            taken = [(key, self._changes[key]) for key in keys[first:last]]
            ranges = self._ranges
        return (taken[::-1] if reverse else taken), ranges

    def _order(self) -> list[bytes]:
        """All keys, sorted. A few new ones are put in their places, since a store may read after every write."""
        if self._sorted is None:
            self._sorted = sorted(self._changes)
        elif len(self._unsorted) <= _INSERT_MAX:
            for key in self._unsorted:
                insort(self._sorted, key)
        else:
            self._sorted += self._unsorted
            self._sorted.sort()
        self._unsorted = []
        return self._sorted

    def _forget_order(self) -> None:
        self._sorted = None
        self._unsorted = []


def _ascending(keys: list[bytes]) -> bool:
    return all(map(lt, keys, islice(keys, 1, None)))


def merge(
    base: Iterator[Entry], changes: Iterable[Entry | Change], deleted: Ranges | None = None, *, reverse: bool = False
) -> Iterator[Entry]:
    """The base's entries without what is deleted, the changes laid over them; both are in the same key order."""
    if deleted:
        covers = deleted.cover
        base = (entry for entry in base if not covers(entry[0]))
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
