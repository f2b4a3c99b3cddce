"""What stands between a store and its base: the mechanism that keeps uncommitted writes apart (KIP-844).

Every store kind writes and reads through a `Transaction`, so any kind works with any mechanism and any base. One
transaction is always open; `commit` makes its changes and the metadata given with it part of the base in one atomic
step (or in steps that a crash cannot tear apart), and opens the next.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from statestore.errors import RollforwardError, Unavailable
from statestore.spaces.base import Base, Changes
from statestore.store import Entry, Isolation

T = TypeVar("T", bound="Transaction")
P = ParamSpec("P")


def owns(store: str, space: str) -> bool:
    """Whether `space` belongs to `store`: it has the store's name, or begins with it and a dot."""
    return space == store or space.startswith(store + ".")


def noting_failure(write: Callable[Concatenate[T, P], None]) -> Callable[Concatenate[T, P], None]:
    """A write of which the transaction remembers that it has failed."""

    @wraps(write)
    def noted(self: T, /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            write(self, *args, **kwargs)
        except RollforwardError:
            self._failed = True
            raise

    return noted


class Transaction(ABC):
    """Uncommitted changes of one store, over any number of spaces. One writer, any number of readers.

    The store's spaces in the base are the one of its name and those that begin with its name and a dot.
    """

    def __init__(self, store: str, base: Base) -> None:
        self.store = store
        self.base = base
        self._failed = False

    def base_spaces(self) -> list[str]:
        """The store's committed spaces, sorted."""
        return [space for space in self.base.spaces() if owns(self.store, space)]

    def restore(self, changes: Mapping[str, Changes]) -> None:
        """Write committed data that comes from the changelog: one atomic step, past the open transaction."""
        self.base.write(changes)

    @property
    def failed(self) -> bool:
        """Whether a write has failed since the transaction began: a part of it may be missing, so it is not committed."""
        return self._failed

    def _require_whole(self) -> None:
        """Raises `Unavailable` if a write has failed."""
        if self.failed:
            raise Unavailable(
                "a write of the transaction has failed, so it cannot be committed",
                store=self.store,
                hint="roll back, or open the store again",
            )

    @property
    @abstractmethod
    def transactional(self) -> bool:
        """False if writes go straight in."""

    @property
    @abstractmethod
    def uncommitted_bytes(self) -> int:
        """Keys and values written since the last commit, overwrites counted again; 0 if not transactional."""

    @property
    def memory_bytes(self) -> int:
        """An upper estimate of what the uncommitted changes take in this process; 0 if they are not kept in it."""
        return 0

    @abstractmethod
    def get(self, space: str, key: bytes, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> bytes | None:
        """The value of one key at that isolation."""

    @abstractmethod
    def get_many(
        self, space: str, keys: list[bytes], isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> list[bytes | None]:
        """Values of the keys at that isolation, in their order."""

    @abstractmethod
    def put(self, space: str, key: bytes, value: bytes | None) -> None:
        """Set or, with None, delete."""

    @abstractmethod
    def put_all(self, space: str, changes: Changes) -> None:
        """Set or delete many, in the order given."""

    @abstractmethod
    def delete_range(self, space: str, lower: bytes | None, upper: bytes | None) -> None:
        """Delete all keys between two, both included; None leaves an end open."""

    @abstractmethod
    def drop(self, space: str) -> None:
        """Delete a whole space. Hidden at once from uncommitted reads, dropped from the base at commit."""

    @abstractmethod
    def spaces(self, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> list[str]:
        """Names of the store's spaces that exist at that isolation, sorted."""

    @abstractmethod
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
        """Entries in key order as they are at the call, uncommitted changes laid over committed data."""

    def few(
        self, space: str, lower: bytes, upper: bytes, isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> list[Entry] | None:
        """All entries between two keys, as `scan` gives them, at once if they are few; None: scan."""
        return None

    @abstractmethod
    def commit(self, space: str, metadata: Changes) -> None:
        """Make all changes committed, `metadata` written to `space` in the same atomic step; begin the next.

        Raises `Unavailable` if a write has failed: roll back first.
        """

    @abstractmethod
    def rollback(self) -> None:
        """Forget all changes since the last commit; begin the next."""

    @abstractmethod
    def recover(self) -> None:
        """After a crash: finish a commit that had begun, else forget its changes. Idempotent."""

    @abstractmethod
    def close(self) -> None:
        """Forget what is uncommitted, release everything of the mechanism's own. Does not close the base."""
