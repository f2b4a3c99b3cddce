"""Key-value stores with types, plain and timestamped."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, TypeVar

from statestore.iterator import StoreIterator
from statestore.kinds.base import Kind
from statestore.kinds.key_value import KeyValue
from statestore.kinds.timestamped import TimestampedKeyValue
from statestore.store import Isolation, KeyValueStore
from statestore.typed.base import TypedStore
from statestore.typed.serdes import Serde, ValueAndTimestamp, timestamped, without_time

K = TypeVar("K")
V = TypeVar("V")


class _KeyValueKind(Kind, KeyValueStore):
    """What lies beneath: a kind that is a key-value store."""


class TypedKeyValueStore(TypedStore[Any, K, V], Generic[K, V]):
    """A sorted map; the order is that of the keys' bytes. Ranges include both ends; None is an open end."""

    store: _KeyValueKind

    def get(self, key: K, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> V | None:
        """The value of `key`, or None."""
        with self._timed("get"):
            return self.values.deserialize(self.store.get(self._key(key), isolation))

    def get_many(self, keys: Iterable[K], isolation: Isolation = Isolation.READ_UNCOMMITTED) -> list[V | None]:
        """`get` of each key, in their order: faster than one after the other."""
        with self._timed("get"):
            found = self.store.get_many([self._key(key) for key in keys], isolation)
            return list(map(self.values.deserialize, found))

    def put(self, key: K, value: V | None) -> None:
        """Set `key`. None deletes it, and so does a value that its serde turns into None."""
        with self._timed("put"):
            self.store.put(self._key(key), self.values.serialize(value))

    def put_if_absent(self, key: K, value: V | None) -> V | None:
        """Set `key` if it has no value. Returns the value it had, None if it was set."""
        with self._timed("put-if-absent"):
            return self.values.deserialize(self.store.put_if_absent(self._key(key), self.values.serialize(value)))

    def put_all(self, entries: Iterable[tuple[K, V | None]]) -> None:
        """`put` each entry in the order given."""
        with self._timed("put-all"):
            self.store.put_all([(self._key(key), self.values.serialize(value)) for key, value in entries])

    def delete(self, key: K) -> V | None:
        """Delete `key` and return the value it had."""
        with self._timed("delete"):
            return self.values.deserialize(self.store.delete(self._key(key)))

    def range(
        self, lower: K | None, upper: K | None, isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> StoreIterator[K, V]:
        """Entries between two keys, ascending. An inverted range is empty and warned of."""
        return self._range(lower, upper, reverse=False, isolation=isolation)

    def reverse_range(
        self, lower: K | None, upper: K | None, isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> StoreIterator[K, V]:
        """`range`, descending; `lower` is still the smaller end."""
        return self._range(lower, upper, reverse=True, isolation=isolation)

    def all(self, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> StoreIterator[K, V]:
        """Every entry, ascending."""
        with self._timed("all"):
            return self._typed(self.store.all(isolation))

    def reverse_all(self, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> StoreIterator[K, V]:
        """Every entry, descending."""
        with self._timed("all"):
            return self._typed(self.store.reverse_all(isolation))

    def prefix_scan(
        self, prefix: Any, serde: Serde[Any], isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> StoreIterator[K, V]:
        """Entries whose key's bytes begin with the bytes that `serde` makes of `prefix`."""
        if prefix is None or serde is None:
            raise TypeError("a prefix and its serde must not be None")
        with self._timed("prefix-scan"):
            return self._typed(self.store.prefix_scan(serde.serialize(prefix) or b"", isolation))

    def approximate_num_entries(self) -> int:
        """An estimate of the number of keys, uncommitted writes left out."""
        return self.store.approximate_num_entries()

    def _range(self, lower: K | None, upper: K | None, *, reverse: bool, isolation: Isolation) -> StoreIterator[K, V]:
        low, high = self._bound(lower), self._bound(upper)
        self._inverted(low, high)
        with self._timed("range"):
            return self._typed(self.store.scan(lower=low, upper=high, reverse=reverse, isolation=isolation))

    def _typed(self, entries: StoreIterator[bytes, bytes]) -> StoreIterator[K, V]:
        read_key, read_value = self.keys.read, self.values.read
        return entries.map(lambda key, value: (read_key(key), read_value(value)))


class TypedTimestampedKeyValueStore(TypedKeyValueStore[K, ValueAndTimestamp[V]], Generic[K, V]):
    """Values are `ValueAndTimestamp`. Over a plain store times are not kept: what is read has the time -1."""

    def __init__(self, store: KeyValue, keys: Serde[K], values: Serde[V]) -> None:
        kept = isinstance(store, TimestampedKeyValue)
        super().__init__(store, keys, timestamped(values) if kept else without_time(values))

    def put_if_different(self, key: K, value: ValueAndTimestamp[V], old: bytes | None) -> bool:
        """Set `key` unless it has the same value already, not younger. `old` is what `get_raw` gave.

        True if it was set. An older time is set although the value is the same: it came out of order.
        """
        new = self.values.serialize(value)
        if new is not None and old is not None and new[8:] == old[8:] and new[:8] >= old[:8]:
            return False
        with self._timed("put"):
            self.store.put(self._key(key), new)
        return True

    def get_raw(self, key: K) -> bytes | None:
        """The value's bytes with its time in front."""
        return self.store.get(self._key(key))
