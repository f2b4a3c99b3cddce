"""Not transactional: every write goes straight into the base, one by one.

What Kafka Streams' stores do without KIP-844. Nothing keeps the writes since the last commit apart, so a crash leaves
a state that belongs to no commit; under exactly-once the store's version says so while it is open.
"""

from __future__ import annotations

from collections.abc import Iterator

from statestore.spaces.base import Base, Changes
from statestore.store import Entry, Isolation
from statestore.transactions.base import Transaction, noting_failure


class DirectTransaction(Transaction):
    """Both isolation levels see every write at once."""

    def __init__(self, store: str, base: Base) -> None:
        super().__init__(store, base)
        self.dirty = False

    @property
    def transactional(self) -> bool:
        return False

    @property
    def uncommitted_bytes(self) -> int:
        return 0

    def get(self, space: str, key: bytes, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> bytes | None:
        return self.base.get(space, key)

    def get_many(
        self, space: str, keys: list[bytes], isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> list[bytes | None]:
        return self.base.get_many(space, keys)

    def put(self, space: str, key: bytes, value: bytes | None) -> None:
        self.put_all(space, [(key, value)])

    @noting_failure
    def put_all(self, space: str, changes: Changes) -> None:
        self.dirty = True
        self.base.write({space: changes})

    @noting_failure
    def delete_range(self, space: str, lower: bytes | None, upper: bytes | None) -> None:
        self.dirty = True
        self.base.write({}, {space: [(lower, upper)]})

    @noting_failure
    def drop(self, space: str) -> None:
        self.dirty = True
        self.base.drop(space)

    def spaces(self, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> list[str]:
        return self.base_spaces()

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
        return self.base.scan(space, lower=lower, upper=upper, upper_inclusive=upper_inclusive, reverse=reverse)

    def few(
        self, space: str, lower: bytes, upper: bytes, isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> list[Entry] | None:
        return self.base.few(space, lower, upper)

    def commit(self, space: str, metadata: Changes) -> None:
        """Only the metadata: the writes are in."""
        self._require_whole()
        self.base.write({space: metadata})
        self.dirty = False

    def rollback(self) -> None:
        """Nothing can be taken back."""

    def recover(self) -> None:
        """Nothing to finish."""

    def close(self) -> None:
        """Nothing of its own."""
