"""The stores of one task, without an engine around them: where a program's own Kafka loop opens them.

    <folder>/committed/            one RocksDB: the spaces of all persistent stores, and what they stand at
    <folder>/<store>.uncommitted/  writes of the open transaction that went to disk
    <folder>/<store>.commit        there while these are being copied
    <folder>/<store>.files/        what a store of the program's own keeps
    <folder>/restoring             there while a task changes its stores to bring them to its last commit
    <folder>/committed.recovering  there while a changelog is loaded beside `committed` (`load`)

Stores in memory share one base of their own. What a store stands at is one entry of the space `checkpoint`, written in
the same step as the store's data: format, layout, changelog offset, stream time, position.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from statestore.config import RocksConfig
from statestore.context import ChangelogRecord, RestoreCallback, StoreContext, StoreVersion
from statestore.errors import FormatUnsupported, TaskCorrupted, Unavailable
from statestore.folders import settle, unfinished
from statestore.metrics import Metrics
from statestore.position import Position
from statestore.rocks.database import Database
from statestore.spaces.base import CHECKPOINT, OWN_SPACES, Base, Changes
from statestore.spaces.memory import MemoryBase
from statestore.store import Isolation, StateStore, TransactionalMechanism
from statestore.transactions.auto import AutoTransaction
from statestore.transactions.base import Transaction, owns
from statestore.transactions.direct import DirectTransaction
from statestore.transactions.indexed_batch import IndexedBatchTransaction
from statestore.transactions.secondary_store import COPY_BYTES_MAX, SecondaryStoreTransaction

FORMAT = 1
_RESTORING = "restoring"


def _drop_record(record: ChangelogRecord) -> None:
    """For tasks whose stores have no changelog."""


class TaskStores(StoreContext):
    """One open task folder. One thread writes; any may read.

    sink: gets every changelog record, in the order of the writes; produce it inside the task's Kafka transaction.
    exactly_once: False takes what a crash left of a store without transactions for good.
    uncommitted_bytes_max: AUTO keeps this much of a transaction in memory, then spills.
    copy_bytes_max: a secondary store is copied at commit in writes of about this size; each is in memory once.
    """

    def __init__(
        self,
        folder: Path,
        *,
        sink: Callable[[ChangelogRecord], None] = _drop_record,
        exactly_once: bool = True,
        positions_in_changelog: bool = False,
        rocks: RocksConfig | None = None,
        uncommitted_bytes_max: int = 64 * 1024 * 1024,
        copy_bytes_max: int = COPY_BYTES_MAX,
    ) -> None:
        self.folder = folder
        self.exactly_once = exactly_once
        self.positions_in_changelog = positions_in_changelog
        self.metrics = Metrics()
        self._sink = sink
        self._rocks = rocks or RocksConfig()
        self._uncommitted_bytes_max = uncommitted_bytes_max
        self._copy_bytes_max = copy_bytes_max
        self._memory = MemoryBase()
        self._database: Database | None = None
        self._stores: dict[str, StateStore] = {}

    def _base(self, *, persistent: bool) -> Base:
        if not persistent:
            return self._memory
        return self.database

    @property
    def database(self) -> Database:
        """The RocksDB of the persistent stores, opened when it is first asked for."""
        if self._database is None:
            settle(self.committed)
            self._database = Database(self.committed, [CHECKPOINT], self._rocks)
            # Only now is the folder certainly nobody else's.
            shutil.rmtree(unfinished(self.committed), ignore_errors=True)
        return self._database

    @property
    def committed(self) -> Path:
        """The folder of the persistent stores."""
        return self.folder / "committed"

    # For stores.

    def register(self, store: StateStore, restore: RestoreCallback | None = None) -> None:
        known = self._stores.get(store.name)
        if known is not None and known.is_open():
            raise ValueError(f"task has a store of this name already: {store.name}")
        if store.name in OWN_SPACES:
            raise ValueError(f"a store must not be named {store.name}: a space beside those of stores is called so")
        self._stores[store.name] = store
        if not store.persistent():
            self._forget(self._memory, store.name)

    def folder_of(self, store: str) -> Path:
        folder = self.folder / f"{store}.files"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def transaction(self, store: str, mechanism: TransactionalMechanism | None, *, persistent: bool) -> Transaction:
        """In memory every mechanism is the indexed batch: there is nothing to recover and no disk to spill to."""
        if mechanism is None:
            return DirectTransaction(store, self._base(persistent=persistent))
        if not persistent:
            return IndexedBatchTransaction(store, self._memory)
        if mechanism is TransactionalMechanism.INDEXED_BATCH:
            return IndexedBatchTransaction(store, self.database)
        secondary = SecondaryStoreTransaction(
            store, self.database, self.folder, self._rocks, copy_bytes_max=self._copy_bytes_max
        )
        if mechanism is TransactionalMechanism.SECONDARY_STORE:
            return secondary
        return AutoTransaction(secondary, uncommitted_bytes_max=self._uncommitted_bytes_max)

    def version(self, store: str, *, persistent: bool, seen_by: Transaction | None = None) -> StoreVersion | None:
        key = store.encode()
        if seen_by is None:
            raw = self._base(persistent=persistent).get(CHECKPOINT, key)
        else:
            raw = seen_by.get(CHECKPOINT, key, Isolation.READ_COMMITTED)
        return None if raw is None else _parse(raw, store)

    def version_entries(self, store: str, version: StoreVersion) -> tuple[str, Changes]:
        fields = {
            "format": FORMAT,
            "layout": version.layout,
            "offset": version.offset,
            "topic_id": version.topic_id,
            "stream_time_ms": version.stream_time_ms,
            "position": version.position.to_json(),
            "written_at_ms": version.written_at_ms,
            "running": version.running,
        }
        return CHECKPOINT, [(store.encode(), json.dumps(fields, separators=(",", ":")).encode())]

    def log(self, record: ChangelogRecord) -> None:
        self._sink(record)

    # For the program around.

    @property
    def counters(self) -> dict[tuple[str, str], float]:
        """(name of a total, store) -> how often; `metrics` has the rates and latencies."""
        return self.metrics.totals()

    def restore_begins(self) -> None:
        """Nobody reads the stores from here on, other processes included, until `restored`; a crash lets that stand.

        For when what is on disk is about to change, and not before: what cannot be restored may be the last copy.
        Raises `Unavailable` where the disk does not take the file that says so.
        """
        self.restoring = True
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            restoring_file(self.folder).touch()
        except OSError as error:
            raise Unavailable("task's folder cannot be written", folder=self.folder, error=error) from error

    def restored(self) -> None:
        """All stores are at the task's last commit."""
        restoring_file(self.folder).unlink(missing_ok=True)
        self.restoring = False

    def wipe(self, store: str) -> None:
        """Delete all that is left of a closed store: the answer to `TaskCorrupted`, before it is restored."""
        self._forget(self.database, store)
        (self.folder / f"{store}.commit").unlink(missing_ok=True)
        shutil.rmtree(self.folder / f"{store}.uncommitted", ignore_errors=True)
        if (self.folder / f"{store}.files").exists():
            shutil.rmtree(self.folder / f"{store}.files")

    def _forget(self, base: Base, store: str) -> None:
        # First what vouches for the data: what has neither is taken for new, what has data alone is emptied.
        base.write({CHECKPOINT: [(store.encode(), None)]}, sync=True)
        for space in base.spaces():
            if owns(store, space):
                base.drop(space)

    def flush(self) -> None:
        """Flush every open store. One that fails does not keep the others from it; the first error is raised then."""
        self._each(lambda store: store.flush())

    def close(self) -> None:
        """Close every store and release the folder, whatever fails; the first error is raised then."""
        try:
            self._each(lambda store: store.close())
        finally:
            self._memory.close()
            if self._database is not None:
                self._database.close()

    def _each(self, act: Callable[[StateStore], None]) -> None:
        errors: list[Exception] = []
        for store in self._stores.values():
            try:
                if store.is_open():
                    act(store)
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]


def restoring_file(folder: Path) -> Path:
    """There while what is in the task's folder may lack what is committed."""
    return folder / _RESTORING


# Between two commits every committed read asks for the same.
@lru_cache(maxsize=256)
def _parse(raw: bytes, store: str) -> StoreVersion:
    try:
        fields = json.loads(raw)
        found = fields.pop("format")
        if found != FORMAT:
            raise FormatUnsupported("store has another format", store=store, found=found, supported=FORMAT)
        if fields["offset"] is not None and fields["offset"] < 0:
            fields["offset"] = None
        return StoreVersion(**{**fields, "position": Position.from_json(fields["position"])})
    except (ValueError, TypeError, KeyError) as error:
        raise TaskCorrupted("what the store stands at is unreadable", store=store, error=error) from error


def wipe_task(folder: Path) -> None:
    """Delete a closed task's local state. It is a cache: the changelogs have it all."""
    if folder.exists():
        shutil.rmtree(folder)
