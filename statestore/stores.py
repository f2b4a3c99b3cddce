"""Factories of stores, with KIP-844's names in Python spelling, and builders that give them types.

    supplier = persistent_key_value_store("totals", transactional=True)
    store = key_value_store_builder(supplier, STRING, LONG).with_caching_disabled().build()

`transactional` of None leaves it to the pipeline's `StoreDefaults`. `mechanism` chooses how, and by itself asks for
transactions. Lengths of time are `timedelta`s or ms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from statestore.builder import StoreBuilder, TimestampedBuilder
from statestore.kinds.custom import Custom
from statestore.kinds.key_value import KeyValue
from statestore.kinds.lru import LruMap
from statestore.kinds.session import Session
from statestore.kinds.timestamped import TimestampedKeyValue
from statestore.kinds.timestamped_window import TimestampedWindow
from statestore.kinds.versioned import Versioned
from statestore.kinds.window import Window
from statestore.store import StateStore, TransactionalMechanism
from statestore.supplier import Duration, StoreSupplier, to_ms
from statestore.typed.key_value import TypedKeyValueStore, TypedTimestampedKeyValueStore
from statestore.typed.serdes import Serde
from statestore.typed.session import TypedSessionStore
from statestore.typed.versioned import TypedVersionedStore
from statestore.typed.window import TypedTimestampedWindowStore, TypedWindowStore

K = TypeVar("K")
V = TypeVar("V")

_Mechanism = TransactionalMechanism | None


# Key-value.


def persistent_key_value_store(
    name: str, transactional: bool | None = None, *, mechanism: _Mechanism = None
) -> StoreSupplier[KeyValue]:
    """A sorted map on disk."""
    return StoreSupplier(name, KeyValue, transactionality=transactional, mechanism=mechanism)


def persistent_transactional_key_value_store(name: str, *, mechanism: _Mechanism = None) -> StoreSupplier[KeyValue]:
    """`persistent_key_value_store`, transactional."""
    return persistent_key_value_store(name, True, mechanism=mechanism)


def persistent_timestamped_key_value_store(
    name: str, transactional: bool | None = None, *, mechanism: _Mechanism = None
) -> StoreSupplier[TimestampedKeyValue]:
    """A sorted map on disk whose values have times."""
    return StoreSupplier(name, TimestampedKeyValue, transactionality=transactional, mechanism=mechanism)


def persistent_transactional_timestamped_key_value_store(
    name: str, *, mechanism: _Mechanism = None
) -> StoreSupplier[TimestampedKeyValue]:
    """`persistent_timestamped_key_value_store`, transactional."""
    return persistent_timestamped_key_value_store(name, True, mechanism=mechanism)


def in_memory_key_value_store(
    name: str, transactional: bool | None = None, *, mechanism: _Mechanism = None
) -> StoreSupplier[KeyValue]:
    """A sorted map in memory."""
    return StoreSupplier(name, KeyValue, persistent=False, transactionality=transactional, mechanism=mechanism)


def lru_map(
    name: str, max_cache_size: int, transactional: bool | None = None, *, mechanism: _Mechanism = None
) -> StoreSupplier[LruMap]:
    """A map in memory that keeps its `max_cache_size` most recently used entries."""
    options = {"capacity": max_cache_size}
    return StoreSupplier(name, LruMap, options, persistent=False, transactionality=transactional, mechanism=mechanism)


# Versioned.


def persistent_versioned_key_value_store(
    name: str,
    history_retention: Duration,
    segment_interval: Duration | None = None,
    transactional: bool | None = None,
    *,
    mechanism: _Mechanism = None,
) -> StoreSupplier[Versioned]:
    """Histories of values on disk. `history_retention` is also how late a record may come."""
    return StoreSupplier(
        name,
        Versioned,
        {"history_retention_ms": to_ms(history_retention), **_segments(segment_interval)},
        transactionality=transactional,
        mechanism=mechanism,
    )


def persistent_transactional_versioned_key_value_store(
    name: str,
    history_retention: Duration,
    segment_interval: Duration | None = None,
    *,
    mechanism: _Mechanism = None,
) -> StoreSupplier[Versioned]:
    """`persistent_versioned_key_value_store`, transactional."""
    return persistent_versioned_key_value_store(name, history_retention, segment_interval, True, mechanism=mechanism)


def in_memory_versioned_key_value_store(
    name: str,
    history_retention: Duration,
    segment_interval: Duration | None = None,
    transactional: bool | None = None,
    *,
    mechanism: _Mechanism = None,
) -> StoreSupplier[Versioned]:
    """Histories of values in memory."""
    return StoreSupplier(
        name,
        Versioned,
        {"history_retention_ms": to_ms(history_retention), **_segments(segment_interval)},
        persistent=False,
        transactionality=transactional,
        mechanism=mechanism,
    )


# Windows.


def persistent_window_store(
    name: str,
    retention: Duration,
    window_size: Duration,
    retain_duplicates: bool = False,
    transactional: bool | None = None,
    *,
    segment_interval: Duration | None = None,
    mechanism: _Mechanism = None,
) -> StoreSupplier[Window]:
    """Windows on disk. `retention` must last from a window's start to the end of its grace."""
    options = _windows(retention, window_size, retain_duplicates, segment_interval)
    return StoreSupplier(name, Window, options, transactionality=transactional, mechanism=mechanism)


def persistent_transactional_window_store(
    name: str,
    retention: Duration,
    window_size: Duration,
    retain_duplicates: bool = False,
    *,
    segment_interval: Duration | None = None,
    mechanism: _Mechanism = None,
) -> StoreSupplier[Window]:
    """`persistent_window_store`, transactional."""
    return persistent_window_store(
        name,
        retention,
        window_size,
        retain_duplicates,
        transactional=True,
        segment_interval=segment_interval,
        mechanism=mechanism,
    )


