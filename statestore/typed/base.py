"""What every typed store shares: a bytes store beneath, serdes, figures, and refusing what has no bytes."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager
from typing import Generic, TypeVar

import structlog

from statestore.context import StoreContext
from statestore.kinds.base import Kind
from statestore.position import Position
from statestore.store import Isolation, StateStore
from statestore.typed.serdes import Serde

K = TypeVar("K")
V = TypeVar("V")
S = TypeVar("S", bound=Kind)

log = structlog.get_logger()

INVERTED_RANGE = (
    "returning an empty iterator because the range begins after its end: the ends were given in the wrong order, or "
    "the serde's bytes do not sort like its values, as those of negative numbers"
)


class TypedStore(StateStore, Generic[S, K, V]):
    """Serialises, checks, counts; everything else is the store beneath.

    A missing key raises `TypeError`. `metrics` of the task get `put`, `get`, `delete`, … with Kafka Streams' names.
    """

    def __init__(self, store: S, keys: Serde[K], values: Serde[V]) -> None:
        self.store = store
        self.keys = keys
        self.values = values

    @property
    def name(self) -> str:
        return self.store.name

    def init(self, context: StoreContext) -> None:
        self.store.init(context)

    def transactional(self) -> bool:
        return self.store.transactional()

    def persistent(self) -> bool:
        return self.store.persistent()

    def is_open(self) -> bool:
        return self.store.is_open()

    def commit(self, offset: int | None) -> None:
        with self._timed("commit"):
            self.store.commit(offset)

    def rollback(self) -> None:
        """Forget the open transaction."""
        self.store.rollback()

    def recover(self, offset: int | None) -> int | None:
        with self._timed("recover"):
            return self.store.recover(offset)

    def flush_cache(self) -> bool:
        """Bring what is only cached to the store and its changelog; gives whether there was anything."""
        return self.store.flush_cache()

    def flush(self) -> None:
        """Deprecated: KIP-844 puts `commit(offset)` in its place. Never commits."""
        warnings.warn("flush is deprecated: use commit(offset)", DeprecationWarning, stacklevel=2)
        with self._timed("flush"):
            self.store.flush()

    def close(self) -> None:
        self.store.close()

    def position(self, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> Position:
        """Which input is in the store at that isolation."""
        return self.store.position(isolation)

    def approximate_num_uncommitted_bytes(self) -> int:
        """Keys and values written since the last commit, overwrites counted again; 0 if not transactional."""
        return self.store.approximate_num_uncommitted_bytes()

    # For subclasses.

    def _timed(self, operation: str) -> AbstractContextManager[None]:
        return self.store.context.metrics.timed(operation, self.name)

    def _key(self, key: K) -> bytes:
        raw = self._bound(key)
        if raw is None:
            raise TypeError("a key must not be None")
        return raw

    def _bound(self, key: K | None) -> bytes | None:
        """An end of a range: None is open."""
        return self.keys.serialize(key)

    def _bounds(self, lower: K | None, upper: K | None) -> tuple[bytes | None, bytes | None]:
        """Both ends of a range; an inverted one is warned of."""
        low, high = self._bound(lower), self._bound(upper)
        self._inverted(low, high)
        return low, high

    def _inverted(self, lower: bytes | None, upper: bytes | None) -> bool:
        """Whether the range is empty for its ends' sake, which is then said once."""
        if lower is None or upper is None or lower <= upper:
            return False
        log.warning(INVERTED_RANGE, store=self.name)
        return True
