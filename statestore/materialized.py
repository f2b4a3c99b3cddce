"""How the result of an operation is kept: which store, with which settings, transactional or not (KIP-844)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Self, TypeVar

from statestore.builder import StoreBuilder
from statestore.config import StoreDefaults
from statestore.kinds.base import Kind
from statestore.kinds.versioned import Versioned
from statestore.supplier import Duration, StoreSupplier, to_ms
from statestore.typed.base import TypedStore
from statestore.typed.serdes import Serde
from statestore.windows import Windows

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T", bound=TypedStore[Any, Any, Any])


@dataclass(frozen=True)
class Materialized(Generic[K, V]):
    """A value; every `with_…` gives a new one. Without a supplier the operation chooses the store."""

    store_name: str | None = None
    supplier: StoreSupplier[Any] | None = None
    keys: Serde[K] | None = None
    values: Serde[V] | None = None
    retention_ms: int | None = None
    caching_enabled: bool = True
    logging_enabled: bool = True
    topic_config: Mapping[str, str] = field(default_factory=dict)
    transactionality: bool | None = None

    @classmethod
    def named(cls, store_name: str) -> Self:
        """A store of this name. Raises `TypeError` for None."""
        if store_name is None:
            raise TypeError("a store's name is a string, not None")
        return cls(store_name)

    @classmethod
    def with_supplier(cls, supplier: StoreSupplier[Any]) -> Self:
        """The store that `supplier` makes. Raises `TypeError` for None."""
        if supplier is None:
            raise TypeError("a supplier must not be None")
        return cls(supplier.name, supplier)

    def with_key_serde(self, keys: Serde[K]) -> Self:
        """How keys become bytes."""
        return replace(self, keys=keys)

    def with_value_serde(self, values: Serde[V]) -> Self:
        """How values become bytes."""
        return replace(self, values=values)

    def with_retention(self, retention: Duration) -> Self:
        """How long windows or sessions are kept. Raises `ValueError` if negative."""
        retention_ms = to_ms(retention)
        if retention_ms < 0:
            raise ValueError(f"retention must not be negative: {retention_ms} ms")
        return replace(self, retention_ms=retention_ms)

    def with_caching_enabled(self) -> Self:
        """Put the store behind the record cache."""
        return replace(self, caching_enabled=True)

    def with_caching_disabled(self) -> Self:
        """Write and forward every change."""
        return replace(self, caching_enabled=False)

    def with_logging_enabled(self, topic_config: Mapping[str, str] | None = None) -> Self:
        """Keep a changelog."""
        return replace(self, logging_enabled=True, topic_config=topic_config or {})

    def with_logging_disabled(self) -> Self:
        """Keep no changelog."""
        return replace(self, logging_enabled=False, topic_config={})

    def with_transactionality_enabled(self) -> Self:
        """Make the store transactional, whatever the supplier or the pipeline says."""
        return replace(self, transactionality=True)

    def with_transactionality_disabled(self) -> Self:
        """Make the store not transactional, whatever the supplier or the pipeline says."""
        return replace(self, transactionality=False)

    def store_supplier(self, kind: type[Kind] | None = None, **options: Any) -> StoreSupplier[Any] | None:
        """What makes the store: the supplier given, or one of `kind` by this name. None if there is neither."""
        supplier = self.supplier
        if supplier is None and kind is not None and self.store_name is not None:
            kept = {} if self.retention_ms is None else {"retention_ms": self.retention_ms}
            supplier = StoreSupplier(self.store_name, kind, {**options, **kept})
        return None if supplier is None else supplier.with_transactionality(self.transactionality)

    def store_builder(
        self,
        make: Callable[[StoreSupplier[Any], Serde[K], Serde[V]], StoreBuilder[T]],
        kind: type[Kind] | None = None,
        *,
        windows: Windows | None = None,
        **options: Any,
    ) -> StoreBuilder[T]:
        """What `make`, one of the `…_builder` functions of `stores`, makes of all that is said here.

        Without a supplier the store is a `kind` with these options, kept for the retention said here. Caching is left
        out where a store cannot be cached. Raises `TypeError` if there is no supplier, no key or no value serde.

        windows: those that the store is for. They give what is not said of size and retention; a store, a supplier's
            too, that does not keep them for as long as they accept records raises `ValueError`, as Kafka Streams'
            materializers of stores do.
        """
        supplier = self.store_supplier(kind, **{**({} if windows is None else windows.store_options()), **options})
        if supplier is None or self.keys is None or self.values is None:
            raise TypeError("a builder needs a supplier, or a name and a kind, and the serdes of keys and values")
        if windows is not None:
            _check_retention(supplier, windows)
        builder = make(supplier, self.keys, self.values)
        if self.caching_enabled and supplier.kind is not Versioned:
            builder = builder.with_caching_enabled()
        if self.logging_enabled:
            return builder.with_logging_enabled(self.topic_config)
        return builder.with_logging_disabled()

    def transactional(self, defaults: StoreDefaults | None = None) -> bool:
        """Whether the store will be transactional: said here, by the supplier, or by the pipeline, in this order."""
        if self.transactionality is not None:
            return self.transactionality
        if self.supplier is not None:
            return self.supplier.transactional(defaults)
        return (defaults or StoreDefaults()).transactional


def _check_retention(supplier: StoreSupplier[Any], windows: Windows) -> None:
    retention_ms = supplier.options.get("retention_ms")
    if retention_ms is None:
        raise ValueError(f"store {supplier.name} keeps no windows")
    windows.check_retention(retention_ms)


@dataclass(frozen=True)
class StreamJoined:
    """The stores of both sides of a stream-stream join, transactional alike (KIP-844)."""

    this_supplier: StoreSupplier[Any] | None = None
    other_supplier: StoreSupplier[Any] | None = None
    transactionality: bool | None = None

    def with_transactionality_enabled(self) -> Self:
        """Make both stores transactional."""
        return replace(self, transactionality=True)

    def with_transactionality_disabled(self) -> Self:
        """Make neither store transactional."""
        return replace(self, transactionality=False)

    def store_suppliers(self) -> tuple[StoreSupplier[Any] | None, StoreSupplier[Any] | None]:
        """What makes the stores of this and the other side."""
        this, other = self.this_supplier, self.other_supplier
        return (
            None if this is None else this.with_transactionality(self.transactionality),
            None if other is None else other.with_transactionality(self.transactionality),
        )
