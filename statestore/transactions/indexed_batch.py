"""INDEXED_BATCH: uncommitted changes in memory, one atomic write at commit (KIP-844, its in-memory alternative).

A crash leaves the last committed version and nothing else: rolling back is forgetting. Range deletions stay in the
overlay until commit. A dropped space is emptied in the atomic write and its files go afterwards, so dying between the
two leaves an empty space at worst.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from statestore.failpoints import reach
from statestore.overlay import Overlay, merge
from statestore.ranges import EVERYTHING
from statestore.spaces.base import Base, ChangeColumns, Changes
from statestore.store import Entry, Isolation
from statestore.transactions.base import Transaction

Copied = TypeVar("Copied")
Read = TypeVar("Read")
# What CPython spends on an entry beside its bytes: two bytes objects and a dict slot. Measured, rounded up.
ENTRY_OVERHEAD_BYTES = 200


class IndexedBatchTransaction(Transaction):
    """One overlay a space."""

    def __init__(self, store: str, base: Base) -> None:
        super().__init__(store, base)
        self.overlays: dict[str, Overlay] = {}
        self.dropped: set[str] = set()
        self._bytes = 0
        # Counts ended transactions: a scan that saw one end between its two parts is taken again.
        self._ended = 0

    @property
    def transactional(self) -> bool:
        return True

    @property
    def uncommitted_bytes(self) -> int:
        return self._bytes

    @property
    def changes(self) -> int:
        """How many keys have an uncommitted change."""
        return sum(len(overlay) for overlay in self.overlays.values())

    @property
    def memory_bytes(self) -> int:
        return self._bytes + ENTRY_OVERHEAD_BYTES * self.changes

    def _overlay(self, space: str) -> Overlay:
        overlay = self.overlays.get(space)
        if overlay is None:
            # Readers iterate over the dict: it is replaced, never grown.
            overlay = Overlay()
            self.overlays = {**self.overlays, space: overlay}
        return overlay

    def _find(self, space: str, key: bytes, isolation: Isolation) -> tuple[bool, bytes | None]:
        if isolation is Isolation.READ_COMMITTED:
            return False, None
        overlay = self.overlays.get(space)
        return (False, None) if overlay is None else overlay.find(key)

    def get(self, space: str, key: bytes, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> bytes | None:
        if self.overlays.get(space):
            decided, value = self._find(space, key, isolation)
            if decided:
                return value
        return self.base.get(space, key)

    def get_many(
        self, space: str, keys: list[bytes], isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> list[bytes | None]:
        if isolation is Isolation.READ_COMMITTED or not self.overlays.get(space):
            return self.base.get_many(space, keys)
        found = [self._find(space, key, isolation) for key in keys]
        rest = iter(self.base.get_many(space, [k for k, (decided, _) in zip(keys, found, strict=True) if not decided]))
        return [value if decided else next(rest) for decided, value in found]

    def put(self, space: str, key: bytes, value: bytes | None) -> None:
        self._overlay(space).put(key, value)
        self._bytes += len(key) + (0 if value is None else len(value))

    def put_all(self, space: str, changes: Changes) -> None:
        columns = ChangeColumns.of(changes)
        self._overlay(space).put_all(columns)
        self._bytes += columns.size_bytes

    def delete_range(self, space: str, lower: bytes | None, upper: bytes | None) -> None:
        self._overlay(space).delete_range(lower, upper)
        self._bytes += len(lower or b"") + len(upper or b"")

    def drop(self, space: str) -> None:
        self._overlay(space).delete_range(*EVERYTHING)
        self.dropped.add(space)

    def spaces(self, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> list[str]:
        if isolation is Isolation.READ_COMMITTED:
            return self.base_spaces()
        written = {space for space, overlay in self.overlays.items() if len(overlay)}
        return sorted(set(self.base_spaces()) - self.dropped | written)

    def scan(
        self,
        space: str,
        *,
        lower: bytes | None = None,
        upper: bytes | None = None,
        upper_inclusive: bool = True,
        reverse: bool = False,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
    ) -> Iterator[Entry]:
        if lower is not None and upper is not None and lower > upper:
            return iter(())
        overlay = self.overlays.get(space)
        if not overlay or isolation is Isolation.READ_COMMITTED:
            return self.base.scan(space, lower=lower, upper=upper, upper_inclusive=upper_inclusive, reverse=reverse)
        (changes, deleted), base = self._together(
            lambda: overlay.slice(lower, upper, upper_inclusive=upper_inclusive, reverse=reverse),
            lambda: self.base.scan(space, lower=lower, upper=upper, upper_inclusive=upper_inclusive, reverse=reverse),
        )
        return merge(base, changes, deleted, reverse=reverse) if changes or deleted else base

    def few(
        self, space: str, lower: bytes, upper: bytes, isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> list[Entry] | None:
        overlay = self.overlays.get(space)
        if not overlay or isolation is Isolation.READ_COMMITTED:
            return self.base.few(space, lower, upper)
        (changes, deleted), base = self._together(
            lambda: overlay.slice(lower, upper), lambda: self.base.few(space, lower, upper)
        )
        return None if base is None else list(merge(iter(base), changes, deleted))

    def _together(self, copy: Callable[[], Copied], read: Callable[[], Read]) -> tuple[Copied, Read]:
        """What is copied of an overlay and what is read of the base, of one moment.

        The overlay is copied before the base is opened: a commit between the two shows a change twice, which the merge
        folds, and never zero times. One that has ended by then may have been followed by others.
        """
        while True:
            ended = self._ended
            copied, found = copy(), read()
            if ended == self._ended:
                return copied, found

    def commit(self, space: str, metadata: Changes) -> None:
        changes: dict[str, Changes] = {
            name: overlay.in_order() for name, overlay in self.overlays.items() if len(overlay)
        }
        deleted = {name: overlay.deleted for name, overlay in self.overlays.items() if overlay.deleted}
        reach("indexed.before-write")
        empty = self.dropped - changes.keys()
        # Files that are deleted do not come back with an older version, so the newer one must not get lost then.
        self.base.write({**changes, space: metadata}, deleted, sync=bool(empty))
        reach("indexed.written")
        self.rollback()
        for name in empty:
            self.base.drop(name)
            reach("indexed.dropped")

    def rollback(self) -> None:
        for overlay in self.overlays.values():
            overlay.clear()
        # None is kept for a segment that may never be written again.
        self.overlays = {}
        self.dropped = set()
        self._bytes = 0
        self._ended += 1

    def recover(self) -> None:
        """Nothing uncommitted reaches the base, so there is nothing to finish: only to forget."""
        self.rollback()

    def close(self) -> None:
        self.rollback()
