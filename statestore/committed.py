"""The stores of a task that another process has open, as its last commit left them: read there, not written.

    stores = CommittedStores(folder)          the task's folder
    counts.init(stores)                       a store built as its owner has built it
    counts.get(b"k")
    stores.close()

Nothing is asked of the owner, and it waits for nobody. What is seen is one version, that of the moment when the first
store was opened: RocksDB is opened read only, files that the owner deletes meanwhile stay readable, and what is
uncommitted is not in them. A newer version takes opening anew, which costs some milliseconds and the log's length.

Some openings would not be of one version: while a secondary store is being copied, and while RocksDB makes or deletes files
or a store begins a segment. Each shows in what lies in the folders, so an opening in which they have changed is made again.
So does a restore: a task that opens its stores may give them a part of what is committed after the other.
"""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from statestore.config import RocksConfig
from statestore.context import ChangelogRecord, StoreVersion
from statestore.errors import InvalidConfig, InvalidInput, TaskCorrupted, Unavailable
from statestore.rocks.database import Database
from statestore.spaces.base import Changes
from statestore.store import TransactionalMechanism
from statestore.taskstores import TaskStores, restoring_file
from statestore.transactions.base import Transaction
from statestore.transactions.direct import DirectTransaction

_OPEN_S = 10.0


class CommittedStores(TaskStores):
    """For stores that are read and never written. Any thread may read.

    Raises `Unavailable` where the folder stays in change or is restored for ten seconds, `InvalidInput` for a write, for a store that
    its owner has not made and for one of the program's own, and `TaskCorrupted` for one without transactions that is
    being written: it has no commit.
    """

    def __init__(self, folder: Path, *, rocks: RocksConfig | None = None) -> None:
        super().__init__(folder, rocks=rocks)

    @property
    def database(self) -> Database:
        """The RocksDB of the persistent stores, opened when it is first asked for."""
        if self._database is None:
            again = Retrying(
                retry=retry_if_exception_type((Unavailable, TaskCorrupted)),
                stop=stop_after_delay(_OPEN_S),
                wait=wait_fixed(0.01),
                reraise=True,
            )
            self._database = again(self._opened)
        return self._database

    def _opened(self) -> Database:
        before = self._standing()
        database = Database(self.committed, [], self._rocks, read_only=True)
        if self._standing() != before:
            database.close()
            raise Unavailable("stores changed while they were opened", folder=self.folder, hint="try again")
        return database

    def _standing(self) -> tuple[int, ...]:
        """What changes with whatever an opening must not meet.

        Raises `Unavailable` while a commit is being copied, and while stores are restored.
        """
        if restoring_file(self.folder).exists():
            raise Unavailable("stores are being restored", folder=self.folder, hint="try again, or start the owner")
        if not self.committed.exists():
            raise InvalidInput("folder has no stores", folder=self.folder, hint="name the task's own folder")
        if copying := next(self.folder.glob("*.commit"), None):
            raise Unavailable("a commit is being applied", file=copying, hint="try again, or start the owner")
        # RocksDB notes new families in its manifest, of which there is one but for a moment.
        manifests = [path.stat().st_size for path in self.committed.glob("MANIFEST-*")]
        return (*(path.stat().st_mtime_ns for path in (self.folder, self.committed)), *manifests)

    def transaction(self, store: str, mechanism: TransactionalMechanism | None, *, persistent: bool) -> Transaction:
        if not persistent:
            raise InvalidConfig("store is in the memory of its own process", store=store)
        return _Reading(store, self.database)

    def version(self, store: str, *, persistent: bool, seen_by: Transaction | None = None) -> StoreVersion | None:
        found = super().version(store, persistent=persistent, seen_by=seen_by)
        if found is None:
            raise InvalidInput("folder has no such store", store=store, folder=self.folder)
        return found

    def folder_of(self, store: str) -> Path:
        raise InvalidInput(
            "what a store of the program's own keeps may be in change", store=store, hint="ask its owner"
        )

    def log(self, record: ChangelogRecord) -> None:
        _refuse(record.store)


class _Reading(DirectTransaction):
    """Reads only. What its owner has let expire, its owner drops."""

    def put_all(self, space: str, changes: Changes) -> None:
        _refuse(self.store)

    def delete_range(self, space: str, lower: bytes | None, upper: bytes | None) -> None:
        _refuse(self.store)

    def restore(self, changes: object) -> None:
        _refuse(self.store)

    def commit(self, space: str, metadata: Changes) -> None:
        _refuse(self.store)

    def drop(self, space: str) -> None:
        """Leave it: it is not read any more."""


def _refuse(store: str) -> NoReturn:
    raise InvalidInput("store is open for reading only", store=store, hint="its owner writes it")
