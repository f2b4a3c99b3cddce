"""A store of the program's own in a task: opened, logged, committed, restored and wiped as the library's own are.

    class Totals(StateStore):
        def init(self, context):
            context.register(self, self.restore)
            self.file = context.folder_of(self.name) / "totals.json"
            ...

    task = StreamTask(config, [custom_store_builder("totals", Totals)])

The store keeps its content as it likes and makes it durable in `commit` and `close`; opened anew it holds what its folder
does, or nothing. What it stands at is kept by `Custom` in the task's database.
Without transactions its content belongs to no commit once it has logged something, so under exactly-once a crash wipes
its folder and its changelog restores it (KIP-844, "Compatibility": such stores go on as they are). One that says
`transactional()` keeps the contract of `StateStore.commit` and `recover`: its own word of where it stands is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from statestore.context import ChangelogRecord, RecordContext, RestoreCallback, StoreContext, StoreVersion
from statestore.errors import InvalidStateStore
from statestore.kinds.base import Kind
from statestore.spaces.base import Changes
from statestore.store import StateStore, TransactionalMechanism
from statestore.transactions.base import Transaction
from statestore.transactions.direct import DirectTransaction


class Custom(Kind):
    """What stands for the store in its task. `mechanism` and `persistent` of the supplier are not asked: the store is.

    Raises `TypeError` if `make` gives no `StateStore`, and `ValueError` if it has another name.
    """

    layout = "custom/1"

    def __init__(
        self,
        name: str,
        *,
        make: Callable[[], StateStore],
        mechanism: TransactionalMechanism | None = None,
        persistent: bool = True,
        logged: bool = True,
    ) -> None:
        self.store = make()
        if not isinstance(self.store, StateStore):
            raise TypeError(f"a store is a StateStore, not {type(self.store).__name__}")
        if self.store.name != name:
            raise ValueError(f"the store made for {name} has another name: {self.store.name}")
        super().__init__(name, mechanism=None, persistent=self.store.persistent(), logged=logged)
        self._callback: RestoreCallback | None = None

    def transactional(self) -> bool:
        return self.store.transactional()

    @property
    def _unprotected(self) -> bool:
        return not self.transactional() and self.context.exactly_once

    def init(self, context: StoreContext) -> None:
        """Open. Raises `TaskCorrupted` as every store does, and `ValueError` for a logged one without a callback."""
        super().init(context)
        self._callback = None
        try:
            self.store.init(_Around(context, self))
            if self._logged and self._callback is None:
                raise ValueError(
                    f"store {self._name} has a changelog, but has registered nothing that restores from it"
                )
            if self.transactional():
                at = self.store.recover(self._committed.offset)
                self._committed = replace(self._committed, offset=at)
        except BaseException:
            self.close()
            raise

    def registered(self, callback: RestoreCallback | None) -> None:
        """The store has named what restores it."""
        self._callback = callback

    def logs(self, record: ChangelogRecord) -> None:
        """A record of the store for its changelog. Raises `ValueError` if it names another store."""
        if record.store != self._name:
            raise ValueError(f"store {self._name} cannot write to the changelog of {record.store}")
        self._touched()
        self._advance_position()
        self._log(record.key, record.value, record.timestamp_ms, record.headers)

    def _touched(self) -> None:
        """What the store holds belongs to no commit from here to the next one."""
        transaction = self.transaction
        if isinstance(transaction, DirectTransaction):
            transaction.dirty = True

    def commit(self, offset: int | None) -> None:
        """First the store's own content, then what it stands at."""
        self.store.commit(offset)
        super().commit(offset)

    def recover(self, offset: int | None) -> int | None:
        if not self.transactional():
            return super().recover(offset)
        self._committed = replace(self._committed, offset=self.store.recover(offset))
        return self._committed.offset

    def restore(
        self,
        records: Sequence[ChangelogRecord],
        *,
        offset: int | None = None,
        topic_id: str | None = None,
        at_ms: int | None = None,
    ) -> None:
        """Give them to the store's callback. A restore ends with an empty call: all of it is made durable then."""
        super().restore(records, offset=offset, topic_id=topic_id, at_ms=at_ms)
        if not records:
            self.store.commit(offset)

    def _restored(self, records: Sequence[ChangelogRecord]) -> Mapping[str, Changes]:
        if records and self._callback is not None:
            self._callback(records)
        return {}

    def flush(self) -> None:
        self.store.flush()

    def close(self) -> None:
        """The store first: only then does what it stands at say that it was closed."""
        try:
            if self.is_open():
                self.store.close()
        except BaseException:
            self._touched()
            raise
        finally:
            super().close()


class _Around(StoreContext):
    """The task as the store sees it."""

    def __init__(self, context: StoreContext, kind: Custom) -> None:
        self._context = context
        self._kind = kind
        self.metrics = context.metrics
        self.exactly_once = context.exactly_once
        self.positions_in_changelog = context.positions_in_changelog

    @property
    def record(self) -> RecordContext | None:  # type: ignore[override]
        return self._context.record

    def register(self, store: StateStore, restore: RestoreCallback | None = None) -> None:
        if store is not self._kind.store:
            self._refuse()
        self._kind.registered(restore)

    def log(self, record: ChangelogRecord) -> None:
        self._kind.logs(record)

    def folder_of(self, store: str) -> Path:
        return self._context.folder_of(store)

    def transaction(self, store: str, mechanism: TransactionalMechanism | None, *, persistent: bool) -> Transaction:
        self._refuse()

    def version(self, store: str, *, persistent: bool, seen_by: Transaction | None = None) -> StoreVersion | None:
        self._refuse()

    def version_entries(self, store: str, version: StoreVersion) -> tuple[str, Changes]:
        self._refuse()

    def _refuse(self) -> NoReturn:
        """A store inside a store would outlive the wipe of the outer one."""
        raise InvalidStateStore(
            "a store of the program's own keeps its data in files of its own",
            store=self._kind.name,
            hint="use folder_of, or give the task the other store as well",
        )
