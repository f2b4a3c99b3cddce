"""Window stores with types, plain and timestamped."""

from __future__ import annotations

from typing import Generic, TypeVar

from statestore.iterator import StoreIterator
from statestore.kinds.timestamped_window import TimestampedWindow
from statestore.kinds.window import Window
from statestore.store import Isolation
from statestore.typed.base import TypedStore
from statestore.typed.serdes import Serde, ValueAndTimestamp, timestamped, without_time
from statestore.windows import Windowed

K = TypeVar("K")
V = TypeVar("V")

_UNCOMMITTED = Isolation.READ_UNCOMMITTED


class TypedWindowStore(TypedStore[Window, K, V], Generic[K, V]):
    """Values by key and start of window, in ms. Intervals and key ranges include both ends; a key of None is open."""

    def put(self, key: K, value: V | None, start_ms: int) -> None:
        """Set the value of a key in the window that begins at `start_ms`. None deletes it."""
        with self._timed("put"):
            self.store.put(self._key(key), self.values.serialize(value), start_ms)

    def fetch_one(self, key: K, start_ms: int, isolation: Isolation = _UNCOMMITTED) -> V | None:
        """The value of a key in one window, or None."""
        with self._timed("fetch"):
            return self.values.deserialize(self.store.fetch_one(self._key(key), start_ms, isolation))

    def fetch(self, key: K, from_ms: int, to_ms: int, isolation: Isolation = _UNCOMMITTED) -> StoreIterator[int, V]:
        """(start, value) of one key for starts between the two, ascending."""
        with self._timed("fetch"):
            return self._of_key(self.store.fetch(self._key(key), from_ms, to_ms, isolation))

    def backward_fetch(
        self, key: K, from_ms: int, to_ms: int, isolation: Isolation = _UNCOMMITTED
    ) -> StoreIterator[int, V]:
        """`fetch`, descending."""
        with self._timed("fetch"):
            return self._of_key(self.store.backward_fetch(self._key(key), from_ms, to_ms, isolation))

    def fetch_range(
        self, lower: K | None, upper: K | None, from_ms: int, to_ms: int, isolation: Isolation = _UNCOMMITTED
    ) -> StoreIterator[Windowed[K], V]:
        """Entries of all keys between two, for starts between two. An inverted key range is empty and warned of."""
        bounds = self._bounds(lower, upper)
        with self._timed("fetch"):
            return self._windowed(self.store.fetch_range(*bounds, from_ms, to_ms, isolation))

    def backward_fetch_range(
        self, lower: K | None, upper: K | None, from_ms: int, to_ms: int, isolation: Isolation = _UNCOMMITTED
    ) -> StoreIterator[Windowed[K], V]:
        """`fetch_range` in the opposite order; `lower` is still the smaller end."""
        bounds = self._bounds(lower, upper)
        with self._timed("fetch"):
            return self._windowed(self.store.backward_fetch_range(*bounds, from_ms, to_ms, isolation))

    def fetch_all(self, from_ms: int, to_ms: int, isolation: Isolation = _UNCOMMITTED) -> StoreIterator[Windowed[K], V]:
        """Entries of every key for starts between the two."""
        with self._timed("fetch"):
            return self._windowed(self.store.fetch_all(from_ms, to_ms, isolation))

    def backward_fetch_all(
        self, from_ms: int, to_ms: int, isolation: Isolation = _UNCOMMITTED
    ) -> StoreIterator[Windowed[K], V]:
        """`fetch_all` in the opposite order."""
        with self._timed("fetch"):
            return self._windowed(self.store.backward_fetch_all(from_ms, to_ms, isolation))

    def all(self, isolation: Isolation = _UNCOMMITTED) -> StoreIterator[Windowed[K], V]:
        """Every entry that is not expired."""
        with self._timed("all"):
            return self._windowed(self.store.all(isolation))

    def backward_all(self, isolation: Isolation = _UNCOMMITTED) -> StoreIterator[Windowed[K], V]:
        """`all` in the opposite order."""
        with self._timed("all"):
            return self._windowed(self.store.backward_all(isolation))

    def _of_key(self, windows: StoreIterator[int, bytes]) -> StoreIterator[int, V]:
        read = self.values.read
        return windows.map(lambda start_ms, value: (start_ms, read(value)))

    def _windowed(self, windows: StoreIterator[Windowed[bytes], bytes]) -> StoreIterator[Windowed[K], V]:
        read_key, read_value = self.keys.read, self.values.read
        return windows.map(lambda at, value: (Windowed(read_key(at.key), *at[1:]), read_value(value)))


class TypedTimestampedWindowStore(TypedWindowStore[K, ValueAndTimestamp[V]], Generic[K, V]):
    """Values are `ValueAndTimestamp`. Over a plain store times are not kept: what is read has the time -1."""

    def __init__(self, store: Window, keys: Serde[K], values: Serde[V]) -> None:
        kept = isinstance(store, TimestampedWindow)
        super().__init__(store, keys, timestamped(values) if kept else without_time(values))
