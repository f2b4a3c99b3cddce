"""What can be asked of a store (KIP-796): each query says which stores answer it and how.

A query runs on a store of bytes or on the typed store over it, with keys and values to match; the methods have the same
names. Bounds include both ends and None leaves an end open; times are ms. The order of keys is that of their bytes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, Self, TypeVar

from statestore.iterator import StoreIterator
from statestore.kinds.key_value import KeyValue
from statestore.kinds.session import Session
from statestore.kinds.timestamped import TimestampedKeyValue
from statestore.kinds.versioned import ResultOrder, Versioned
from statestore.kinds.window import Window
from statestore.layouts.timelines import VersionedRecord
from statestore.store import Isolation, after_prefix
from statestore.typed.base import TypedStore
from statestore.typed.key_value import TypedTimestampedKeyValueStore
from statestore.typed.serdes import ValueAndTimestamp
from statestore.windows import Windowed

K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R")


class Query(ABC, Generic[R]):
    """One question to one store."""

    kinds: ClassVar[tuple[type, ...]]

    def answered_by(self, store: Any) -> bool:
        """Whether the store knows this query."""
        beneath = store.store if isinstance(store, TypedStore) else store
        return isinstance(beneath, self.kinds)

    @abstractmethod
    def ask(self, store: Any, isolation: Isolation) -> R:
        """The answer of a store that knows the query."""


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, ValueAndTimestamp) else value


@dataclass(frozen=True)
class KeyQuery(Query[V | None], Generic[K, V]):
    """The value of one key; of a typed timestamped store without its time."""

    key: K
    kinds: ClassVar[tuple[type, ...]] = (KeyValue,)

    def __post_init__(self) -> None:
        _require(self.key)

    def ask(self, store: Any, isolation: Isolation) -> V | None:
        value: V | None = _plain(store.get(self.key, isolation))
        return value


@dataclass(frozen=True)
class TimestampedKeyQuery(Query[ValueAndTimestamp[V] | None], Generic[K, V]):
    """The value of one key with its time. Typed timestamped stores answer it (KIP-992)."""

    key: K
    kinds: ClassVar[tuple[type, ...]] = (TimestampedKeyValue,)

    def __post_init__(self) -> None:
        _require(self.key)

    def answered_by(self, store: Any) -> bool:
        return isinstance(store, TypedTimestampedKeyValueStore)

    def ask(self, store: Any, isolation: Isolation) -> ValueAndTimestamp[V] | None:
        value: ValueAndTimestamp[V] | None = store.get(self.key, isolation)
        return value


@dataclass(frozen=True)
class RangeQuery(Query[StoreIterator[K, V]], Generic[K, V]):
    """Entries between two keys. `prefix` asks for keys that begin with these bytes, instead."""

    lower: K | None = None
    upper: K | None = None
    prefix: bytes | None = None
    order: ResultOrder = ResultOrder.ANY
    kinds: ClassVar[tuple[type, ...]] = (KeyValue,)

    @classmethod
    def with_range(cls, lower: K | None, upper: K | None) -> Self:
        """Between two keys."""
        return cls(lower, upper)

    @classmethod
    def with_lower_bound(cls, lower: K) -> Self:
        """From a key on."""
        return cls(lower, None)

    @classmethod
    def with_upper_bound(cls, upper: K) -> Self:
        """Up to a key."""
        return cls(None, upper)

    @classmethod
    def with_no_bounds(cls) -> Self:
        """Everything."""
        return cls()

    @classmethod
    def with_prefix(cls, prefix: bytes) -> Self:
        """Keys whose bytes begin with `prefix`."""
        return cls(prefix=prefix)

    def with_ascending_keys(self) -> Self:
        """Smallest key first."""
        return replace(self, order=ResultOrder.ASCENDING)

    def with_descending_keys(self) -> Self:
        """Greatest key first."""
        return replace(self, order=ResultOrder.DESCENDING)

    def ask(self, store: Any, isolation: Isolation) -> StoreIterator[K, V]:
        return self._entries(store, isolation).map(lambda key, value: (key, _plain(value)))

    def _entries(self, store: Any, isolation: Isolation) -> StoreIterator[K, Any]:
        reverse = self.order is ResultOrder.DESCENDING
        if self.prefix is None:
            read = store.reverse_range if reverse else store.range
            entries: StoreIterator[K, Any] = read(self.lower, self.upper, isolation)
            return entries
        beneath = store.store if isinstance(store, TypedStore) else store
        found = beneath.scan(
            lower=self.prefix,
            upper=after_prefix(self.prefix),
            upper_inclusive=False,
            reverse=reverse,
            isolation=isolation,
        )
        if not isinstance(store, TypedStore):
            return found  # type: ignore[no-any-return]
        keys, values = store.keys, store.values
        typed: StoreIterator[K, Any] = found.map(lambda key, value: (keys.read(key), values.read(value)))
        return typed


@dataclass(frozen=True)
class TimestampedRangeQuery(RangeQuery[K, ValueAndTimestamp[V]], Generic[K, V]):
    """Entries between two keys, values with their times. Typed timestamped stores answer it (KIP-992)."""

    def answered_by(self, store: Any) -> bool:
        return isinstance(store, TypedTimestampedKeyValueStore)

    def ask(self, store: Any, isolation: Isolation) -> StoreIterator[K, ValueAndTimestamp[V]]:
        return self._entries(store, isolation)


@dataclass(frozen=True)
class WindowKeyQuery(Query[StoreIterator[int, V]], Generic[K, V]):
    """(start, value) of one key's windows that begin between two times."""

    key: K
    from_ms: int
    to_ms: int
    kinds: ClassVar[tuple[type, ...]] = (Window,)

    def __post_init__(self) -> None:
        _require(self.key)

    def ask(self, store: Any, isolation: Isolation) -> StoreIterator[int, V]:
        found: StoreIterator[int, V] = store.fetch(self.key, self.from_ms, self.to_ms, isolation)
        return found.map(lambda start_ms, value: (start_ms, _plain(value)))


