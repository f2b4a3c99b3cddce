"""The store interface of KIP-844, in Python spelling.

Keys and values are bytes; an empty value is a value, `None` is a deletion. A transactional store keeps writes apart
until `commit(offset)`, which makes all of them and the changelog offset durable in one atomic step; `recover(offset)`
after a crash returns to the last committed version. A read that is not told otherwise sees the store's own
uncommitted writes; with `Isolation.READ_COMMITTED` it sees the last committed version and waits for nobody.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING

from statestore.iterator import StoreIterator

if TYPE_CHECKING:
    from statestore.context import StoreContext

Entry = tuple[bytes, bytes]


class Isolation(Enum):
    """Which version a read sees."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


class TransactionalMechanism(Enum):
    """How a store keeps uncommitted writes apart (KIP-844, `RocksDBTransactionalMechanism`)."""

    INDEXED_BATCH = "indexed_batch"  # in memory, one atomic write at commit
    SECONDARY_STORE = "secondary_store"  # in a temporary RocksDB, copied at commit under a commit file
    AUTO = "auto"  # the first, and the second once the writes no longer fit


class StateStore(ABC):
    """What every store kind shares."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The store's name, unique in its task."""

    @abstractmethod
    def init(self, context: StoreContext) -> None:
        """Open the store in its task. A transactional store opens its first transaction here."""

    def transactional(self) -> bool:
        """Whether writes apply atomically at `commit` (KIP-844). False unless a store says otherwise."""
        return False

    @abstractmethod
    def persistent(self) -> bool:
        """Whether the store's content outlives the process."""

    @abstractmethod
    def is_open(self) -> bool:
        """True between `init` and `close`."""

    def commit(self, offset: int | None) -> None:
        """Make all writes since the last commit part of the committed version, together with `offset`.

        `offset` is the changelog's next offset to read (exclusive end of what the store holds); None forgets it.
        Unless a store says otherwise it has no transactions, and this flushes what it buffers (KIP-844). Raises
        `NotImplementedError` for a transactional store without a commit of its own.
        """
        if self.transactional():
            raise NotImplementedError(f"a transactional store has to commit: {self.name}")
        self.flush()

    def recover(self, offset: int | None) -> int | None:
        """Return to a committed version after a crash and give the changelog offset it stands at.

        `offset` is the one the caller believes committed; `None` if it knows of none. The result is where the
        changelog has to be read from; `None` means from its beginning. A store without transactions has nothing to
        return to. Raises `NotImplementedError` for a transactional store without a recovery of its own.
        """
        if self.transactional():
            raise NotImplementedError(f"a transactional store has to recover: {self.name}")
        return offset

    @abstractmethod
    def flush(self) -> None:
        """Write buffered, already committed data to disk. Never commits (KIP-844 splits the two)."""

    @abstractmethod
    def close(self) -> None:
        """Drop uncommitted writes and release everything. Closing twice is harmless."""


class KeyValueStore(StateStore):
    """A sorted map from bytes to bytes."""

    @abstractmethod
    def get(self, key: bytes, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> bytes | None:
        """The value of `key`, or None."""

    def get_many(self, keys: Iterable[bytes], isolation: Isolation = Isolation.READ_UNCOMMITTED) -> list[bytes | None]:
        """`get` of each key, in their order: faster than one after the other."""
        return [self.get(key, isolation) for key in keys]

    @abstractmethod
    def put(self, key: bytes, value: bytes | None) -> None:
        """Set `key`; `None` deletes it."""

    def put_if_absent(self, key: bytes, value: bytes | None) -> bytes | None:
        """Set `key` if it has no value. Returns the value it had, None if it was set."""
        existing = self.get(key)
        if existing is None:
            self.put(key, value)
        return existing

    def put_all(self, entries: Iterable[tuple[bytes, bytes | None]]) -> None:
        """`put` each entry in the order given."""
        for key, value in entries:
            self.put(key, value)

    def delete(self, key: bytes) -> bytes | None:
        """Delete `key` and return the value it had."""
        existing = self.get(key)
        self.put(key, None)
        return existing

    @abstractmethod
    def scan(
        self,
        *,
        lower: bytes | None,
        upper: bytes | None,
        upper_inclusive: bool = True,
        reverse: bool = False,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
    ) -> StoreIterator[bytes, bytes]:
        """Entries with `lower` <= key <= `upper` in key order, as they are when the scan begins; None leaves an end open."""

    def range(
        self, lower: bytes | None, upper: bytes | None, isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> StoreIterator[bytes, bytes]:
        """Entries between two keys, both included, ascending. None is an open end."""
        return self.scan(lower=lower, upper=upper, isolation=isolation)

    def reverse_range(
        self, lower: bytes | None, upper: bytes | None, isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> StoreIterator[bytes, bytes]:
        """`range`, descending."""
        return self.scan(lower=lower, upper=upper, reverse=True, isolation=isolation)

    def all(self, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> StoreIterator[bytes, bytes]:
        """Every entry, ascending."""
        return self.scan(lower=None, upper=None, isolation=isolation)

    def reverse_all(self, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> StoreIterator[bytes, bytes]:
        """Every entry, descending."""
        return self.scan(lower=None, upper=None, reverse=True, isolation=isolation)

    def prefix_scan(
        self, prefix: bytes, isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> StoreIterator[bytes, bytes]:
        """Entries whose key starts with `prefix`, ascending."""
        return self.scan(lower=prefix, upper=after_prefix(prefix), upper_inclusive=False, isolation=isolation)

    @abstractmethod
    def approximate_num_entries(self) -> int:
        """An estimate of the number of keys, uncommitted writes left out."""


def after_prefix(prefix: bytes) -> bytes | None:
    """The smallest key greater than every key with this prefix; None if there is none (all bytes are 0xff)."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None
