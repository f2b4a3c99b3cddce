"""AUTO: an indexed batch that goes on in a secondary store once it would take too much memory.

A small transaction is committed by one atomic write; a large one spills at `uncommitted_bytes_max`: its changes are
copied to the secondary store, which then takes every further one until commit or rollback. Readers that hold the
in-memory part keep it, whole, until they are done. A spill that fails leaves a part of the changes in the secondary
store: the transaction cannot be committed then, and rolling it back empties both.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from statestore.failpoints import reach
from statestore.spaces.base import Change, Changes
from statestore.store import Entry, Isolation
from statestore.transactions.base import Transaction
from statestore.transactions.indexed_batch import IndexedBatchTransaction
from statestore.transactions.secondary_store import SecondaryStoreTransaction

_CHUNK = 10_000


class AutoTransaction(Transaction):
    """`uncommitted_bytes_max` bounds what the changes take in memory, bookkeeping included."""

    def __init__(self, large: SecondaryStoreTransaction, *, uncommitted_bytes_max: int) -> None:
        super().__init__(large.store, large.base)
        self._bytes_max = uncommitted_bytes_max
        self._large = large
        self._small = IndexedBatchTransaction(self.store, self.base)
        self._active: Transaction = self._small

    @property
    def transactional(self) -> bool:
        return True

    @property
    def failed(self) -> bool:
        return self._failed or self._large.failed

    @property
    def uncommitted_bytes(self) -> int:
        return self._active.uncommitted_bytes

    @property
    def memory_bytes(self) -> int:
        return self._active.memory_bytes

    @property
    def spilled(self) -> bool:
        """Whether the open transaction is in the secondary store."""
        return self._active is self._large

    def get(self, space: str, key: bytes, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> bytes | None:
        return self._active.get(space, key, isolation)

    def get_many(
        self, space: str, keys: list[bytes], isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> list[bytes | None]:
        return self._active.get_many(space, keys, isolation)

    def put(self, space: str, key: bytes, value: bytes | None) -> None:
        self._active.put(space, key, value)
        self._keep_bound()

    def put_all(self, space: str, changes: Changes) -> None:
        """In chunks, since a single call may bring more than memory should hold."""
        rest: Iterator[Change] = iter(changes)
        while chunk := list(islice(rest, _CHUNK)):
            self._active.put_all(space, chunk)
            self._keep_bound()

    def delete_range(self, space: str, lower: bytes | None, upper: bytes | None) -> None:
        self._active.delete_range(space, lower, upper)
        self._keep_bound()

    def drop(self, space: str) -> None:
        self._active.drop(space)

    def spaces(self, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> list[str]:
        return self._active.spaces(isolation)

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
        return self._active.scan(
            space, lower=lower, upper=upper, upper_inclusive=upper_inclusive, reverse=reverse, isolation=isolation
        )

    def _keep_bound(self) -> None:
        if self._active is self._small and self._small.memory_bytes > self._bytes_max:
            self._spill()

    def _spill(self) -> None:
        try:
            self._move()
        except BaseException:
            self._failed = True
            raise

    def _move(self) -> None:
        reach("spill.begun")
        small, large = self._small, self._large
        for space in small.dropped:
            large.drop(space)
        for space, overlay in small.overlays.items():
            for lower, upper in overlay.deleted:
                large.delete_range(space, lower, upper)
            large.put_all(space, overlay.items())
            reach("spill.in")
        self._active = large
        self._small = IndexedBatchTransaction(self.store, self.base)
        reach("spill.done")

    def few(
        self, space: str, lower: bytes, upper: bytes, isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> list[Entry] | None:
        return self._active.few(space, lower, upper, isolation)

    def commit(self, space: str, metadata: Changes) -> None:
        self._require_whole()
        self._active.commit(space, metadata)
        self._active = self._small

    def rollback(self) -> None:
        # Both, since a spill that failed has begun the second.
        self._large.rollback()
        self._small.rollback()
        self._active = self._small
        self._failed = False

    def recover(self) -> None:
        self._small.recover()
        self._large.recover()
        self._active = self._small
        self._failed = False

    def close(self) -> None:
        self._small.close()
        self._large.close()
