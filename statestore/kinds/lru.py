"""A map of bounded size in memory: a write beyond its capacity evicts the entry that was not used for longest.

Eviction deletes, in the open transaction and in the changelog. Use is a property of the process: after a rollback the
order is that of the last commit, after a restore that of the restored records.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from threading import RLock

from statestore.context import ChangelogRecord
from statestore.kinds.key_value import KeyValue
from statestore.spaces.base import Changes
from statestore.store import Isolation, KeyValueStore, TransactionalMechanism


class LruMap(KeyValue):
    """At most `capacity` entries, uncommitted ones included."""

    layout = "lru-map/1"
    loads = False

    def __init__(
        self,
        name: str,
        capacity: int,
        *,
        mechanism: TransactionalMechanism | None = TransactionalMechanism.INDEXED_BATCH,
        logged: bool = True,
    ) -> None:
        super().__init__(name, mechanism=mechanism, persistent=False, logged=logged)
        if capacity < 1:
            raise ValueError(f"capacity must be 1 or more: {capacity}")
        self._capacity = capacity
        # Least recently used first; reading threads move entries, too.
        self._used: OrderedDict[bytes, None] = OrderedDict()
        self._committed_use: list[bytes] = []
        self._lock = RLock()

    def _opened(self) -> None:
        kept = [key for key in self._committed_use if self.transaction.get(self._name, key) is not None]
        with self._lock:
            self._used = OrderedDict.fromkeys(kept)
            self._used.update((key, None) for key, _ in self.transaction.scan(self._name) if key not in self._used)

    def get(self, key: bytes, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> bytes | None:
        with self._lock:
            if key in self._used:
                self._used.move_to_end(key)
        return super().get(key, isolation)

    def get_many(self, keys: Iterable[bytes], isolation: Isolation = Isolation.READ_UNCOMMITTED) -> list[bytes | None]:
        return KeyValueStore.get_many(self, keys, isolation)

    def put(self, key: bytes, value: bytes | None) -> None:
        while value is not None and (evicted := self._in_the_way_of(key)) is not None:
            self.put(evicted, None)
        super().put(key, value)
        with self._lock:
            self._used.pop(key, None)
            if value is not None:
                self._used[key] = None

    def _in_the_way_of(self, key: bytes) -> bytes | None:
        """What is to go before the key comes: in this order its changelog fills no map beyond its capacity."""
        with self._lock:
            is_full = key not in self._used and len(self._used) >= self._capacity
            return next(iter(self._used)) if is_full else None

    def put_all(self, entries: Iterable[tuple[bytes, bytes | None]]) -> None:
        for key, value in entries:
            self.put(key, value)

    def commit(self, offset: int | None) -> None:
        super().commit(offset)
        with self._lock:
            self._committed_use = list(self._used)

    def close(self) -> None:
        super().close()
        self._committed_use = []

    def approximate_num_entries(self) -> int:
        return len(self._used)

    def _restored(self, records: Sequence[ChangelogRecord]) -> Mapping[str, Changes]:
        """An eviction while restoring is not logged: the changelog has its own.

        In changelogs of earlier versions that comes behind what it makes room for, so all records are taken in first.
        """
        changes: list[tuple[bytes, bytes | None]] = []
        with self._lock:
            for record in records:
                changes.append((record.key, record.value))
                self._used.pop(record.key, None)
                if record.value is not None:
                    self._used[record.key] = None
            while len(self._used) > self._capacity:
                changes.append((self._used.popitem(last=False)[0], None))
            self._committed_use = list(self._used)
        return {self._name: changes}
