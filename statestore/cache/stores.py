"""Stores behind the record cache: a put stays in it until a flush or an eviction, and only then is it written and logged.

So of several values of a key between two flushes the store, the changelog and whoever listens get the last one. Flush
before the task's Kafka transaction ends; what the cache holds is otherwise lost with the transaction, as any
uncommitted write. Reads are the store's own, over a view that has the cache in front (`view`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from statestore.cache.record_cache import CacheEntry, Namespace, RecordCache, Slot
from statestore.cache.view import CachedTransaction
from statestore.context import RecordContext, StoreContext
from statestore.errors import InvalidStateStore
from statestore.kinds.base import Kind, require_key
from statestore.kinds.buffered import Change
from statestore.kinds.key_value import KeyValue
from statestore.kinds.timestamped import TimestampedKeyValue
from statestore.position import Position
from statestore.store import Isolation
from statestore.transactions.base import Transaction

Listener = Callable[[bytes, Change, RecordContext | None], None]
"""Gets stored key, new and old value, and the record that wrote the new one: each flushed key once."""


class Cached(Kind):
    """What cached stores share; mixed in before the kind."""

    def __init__(self, *args: Any, cache: RecordCache, **options: Any) -> None:
        super().__init__(*args, **options)
        self._cache = cache
        self._namespace: Namespace | None = None
        self._listener: Listener | None = None
        self._send_old_values = False

    def set_flush_listener(self, listener: Listener, *, send_old_values: bool = False) -> None:
        """Forward what is flushed, with the value that the store had before if that is asked for."""
        self._listener = listener
        self._send_old_values = send_old_values

    @property
    def cached(self) -> Namespace:
        """The store's part of the cache. Raises `InvalidStateStore` if the store is not open."""
        if self._namespace is None:
            raise InvalidStateStore("store is not open", store=self._name)
        return self._namespace

    def init(self, context: StoreContext) -> None:
        namespace = self._cache.namespace(self._name, self._write_back)
        try:
            super().init(context)
        except BaseException:
            namespace.close()
            raise
        self._namespace = namespace
        self._transaction = CachedTransaction(self.transaction, namespace)

    def flush_cache(self) -> bool:
        """Write what is only cached to the store and its changelog, and forward it; gives whether there was anything."""
        return self.cached.flush()

    def commit(self, offset: int | None) -> None:
        """Flush, then commit."""
        self.flush_cache()
        super().commit(offset)

    def close(self) -> None:
        """Flush, leave the cache, close: each even if another fails. Raises the first error."""
        namespace = self._namespace
        if namespace is None:
            return
        errors: list[Exception] = []
        for step in (namespace.flush, namespace.close, self._close_beneath):
            try:
                step()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _close_beneath(self) -> None:
        self._namespace = None
        self._transaction = self._beneath
        super().close()

    def _cache_put(self, space: str, key: bytes, value: bytes | None) -> None:
        self.cached.put((space, key), CacheEntry(value, self.context.record))

    def _write_back(self, slot: Slot, entry: CacheEntry) -> None:
        space, key = slot
        asked = self._listener is not None and (entry.value is None or self._send_old_values)
        old = self._beneath.get(space, key) if asked else None
        if asked and entry.value is None and old is None:
            return  # Neither the store nor the listener has ever heard of the key.
        with self._as_of(entry.record):
            self._put_beneath(key, entry.value)
            if self._listener is not None:
                self._listener(key, Change(entry.value, old if self._send_old_values else None), entry.record)

    @property
    def _beneath(self) -> Transaction:
        transaction = self.transaction
        return transaction.beneath if isinstance(transaction, CachedTransaction) else transaction

    @contextmanager
    def _as_of(self, record: RecordContext | None) -> Iterator[None]:
        # The write counts as the record's that made it: time and position are that record's.
        current = self.context.record
        self.context.record = record
        try:
            yield
        finally:
            self.context.record = current

    @abstractmethod
    def _put_beneath(self, key: bytes, value: bytes | None) -> None:
        """Write past the cache."""


class CachedKeyValue(Cached, KeyValue):
    """A plain key-value store behind the cache. Its position includes what is cached."""

    def _opened(self) -> None:
        super()._opened()
        self._cached_position = self._position

    def put(self, key: bytes, value: bytes | None) -> None:
        require_key(key)
        self._cache_put(self._space, key, value)
        record = self.context.record
        if record is not None:
            self._cached_position = self._cached_position.advanced(record.topic, record.partition, record.offset)

    def put_all(self, entries: Iterable[tuple[bytes, bytes | None]]) -> None:
        for key, value in entries:
            self.put(key, value)

    def position(self, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> Position:
        known = super().position(isolation)
        committed = isolation is Isolation.READ_COMMITTED and self.transactional()
        return known if committed else known.merged(self._cached_position)

    def _put_beneath(self, key: bytes, value: bytes | None) -> None:
        super().put(key, value)


class CachedTimestampedKeyValue(CachedKeyValue, TimestampedKeyValue):
    """A timestamped key-value store behind the cache. While it is being upgraded, puts go straight through."""

    @property
    def _moving(self) -> AbstractContextManager[object]:
        # Who moves a value asks the cache, and a flush of another store's may write here.
        return self._cache.lock

    def put(self, key: bytes, value: bytes | None) -> None:
        if self.upgrading:
            self._put_beneath(key, value)
        else:
            super().put(key, value)
