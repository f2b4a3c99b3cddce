"""What a store is given when it is opened, and what it gives back: the records of its changelog."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from statestore.metrics import Metrics
from statestore.position import Position
from statestore.spaces.base import Changes
from statestore.store import StateStore, TransactionalMechanism
from statestore.transactions.base import Transaction

Headers = tuple[tuple[str, bytes], ...]


@dataclass(frozen=True)
class RecordContext:
    """The input record that is being processed. `timestamp_ms` is its CreateTime."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    headers: Headers = ()


@dataclass(frozen=True)
class ChangelogRecord:
    """One record of a store's changelog, byte for byte as Kafka Streams writes it. A None value is a tombstone."""

    store: str
    key: bytes
    value: bytes | None
    timestamp_ms: int
    headers: Headers = ()


RestoreCallback = Callable[[Sequence[ChangelogRecord]], None]
"""Puts changelog records into a store, in their order; only key, value, time and headers of each are to be read."""


@dataclass(frozen=True)
class StoreVersion:
    """What a commit says about its store, kept beside the data and written in the same step.

    layout: which kind wrote the data, and in which form; empty for a store that was never opened.
    offset: the changelog's next offset to read; None without changelog or when the version is unknown.
    stream_time_ms: the highest record time that the store has seen; -1 before the first.
    position: per input topic and partition, the offset of the newest record whose effect is in the store.
    running: a store that is not transactional is, or was when its process died, being written under exactly-once, so
        its content belongs to no commit.
    written_at_ms: a moment before anything behind that commit was committed, by this machine's clock: what was deleted since
        then is younger. 0 before the first.
    """

    layout: str = ""
    offset: int | None = None
    topic_id: str = ""
    stream_time_ms: int = -1
    position: Position = field(default_factory=Position)
    running: bool = False
    written_at_ms: int = 0


class StoreContext(ABC):
    """The task around a store: one per task, shared by its stores.

    metrics: where stores count and time what they do.
    record: set before each input record.
    exactly_once: whether content that may belong to no commit is refused (`TaskCorrupted`) rather than used.
    restoring: whether the stores may still lack what is committed: nobody but the task is to read them.
    positions_in_changelog: whether changelog records carry the store's position in headers, as Kafka Streams writes
        them with its consistency vectors switched on.
    version_at_ms: the `written_at_ms` of versions that are written from here on, however late that is; None takes the time
        of the write.
    """

    metrics: Metrics
    record: RecordContext | None = None
    exactly_once: bool = True
    restoring: bool = False
    positions_in_changelog: bool = False
    version_at_ms: int | None = None

    def count(self, metric: str, store: str, amount: float = 1.0) -> None:
        """An event of a store, named as Kafka Streams names its total (`dropped-records-total`)."""
        self.metrics.count(metric, store, amount)

    def now_ms(self) -> int:
        """Wall time in ms since the epoch."""
        return time.time_ns() // 1_000_000

    @abstractmethod
    def register(self, store: StateStore, restore: RestoreCallback | None = None) -> None:
        """Take a store into the task. Raises `ValueError` if another open one has its name.

        restore: what brings a store of the program's own (`kinds.custom`) back from its changelog.
        """

    @abstractmethod
    def folder_of(self, store: str) -> Path:
        """Where a store of the program's own keeps its files: made here, deleted whenever the store is wiped."""

    @abstractmethod
    def transaction(self, store: str, mechanism: TransactionalMechanism | None, *, persistent: bool) -> Transaction:
        """The store's transaction; None as mechanism is a store whose writes go straight in."""

    @abstractmethod
    def version(self, store: str, *, persistent: bool, seen_by: Transaction | None = None) -> StoreVersion | None:
        """What the last commit said; None if there was none. Raises `FormatUnsupported` for another format.

        seen_by: that of the version which committed reads of this transaction see, while a commit is on its way, too.
        """

    @abstractmethod
    def version_entries(self, store: str, version: StoreVersion) -> tuple[str, Changes]:
        """Space and entries by which a commit writes `version`."""

    @abstractmethod
    def log(self, record: ChangelogRecord) -> None:
        """Send one record to the store's changelog, inside the open Kafka transaction."""
