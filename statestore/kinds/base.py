"""What every store kind shares: opening, the open transaction, the changelog, commit and recovery."""

from __future__ import annotations

from dataclasses import replace

from statestore.context import ChangelogRecord, StoreContext, StoreVersion
from statestore.errors import InvalidStateStore
from statestore.position import Position
from statestore.store import Isolation, StateStore, TransactionalMechanism
from statestore.transactions.base import Transaction


class Kind(StateStore):
    """A store over a transaction. Subclasses lay their data out over spaces that begin with the store's name."""

    def __init__(
        self,
        name: str,
        *,
        mechanism: TransactionalMechanism | None = TransactionalMechanism.INDEXED_BATCH,
        persistent: bool = True,
        logged: bool = True,
    ) -> None:
        if not name:
            raise ValueError("a store needs a name")
        self._name = name
        self._mechanism = mechanism
        self._persistent = persistent
        self._logged = logged
        self._context: StoreContext | None = None
        self._transaction: Transaction | None = None
        self._committed = StoreVersion()
        self._stream_time_ms = -1
        self._position = Position()

    # Lifecycle.

    @property
    def name(self) -> str:
        return self._name

    def transactional(self) -> bool:
        return self._mechanism is not None

    def persistent(self) -> bool:
        return self._persistent

    def is_open(self) -> bool:
        return self._transaction is not None

    def init(self, context: StoreContext) -> None:
        self._context = context
        self._transaction = context.transaction(self._name, self._mechanism, persistent=self._persistent)
        self._transaction.recover()
        self._read_version()
        self._opened()

    def _read_version(self) -> None:
        self._committed = self.context.version(self._name, persistent=self._persistent) or StoreVersion()
        self._stream_time_ms = self._committed.stream_time_ms
        self._position = self._committed.position

    def _opened(self) -> None:
        """For subclasses: the transaction is open and stands at the committed version."""

    def commit(self, offset: int | None) -> None:
        version = replace(
            self._committed, offset=offset, stream_time_ms=self._stream_time_ms, position=self._position
        )
        space, entries = self.context.version_entries(self._name, version)
        self.transaction.commit(space, entries)
        self._committed = version

    def rollback(self) -> None:
        """Forget the open transaction: its writes, its position, its stream time."""
        self.transaction.rollback()
        self._read_version()
        self._opened()

    def recover(self, offset: int | None) -> int | None:
        self.transaction.recover()
        self._read_version()
        self._opened()
        return self._committed.offset

    def close(self) -> None:
        if self._transaction is not None:
            self._transaction.close()
            self._transaction = None

    # For subclasses.

    @property
    def context(self) -> StoreContext:
        """The task around. Raises `InvalidStateStore` before `init`."""
        if self._context is None:
            raise InvalidStateStore("store is not initialised", store=self._name)
        return self._context

    @property
    def transaction(self) -> Transaction:
        """The open transaction. Raises `InvalidStateStore` if the store is not open."""
        if self._transaction is None:
            raise InvalidStateStore("store is not open", store=self._name)
        return self._transaction

    def position(self, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> Position:
        """Which input is in the store at that isolation."""
        uncommitted = isolation is Isolation.READ_UNCOMMITTED or not self.transactional()
        return self._position if uncommitted else self._committed.position

    @property
    def stream_time_ms(self) -> int:
        """The highest time the store has seen, uncommitted writes included; -1 before the first."""
        return self._stream_time_ms

    def _observe(self, time_ms: int) -> None:
        self._stream_time_ms = max(self._stream_time_ms, time_ms)

    def _advance_position(self) -> None:
        record = self.context.record
        if record is not None:
            self._position = self._position.advanced(record.topic, record.partition, record.offset)

    def _log(self, key: bytes, value: bytes | None, timestamp_ms: int) -> None:
        """One record to the changelog, if the store has one."""
        if self._logged:
            self.context.log(ChangelogRecord(self._name, key, value, timestamp_ms))
