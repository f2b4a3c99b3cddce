"""Where committed data lives: named spaces, each a sorted map from bytes to bytes.

A store kind is a layout over spaces: a key-value store has one, a windowed store has one per segment. A `Base` knows
nothing of transactions; what it holds is committed. One `write` is atomic over all of its spaces, so a store's
changes and the offset they stand at go in together. Dropping a space is a deletion of files, never a scan.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from statestore.ranges import Range
from statestore.store import Entry

# What stores stand at, and of RocksDB's folders which spaces there are. No store is called so: its data would lie there.
CHECKPOINT, DEFAULT = "checkpoint", "default"
OWN_SPACES = frozenset({CHECKPOINT, DEFAULT})

Change = tuple[bytes, bytes | None]
Changes = Iterable[Change]


@dataclass(frozen=True)
class ChangeColumns:
    """Changes as two lists of one length: no pair is made of each, and none is there for the garbage collector."""

    keys: list[bytes]
    values: list[bytes | None]

    @classmethod
    def of(cls, changes: Changes) -> ChangeColumns:
        """Any changes in this form; what has it already is not copied."""
        if isinstance(changes, cls):
            return changes
        rows = list(changes)
        return cls([key for key, _ in rows], [value for _, value in rows])

    def taken(self, rows: Sequence[int]) -> ChangeColumns:
        """These changes, in this order."""
        keys, values = map(self.keys.__getitem__, rows), map(self.values.__getitem__, rows)
        return ChangeColumns(list(keys), list(values))

    @property
    def size_bytes(self) -> int:
        """Bytes of all keys and values."""
        return sum(map(len, self.keys)) + sum(map(len, filter(None, self.values)))

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[Change]:
        return zip(self.keys, self.values, strict=True)


class Base(ABC):
    """Committed data. Safe for one writer and any number of readers."""

    @property
    @abstractmethod
    def persistent(self) -> bool:
        """Whether the content outlives the process."""

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """True until `close`."""

    @abstractmethod
    def spaces(self) -> list[str]:
        """Names of the spaces that exist, sorted."""

    @abstractmethod
    def create(self, space: str) -> None:
        """Make an empty space. Harmless if it exists."""

    @abstractmethod
    def drop(self, space: str) -> None:
        """Delete a space and its content. Harmless if it does not exist. Scans under way keep their view."""

    @abstractmethod
    def get(self, space: str, key: bytes) -> bytes | None:
        """The value of one key; None if there is none or the space does not exist."""

    @abstractmethod
    def get_many(self, space: str, keys: list[bytes]) -> list[bytes | None]:
        """Values of the keys, in their order."""

    @abstractmethod
    def scan(
        self,
        space: str,
        *,
        lower: bytes | None = None,
        upper: bytes | None = None,
        upper_inclusive: bool = True,
        reverse: bool = False,
    ) -> Iterator[Entry]:
        """Entries with `lower` <= key <= `upper` in key order, as they are at the call; None leaves an end open."""

    def few(self, space: str, lower: bytes, upper: bytes) -> list[Entry] | None:
        """All entries between two keys, both included, ascending, as they are at the call: for a handful of them.

        None if they are more than that, or where a scan costs no more: scan then.
        """
        return None

    @abstractmethod
    def write(
        self,
        changes: Mapping[str, Changes],
        deleted: Mapping[str, Iterable[Range]] | None = None,
        *,
        sync: bool = False,
    ) -> None:
        """Apply all changes, of all spaces, in one atomic step. None deletes. Creates spaces that do not exist.

        `deleted` are ranges of keys, deleted before the changes are applied. `sync` returns when the disk has it,
        and all that was written before.
        """

    def still(self) -> AbstractContextManager[object]:
        """While it is held nobody writes, so that all reads are of one version; only what is in memory knows that."""
        return nullcontext()

    @abstractmethod
    def estimate(self, space: str) -> int:
        """An estimate of the number of keys; exact in memory; 0 if the space does not exist."""

    @abstractmethod
    def flush(self) -> None:
        """Bring what was written to disk."""

    @abstractmethod
    def close(self) -> None:
        """Release everything. Scans under way fail with `InvalidStateStore` on their next step. Twice is harmless."""