@dataclass(frozen=True)
class WindowRangeQuery(Query[StoreIterator[Windowed[K], V]], Generic[K, V]):
    """Windows of every key that begin between two times; or every session of one key (KIP-763, KIP-796)."""

    key: K | None = None
    from_ms: int | None = None
    to_ms: int | None = None
    kinds: ClassVar[tuple[type, ...]] = (Window, Session)

    @classmethod
    def with_key(cls, key: K) -> Self:
        """The sessions of a key: session stores answer it."""
        return cls(_require(key))

    @classmethod
    def with_window_start_range(cls, from_ms: int, to_ms: int) -> Self:
        """Windows of every key: window stores answer it."""
        return cls(None, from_ms, to_ms)

    def answered_by(self, store: Any) -> bool:
        beneath = store.store if isinstance(store, TypedStore) else store
        return isinstance(beneath, Window if self.key is None else Session)

    def ask(self, store: Any, isolation: Isolation) -> StoreIterator[Windowed[K], V]:
        found: StoreIterator[Windowed[K], V]
        if self.key is None:
            found = store.fetch_all(self.from_ms, self.to_ms, isolation)
        else:
            found = store.fetch(self.key, isolation)
        return found.map(lambda window, value: (window, _plain(value)))


@dataclass(frozen=True)
class VersionedKeyQuery(Query[VersionedRecord[V] | None], Generic[K, V]):
    """The newest version of a key, or the one valid at a time (KIP-960)."""

    key: K
    as_of_ms: int | None = None
    kinds: ClassVar[tuple[type, ...]] = (Versioned,)

    def __post_init__(self) -> None:
        _require(self.key)

    @classmethod
    def with_key(cls, key: K) -> Self:
        """The newest version."""
        return cls(key)

    def as_of(self, as_of_ms: int) -> Self:
        """The version valid then."""
        return replace(self, as_of_ms=as_of_ms)

    def ask(self, store: Any, isolation: Isolation) -> VersionedRecord[V] | None:
        record: VersionedRecord[V] | None = store.get(self.key, self.as_of_ms, isolation)
        return record


@dataclass(frozen=True)
class MultiVersionedKeyQuery(Query[Iterator[VersionedRecord[V]]], Generic[K, V]):
    """The versions of a key that were valid at some time between two (KIP-968)."""

    key: K
    from_ms: int | None = None
    to_ms: int | None = None
    order: ResultOrder = ResultOrder.ANY
    kinds: ClassVar[tuple[type, ...]] = (Versioned,)

    def __post_init__(self) -> None:
        _require(self.key)

    @classmethod
    def with_key(cls, key: K) -> Self:
        """All versions."""
        return cls(key)

    def from_time(self, from_ms: int | None) -> Self:
        """Not those that ceased to be valid by then."""
        return replace(self, from_ms=from_ms)

    def to_time(self, to_ms: int | None) -> Self:
        """Not those that became valid later."""
        return replace(self, to_ms=to_ms)

    def with_ascending_timestamps(self) -> Self:
        """Oldest first."""
        return replace(self, order=ResultOrder.ASCENDING)

    def with_descending_timestamps(self) -> Self:
        """Newest first."""
        return replace(self, order=ResultOrder.DESCENDING)

    def ask(self, store: Any, isolation: Isolation) -> Iterator[VersionedRecord[V]]:
        found: Iterator[VersionedRecord[V]] = store.versions(self.key, self.from_ms, self.to_ms, self.order, isolation)
        return found


def _require(key: K) -> K:
    if key is None:
        raise TypeError("a query's key must not be None")
    return key
