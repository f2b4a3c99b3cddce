"""What a store is to be, before there is one: kind, settings, and whether its writes are transactional (KIP-844).

Transactional or not is decided by the first that says so: the place that uses the store (`Materialized`), the
supplier, the pipeline's defaults. So is the mechanism.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Generic, TypeVar

from statestore.cache.record_cache import RecordCache
from statestore.cache.stores import CachedKeyValue, CachedTimestampedKeyValue
from statestore.cache.windowed import CachedSession, CachedTimestampedWindow, CachedWindow
from statestore.config import StoreDefaults
from statestore.kinds.base import Kind
from statestore.kinds.key_value import KeyValue
from statestore.kinds.lru import LruMap
from statestore.kinds.session import Session
from statestore.kinds.timestamped import TimestampedKeyValue
from statestore.kinds.timestamped_window import TimestampedWindow
from statestore.kinds.window import Window
from statestore.store import TransactionalMechanism
from statestore.windows import MAX_TIME_MS

S = TypeVar("S", bound=Kind)
S2 = TypeVar("S2", bound=Kind)

Duration = timedelta | int
"""A length of time: a `timedelta`, or ms."""

_CACHED: dict[type[Kind], type[Kind]] = {
    KeyValue: CachedKeyValue,
    TimestampedKeyValue: CachedTimestampedKeyValue,
    Window: CachedWindow,
    TimestampedWindow: CachedTimestampedWindow,
    Session: CachedSession,
}


def to_ms(duration: Duration) -> int:
    """A length of time in whole ms. Raises `ValueError` if it does not fit into 63 bits."""
    ms = duration // timedelta(milliseconds=1) if isinstance(duration, timedelta) else duration
    if ms > MAX_TIME_MS:
        raise ValueError(f"duration is too long: {ms} ms")
    return ms


@dataclass(frozen=True)
class StoreSupplier(Generic[S]):
    """Makes stores of bytes. `options` are the kind's own; None in the two last fields leaves it to others."""

    name: str
    kind: type[S]
    options: Mapping[str, Any] = field(default_factory=dict)
    persistent: bool = True
    transactionality: bool | None = None
    mechanism: TransactionalMechanism | None = None

    def __post_init__(self) -> None:
        # Settings that no store can have are refused here, where they are made.
        self.get()

    def transactional(self, defaults: StoreDefaults | None = None) -> bool:
        """Whether `get` gives a transactional store. A mechanism without a word on transactions asks for them."""
        if self.transactionality is not None:
            return self.transactionality
        return self.mechanism is not None or (defaults or StoreDefaults()).transactional

    def with_transactionality(self, transactional: bool | None) -> StoreSupplier[S]:
        """The same, transactional or not whatever the defaults; None changes nothing."""
        return self if transactional is None else replace(self, transactionality=transactional)

    def as_kind(self, kind: type[S2]) -> StoreSupplier[S2]:
        """The same settings for another kind."""
        return replace(self, kind=kind)  # type: ignore[arg-type,return-value]

    @property
    def cacheable(self) -> bool:
        """Whether a record cache can stand in front: not where every value of a key counts."""
        return self.kind in _CACHED and not self.options.get("retain_duplicates", False)

    def get(self, defaults: StoreDefaults | None = None, *, cache: RecordCache | None = None, logged: bool = True) -> S:
        """A store, not opened. With a `cache` it is behind that."""
        chosen = self.mechanism or (defaults or StoreDefaults()).mechanism
        options: dict[str, Any] = {
            **self.options,
            "mechanism": chosen if self.transactional(defaults) else None,
            "logged": logged,
        }
        if self.kind is not LruMap:
            options["persistent"] = self.persistent
        if cache is None:
            return self.kind(self.name, **options)
        return _CACHED[self.kind](self.name, cache=cache, **options)  # type: ignore[return-value,call-arg]
