"""How a question is put: to which store and partitions, how far along it must be, at which isolation (KIP-796, KIP-844).

Requests are values: every `with_…` and `enable_…` gives a new one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Generic, Self, TypeVar

from statestore.position import Position
from statestore.query.queries import Query
from statestore.store import Isolation

R = TypeVar("R")


@dataclass(frozen=True)
class StateQueryRequest(Generic[R]):
    """One query to one store. `partitions` of None are all; an `isolation` of None is the default of who answers."""

    store_name: str
    query: Query[R]
    position_bound: Position = field(default_factory=Position)
    partitions: frozenset[int] | None = None
    isolation: Isolation | None = None
    require_active: bool = False
    execution_info: bool = False

    @staticmethod
    def in_store(name: str) -> InStore:
        """The store to ask; `with_query` completes the request."""
        return InStore(name)

    def with_position_bound(self, bound: Position) -> Self:
        """Answer only when the store is at least as far as `bound`; of it, each partition has to reach its own offsets."""
        return replace(self, position_bound=bound)

    def with_partitions(self, partitions: Iterable[int]) -> Self:
        """Ask these partitions."""
        return replace(self, partitions=frozenset(partitions))

    def with_all_partitions(self) -> Self:
        """Ask every partition that is open here."""
        return replace(self, partitions=None)

    def enable_read_committed(self) -> Self:
        """See the last commit only. A store without transactions answers with its newest data all the same."""
        return self.with_isolation_level(Isolation.READ_COMMITTED)

    def with_isolation_level(self, isolation: Isolation) -> Self:
        """See the store at this isolation, whatever the default."""
        return replace(self, isolation=isolation)

    def with_require_active(self) -> Self:
        """Do not take an answer from a standby."""
        return replace(self, require_active=True)

    def enable_execution_info(self) -> Self:
        """Have the answer say how it was found."""
        return replace(self, execution_info=True)


@dataclass(frozen=True)
class InStore:
    """A request that lacks its query."""

    store_name: str

    def with_query(self, query: Query[R]) -> StateQueryRequest[R]:
        """The request."""
        return StateQueryRequest(self.store_name, query)


class QueryableStoreType(Enum):
    """What kind of store a reader expects, and the reads it may use."""

    KEY_VALUE = "key-value"
    TIMESTAMPED_KEY_VALUE = "timestamped key-value"
    WINDOW = "window"
    TIMESTAMPED_WINDOW = "timestamped window"
    SESSION = "session"
    VERSIONED = "versioned"


@dataclass(frozen=True)
class StoreQueryParameters:
    """Which store a reader wants to hold in hand, for reads of its own. A `partition` of None is the only one here."""

    store_name: str
    store_type: QueryableStoreType
    partition: int | None = None
    isolation: Isolation | None = None
    stale_stores: bool = False

    @classmethod
    def from_name_and_type(cls, store_name: str, store_type: QueryableStoreType) -> Self:
        """A store by its name."""
        return cls(store_name, store_type)

    def with_partition(self, partition: int) -> Self:
        """One partition only."""
        return replace(self, partition=partition)

    def enable_stale_stores(self) -> Self:
        """Take standbys and stores that are being restored, too."""
        return replace(self, stale_stores=True)

    def enable_read_committed(self) -> Self:
        """See the last commit only (KIP-844)."""
        return self.with_isolation_level(Isolation.READ_COMMITTED)

    def with_isolation_level(self, isolation: Isolation) -> Self:
        """See the store at this isolation, whatever the default."""
        return replace(self, isolation=isolation)
