"""From a supplier to a typed store: caching, changelog, and the pipeline's defaults. Builders are values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Self, TypeVar

import structlog

from statestore import changelog_topic
from statestore.cache.record_cache import RecordCache
from statestore.config import StoreDefaults
from statestore.errors import InvalidStateStore
from statestore.kinds.base import Kind
from statestore.kinds.key_value import KeyValue
from statestore.kinds.timestamped import TimestampedKeyValue
from statestore.kinds.timestamped_window import TimestampedWindow
from statestore.kinds.versioned import Versioned
from statestore.kinds.window import Window
from statestore.supplier import StoreSupplier
from statestore.typed.base import TypedStore

T = TypeVar("T", bound=TypedStore[Any, Any, Any])

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class StoreBuilder(Generic[T]):
    """`typed` puts the types over the store of bytes. A changelog is on and a cache off unless told otherwise."""

    supplier: StoreSupplier[Any]
    typed: Callable[[Any], T]
    caching_enabled: bool = False
    logging_enabled: bool = True
    topic_config: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.supplier is None:
            raise TypeError("a builder needs a supplier")

    @property
    def name(self) -> str:
        """The store's name."""
        return self.supplier.name

    def with_caching_enabled(self) -> Self:
        """Put the store behind the task's record cache.

        Where duplicates are retained it is not, with a warning; a versioned store raises `InvalidStateStore`.
        """
        if self.supplier.kind is Versioned:
            raise InvalidStateStore("a versioned store cannot be cached", store=self.name)
        if not self.supplier.cacheable:
            _log.warning("store cannot be cached and is not", store=self.name)
            return self
        return replace(self, caching_enabled=True)

    def with_caching_disabled(self) -> Self:
        """Write every put at once."""
        return replace(self, caching_enabled=False)

    def with_logging_enabled(self, topic_config: Mapping[str, str] | None = None) -> Self:
        """Keep a changelog; `topic_config` goes over the settings that the store's kind asks for."""
        return replace(self, logging_enabled=True, topic_config=topic_config or {})

    def with_logging_disabled(self) -> Self:
        """Keep no changelog: what is lost of the store cannot be restored."""
        return replace(self, logging_enabled=False, topic_config={})

    def log_config(self) -> dict[str, str]:
        """Settings of the changelog's topic; empty if there is none."""
        if not self.logging_enabled:
            return {}
        return changelog_topic.configured(self.supplier.get().changelog_config(), topic=self.topic_config)

    def build(self, defaults: StoreDefaults | None = None, *, cache: RecordCache | None = None) -> T:
        """The store, not opened. `cache` is the task's, needed if caching is on."""
        if self.caching_enabled and cache is None:
            raise ValueError(f"store {self.name} is to be cached, but there is no cache")
        used = cache if self.caching_enabled else None
        return self.typed(self._supplier().get(defaults, cache=used, logged=self.logging_enabled))

    def _supplier(self) -> StoreSupplier[Any]:
        return self.supplier


_WITH_TIMES: dict[type[Kind], type[Kind]] = {KeyValue: TimestampedKeyValue, Window: TimestampedWindow}


class TimestampedBuilder(StoreBuilder[T]):
    """In memory, where there is no old format to keep, a plain supplier is as good as a timestamped one."""

    def _supplier(self) -> StoreSupplier[Any]:
        kind = _WITH_TIMES.get(self.supplier.kind)
        return self.supplier if kind is None or self.supplier.persistent else self.supplier.as_kind(kind)
