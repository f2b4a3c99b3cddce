"""Versioned key-value stores with types."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from statestore.kinds.versioned import ResultOrder, Versioned
from statestore.layouts.timelines import VersionedRecord
from statestore.store import Isolation
from statestore.typed.base import TypedStore

K = TypeVar("K")
V = TypeVar("V")

_UNCOMMITTED = Isolation.READ_UNCOMMITTED


class TypedVersionedStore(TypedStore[Versioned, K, V], Generic[K, V]):
    """Histories of values. Times are record times in ms; a version is valid from its time up to the next one's."""

    def put(self, key: K, value: V | None, timestamp_ms: int) -> int | None:
        """Add a version; None deletes from its time on. Gives until when it is valid: see `Versioned.put`."""
        with self._timed("put"):
            return self.store.put(self._key(key), self.values.serialize(value), timestamp_ms)

    def delete(self, key: K, timestamp_ms: int) -> VersionedRecord[V] | None:
        """Delete from a time on. Gives the version that was valid then."""
        with self._timed("delete"):
            return self._typed(self.store.delete(self._key(key), timestamp_ms))

    def get(
        self, key: K, as_of_ms: int | None = None, isolation: Isolation = _UNCOMMITTED
    ) -> VersionedRecord[V] | None:
        """The newest version, or the one valid at `as_of_ms`; None if there was none or it has expired."""
        with self._timed("get"):
            return self._typed(self.store.get(self._key(key), as_of_ms, isolation))

    def versions(
        self,
        key: K,
        from_ms: int | None = None,
        to_ms: int | None = None,
        order: ResultOrder = ResultOrder.ANY,
        isolation: Isolation = _UNCOMMITTED,
    ) -> Iterator[VersionedRecord[V]]:
        """The versions that were valid at some time between two, both included; None is an open end."""
        with self._timed("get"):
            found = self.store.versions(self._key(key), from_ms, to_ms, order, isolation)
        return (VersionedRecord(self.values.read(r.value), r.valid_from_ms, r.valid_to_ms) for r in found)

    def _typed(self, record: VersionedRecord[bytes] | None) -> VersionedRecord[V] | None:
        if record is None:
            return None
        return VersionedRecord(self.values.read(record.value), record.valid_from_ms, record.valid_to_ms)
