"""A transaction with a store's part of the record cache laid over it: reads see what was put and is not flushed yet.

Writes go to the transaction: they are what a flush makes. Reads of the committed version go past the cache.
"""

from __future__ import annotations

from collections.abc import Iterator

from statestore.cache.record_cache import Namespace
from statestore.overlay import merge
from statestore.spaces.base import Changes
from statestore.store import Entry, Isolation
from statestore.transactions.base import Transaction


class CachedTransaction(Transaction):
    """`beneath` is the mechanism's own."""

    def __init__(self, beneath: Transaction, cached: Namespace) -> None:
        super().__init__(beneath.store, beneath.base)
        self.beneath = beneath
        self._cached = cached

    @property
    def transactional(self) -> bool:
        return self.beneath.transactional

    @property
    def failed(self) -> bool:
        return self.beneath.failed

    @property
    def uncommitted_bytes(self) -> int:
        return self.beneath.uncommitted_bytes

    @property
    def memory_bytes(self) -> int:
        return self.beneath.memory_bytes

    def get(self, space: str, key: bytes, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> bytes | None:
        if isolation is Isolation.READ_UNCOMMITTED:
            entry = self._cached.get((space, key))
            if entry is not None:
                return entry.value
        return self.beneath.get(space, key, isolation)

    def get_many(
        self, space: str, keys: list[bytes], isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> list[bytes | None]:
        return [self.get(space, key, isolation) for key in keys]

    def spaces(self, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> list[str]:
        known = self.beneath.spaces(isolation)
        if isolation is Isolation.READ_COMMITTED:
            return known
        return sorted({*known, *self._cached.spaces()})

    def scan(
        self,
        space: str,
        *,
        lower: bytes | None = None,
        upper: bytes | None = None,
        upper_inclusive: bool = True,
        reverse: bool = False,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
    ) -> Iterator[Entry]:
        # The cache is copied first: what a flush moves in between is then seen twice, which the merge folds.
        changes = []
        if isolation is Isolation.READ_UNCOMMITTED and (lower is None or upper is None or lower <= upper):
            changes = self._cached.changes(space, lower, upper, upper_inclusive=upper_inclusive, reverse=reverse)
        entries = self.beneath.scan(
            space, lower=lower, upper=upper, upper_inclusive=upper_inclusive, reverse=reverse, isolation=isolation
        )
        return merge(entries, changes, reverse=reverse) if changes else entries

    def put(self, space: str, key: bytes, value: bytes | None) -> None:
        self.beneath.put(space, key, value)

    def put_all(self, space: str, changes: Changes) -> None:
        self.beneath.put_all(space, changes)

    def delete_range(self, space: str, lower: bytes | None, upper: bytes | None) -> None:
        self.beneath.delete_range(space, lower, upper)

    def drop(self, space: str) -> None:
        self.beneath.drop(space)

    def commit(self, space: str, metadata: Changes) -> None:
        self.beneath.commit(space, metadata)

    def rollback(self) -> None:
        self._cached.clear()
        self.beneath.rollback()

    def recover(self) -> None:
        self._cached.clear()
        self.beneath.recover()

    def close(self) -> None:
        self.beneath.close()
