"""The record cache: the newest value of each key written since the last flush, for all stores of a task (KIP-63).

One bound in bytes and one order of use for all namespaces, a namespace a store. A slot is a key in one of the store's
spaces. An entry is dirty until its namespace has written it; a dirty entry is written when it is evicted, or at a
flush, once, whatever number of values it had in between. Entries are flushed in the order in which they were written last.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from threading import RLock

from sortedcontainers import SortedDict

from statestore.context import RecordContext
from statestore.spaces.base import Change

_OVERHEAD_BYTES = 50


@dataclass(frozen=True)
class CacheEntry:
    """A value, None for a deletion, and the record that wrote it; a clean entry equals the store below."""

    value: bytes | None
    record: RecordContext | None = None
    dirty: bool = True

    @property
    def size_bytes(self) -> int:
        """Value, topic and what an entry takes besides."""
        return len(self.value or b"") + (len(self.record.topic) if self.record else 0) + _OVERHEAD_BYTES


Slot = tuple[str, bytes]
"""Space and key."""
WriteBack = Callable[[Slot, CacheEntry], None]


class RecordCache:
    """An LRU of entries by namespace and slot. Safe for one writer and any number of readers."""

    def __init__(self, max_bytes: int) -> None:
        if max_bytes < 0:
            raise ValueError(f"max_bytes cannot be negative: {max_bytes}")
        self.max_bytes = max_bytes
        self.lock = RLock()
        self._used: OrderedDict[tuple[str, Slot], None] = OrderedDict()
        self._namespaces: dict[str, Namespace] = {}
        self._size_bytes = 0

    @property
    def size_bytes(self) -> int:
        """Keys and entries of all namespaces."""
        return self._size_bytes

    def namespace(self, name: str, write_back: WriteBack) -> Namespace:
        """The namespace of a store, new and empty. `write_back` gets each dirty entry once."""
        with self.lock:
            if name in self._namespaces:
                raise ValueError(f"the cache has a namespace {name!r} already")
            self._namespaces[name] = Namespace(self, name, write_back)
            return self._namespaces[name]

    def touched(self, name: str, slot: Slot) -> None:
        """Note that an entry was used."""
        self._used[name, slot] = None
        self._used.move_to_end((name, slot))

    def resized(self, by_bytes: int) -> None:
        """Note that entries take more, or less."""
        self._size_bytes += by_bytes

    def forgotten(self, name: str, slot: Slot) -> None:
        """Note that an entry is gone."""
        self._used.pop((name, slot), None)

    def released(self, name: str) -> None:
        """Note that a namespace is closed."""
        self._namespaces.pop(name, None)

    def shrink(self) -> None:
        """Evict what was not used for longest until the bound holds; dirty entries are written first."""
        while self._size_bytes > self.max_bytes and self._used:
            name, slot = next(iter(self._used))
            self._namespaces[name].evict(slot)


class Namespace:
    """The entries of one store."""

    def __init__(self, cache: RecordCache, name: str, write_back: WriteBack) -> None:
        self._cache = cache
        self._name = name
        self._write_back = write_back
        self._entries: SortedDict = SortedDict()
        self._dirty: dict[Slot, None] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, slot: Slot) -> CacheEntry | None:
        """The entry of a slot; None if the cache says nothing about it."""
        with self._cache.lock:
            entry: CacheEntry | None = self._entries.get(slot)
            if entry is not None:
                self._cache.touched(self._name, slot)
            return entry

    def put(self, slot: Slot, entry: CacheEntry) -> None:
        """Set an entry, then evict what the bound has no room for: the entry itself if it must be."""
        with self._cache.lock:
            self._set(slot, entry)
            if entry.dirty:
                # To the end: what is forwarded has the order in which it came (`NamedCache.put` of Kafka Streams).
                self._dirty.pop(slot, None)
                self._dirty[slot] = None
            self._cache.shrink()

    def delete(self, slot: Slot) -> CacheEntry | None:
        """Forget an entry unwritten and return it."""
        with self._cache.lock:
            self._dirty.pop(slot, None)
            return self._remove(slot)

    def changes(
        self, space: str, lower: bytes | None, upper: bytes | None, *, upper_inclusive: bool, reverse: bool
    ) -> list[Change]:
        """Keys of a space between two, and their values, in key order, as they are now."""
        last = (space + "\0", b"") if upper is None else (space, upper)
        inclusive = (True, upper is not None and upper_inclusive)
        with self._cache.lock:
            slots = self._entries.irange((space, lower or b""), last, inclusive=inclusive, reverse=reverse)
            return [(slot[1], self._entries[slot].value) for slot in slots]

    def spaces(self) -> set[str]:
        """The spaces in which the cache holds anything."""
        with self._cache.lock:
            return {space for space, _ in self._entries}

    def flush(self) -> bool:
        """Write every dirty entry, in the order in which they were written last. What was written stays, clean.

        Gives whether there was one. What a write fills anew is left.
        """
        with self._cache.lock:
            dirty = list(self._dirty)
            for slot in dirty:
                self._write(slot)
            return bool(dirty)

    def evict(self, slot: Slot) -> None:
        """Forget an entry, written first if it is dirty. One that the write itself filled anew stays."""
        self._write(slot)
        if slot not in self._dirty:
            self._remove(slot)

    def clear(self) -> None:
        """Forget every entry unwritten."""
        with self._cache.lock:
            self._dirty.clear()
            for slot in list(self._entries):
                self._remove(slot)

    def close(self) -> None:
        """Forget every entry unwritten and leave the cache."""
        self.clear()
        self._cache.released(self._name)

    def _set(self, slot: Slot, entry: CacheEntry) -> None:
        known = self._entries.get(slot)
        self._cache.resized(entry.size_bytes - (known.size_bytes if known else -len(slot[1])))
        self._entries[slot] = entry
        self._cache.touched(self._name, slot)

    def _remove(self, slot: Slot) -> CacheEntry | None:
        entry: CacheEntry | None = self._entries.pop(slot, None)
        if entry is not None:
            self._cache.resized(-entry.size_bytes - len(slot[1]))
            self._cache.forgotten(self._name, slot)
        return entry

    def _write(self, slot: Slot) -> None:
        if slot not in self._dirty:
            return
        # Clean before it is written: what the write brings about may fill the slot again.
        del self._dirty[slot]
        entry = self._entries[slot]
        self._entries[slot] = replace(entry, dirty=False)
        try:
            self._write_back(slot, entry)
        except BaseException:
            self._dirty[slot] = None
            raise