def persistent_timestamped_window_store(
    name: str,
    retention: Duration,
    window_size: Duration,
    retain_duplicates: bool = False,
    transactional: bool | None = None,
    *,
    segment_interval: Duration | None = None,
    mechanism: _Mechanism = None,
) -> StoreSupplier[TimestampedWindow]:
    """Windows on disk whose values have times."""
    options = _windows(retention, window_size, retain_duplicates, segment_interval)
    return StoreSupplier(name, TimestampedWindow, options, transactionality=transactional, mechanism=mechanism)


def persistent_transactional_timestamped_window_store(
    name: str,
    retention: Duration,
    window_size: Duration,
    retain_duplicates: bool = False,
    *,
    segment_interval: Duration | None = None,
    mechanism: _Mechanism = None,
) -> StoreSupplier[TimestampedWindow]:
    """`persistent_timestamped_window_store`, transactional."""
    return persistent_timestamped_window_store(
        name,
        retention,
        window_size,
        retain_duplicates,
        transactional=True,
        segment_interval=segment_interval,
        mechanism=mechanism,
    )


def in_memory_window_store(
    name: str,
    retention: Duration,
    window_size: Duration,
    retain_duplicates: bool = False,
    transactional: bool | None = None,
    *,
    mechanism: _Mechanism = None,
) -> StoreSupplier[Window]:
    """Windows in memory."""
    options = _windows(retention, window_size, retain_duplicates, None)
    return StoreSupplier(name, Window, options, persistent=False, transactionality=transactional, mechanism=mechanism)


# Sessions.


def persistent_session_store(
    name: str, retention: Duration, transactional: bool | None = None, *, mechanism: _Mechanism = None
) -> StoreSupplier[Session]:
    """Sessions on disk. `retention` must last for the gap and the grace."""
    options = {"retention_ms": to_ms(retention)}
    return StoreSupplier(name, Session, options, transactionality=transactional, mechanism=mechanism)


def persistent_transactional_session_store(
    name: str, retention: Duration, *, mechanism: _Mechanism = None
) -> StoreSupplier[Session]:
    """`persistent_session_store`, transactional."""
    return persistent_session_store(name, retention, True, mechanism=mechanism)


def in_memory_session_store(
    name: str, retention: Duration, transactional: bool | None = None, *, mechanism: _Mechanism = None
) -> StoreSupplier[Session]:
    """Sessions in memory."""
    options = {"retention_ms": to_ms(retention)}
    return StoreSupplier(name, Session, options, persistent=False, transactionality=transactional, mechanism=mechanism)


# Builders.


def key_value_store_builder(
    supplier: StoreSupplier[Any], keys: Serde[K], values: Serde[V]
) -> StoreBuilder[TypedKeyValueStore[K, V]]:
    """For a plain key-value store, in memory, on disk or an LRU map."""
    return StoreBuilder(supplier, lambda store: TypedKeyValueStore(store, keys, values))


def timestamped_key_value_store_builder(
    supplier: StoreSupplier[Any], keys: Serde[K], values: Serde[V]
) -> StoreBuilder[TypedTimestampedKeyValueStore[K, V]]:
    """For a timestamped key-value store. A plain one in memory becomes timestamped; one on disk does not keep times."""
    return TimestampedBuilder(supplier, lambda store: TypedTimestampedKeyValueStore(store, keys, values))


def versioned_key_value_store_builder(
    supplier: StoreSupplier[Versioned], keys: Serde[K], values: Serde[V]
) -> StoreBuilder[TypedVersionedStore[K, V]]:
    """For a versioned store."""
    return StoreBuilder(supplier, lambda store: TypedVersionedStore(store, keys, values))


def window_store_builder(
    supplier: StoreSupplier[Any], keys: Serde[K], values: Serde[V]
) -> StoreBuilder[TypedWindowStore[K, V]]:
    """For a plain window store."""
    return StoreBuilder(supplier, lambda store: TypedWindowStore(store, keys, values))


def timestamped_window_store_builder(
    supplier: StoreSupplier[Any], keys: Serde[K], values: Serde[V]
) -> StoreBuilder[TypedTimestampedWindowStore[K, V]]:
    """For a timestamped window store. A plain one in memory becomes timestamped; one on disk does not keep times."""
    return TimestampedBuilder(supplier, lambda store: TypedTimestampedWindowStore(store, keys, values))


def session_store_builder(
    supplier: StoreSupplier[Session], keys: Serde[K], values: Serde[V]
) -> StoreBuilder[TypedSessionStore[K, V]]:
    """For a session store."""
    return StoreBuilder(supplier, lambda store: TypedSessionStore(store, keys, values))


def custom_store_builder(name: str, make: Callable[[], StateStore]) -> StoreBuilder[Any]:
    """For a store of the program's own (`kinds.custom`): `make` gives a new one, not opened, each time.

    Whether it is persistent and transactional it says itself. It has a changelog, and is restored from it by what it
    registers in its `init`, unless logging is disabled. What is opened anew holds what its folder does, or nothing. It
    has no record cache. Raises `TypeError` if `make` gives no `StateStore`, and `ValueError` if it has another name.
    """
    return StoreBuilder(StoreSupplier(name, Custom, {"make": make}), lambda store: store)


def _windows(
    retention: Duration, window_size: Duration, retain_duplicates: bool, segment_interval: Duration | None
) -> dict[str, Any]:
    return {
        "retention_ms": to_ms(retention),
        "window_size_ms": to_ms(window_size),
        "retain_duplicates": retain_duplicates,
        **_segments(segment_interval),
    }


def _segments(interval: Duration | None) -> dict[str, int]:
    return {} if interval is None else {"segment_interval_ms": to_ms(interval)}
