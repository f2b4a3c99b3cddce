"""Committed data in memory: one sorted dict a space. Gone with the process; the changelog brings it back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from threading import RLock

from sortedcontainers import SortedDict

from statestore.errors import InvalidStateStore
from statestore.ranges import Range
from statestore.spaces.base import Base, Changes
from statestore.store import Entry


class MemoryBase(Base):
    """A scan copies what it will give, so it is a view of the moment it was asked for."""

    def __init__(self) -> None:
        self._spaces: dict[str, SortedDict] = {}
        self._lock = RLock()
        self._open = True

    @property
    def persistent(self) -> bool:
        return False

    @property
    def is_open(self) -> bool:
        return self._open

    def spaces(self) -> list[str]:
        with self._lock:
            return sorted(self._spaces)

    def create(self, space: str) -> None:
        with self._lock:
            self._spaces.setdefault(space, SortedDict())

    def drop(self, space: str) -> None:
        with self._lock:
            self._spaces.pop(space, None)

    def get(self, space: str, key: bytes) -> bytes | None:
        with self._lock:
            entries = self._spaces.get(space)
            return None if entries is None else entries.get(key)

    def get_many(self, space: str, keys: list[bytes]) -> list[bytes | None]:
        with self._lock:
            entries = self._spaces.get(space, {})
            return [entries.get(key) for key in keys]

    def scan(
        self,
        space: str,
        *,
        lower: bytes | None = None,
        upper: bytes | None = None,
        upper_inclusive: bool = True,
        reverse: bool = False,
    ) -> Iterator[Entry]:
        with self._lock:
            entries = self._spaces.get(space)
            if entries is None:
                return iter(())
            keys = entries.irange(lower, upper, inclusive=(True, upper_inclusive), reverse=reverse)
            return self._guarded([(key, entries[key]) for key in keys])

    def _guarded(self, taken: list[Entry]) -> Iterator[Entry]:
        for entry in taken:
            if not self._open:
                raise InvalidStateStore("store was closed under an iterator")
            yield entry

    def write(
        self,
        changes: Mapping[str, Changes],
        deleted: Mapping[str, Iterable[Range]] | None = None,
        *,
        sync: bool = False,
    ) -> None:
        with self._lock:
            for space, ranges in (deleted or {}).items():
                entries = self._spaces.setdefault(space, SortedDict())
                for lower, upper in ranges:
                    for key in list(entries.irange(lower, upper)):
                        del entries[key]
            for space, items in changes.items():
                entries = self._spaces.setdefault(space, SortedDict())
                for key, value in items:
                    if value is None:
                        entries.pop(key, None)
                    else:
                        entries[key] = value

    def still(self) -> AbstractContextManager[object]:
        return self._lock

    def estimate(self, space: str) -> int:
        with self._lock:
            return len(self._spaces.get(space, ()))

    def flush(self) -> None:
        """Nothing to bring anywhere."""

    def close(self) -> None:
        with self._lock:
            self._open = False
            self._spaces = {}
