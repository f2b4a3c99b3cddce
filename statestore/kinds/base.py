"""What every store kind shares: opening, the open transaction, the changelog, commit, recovery and restoring."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import ClassVar, TypeVar

from statestore import changelog_topic
from statestore.columns import Columns, Entries
from statestore.context import ChangelogRecord, Headers, StoreContext, StoreVersion
from statestore.errors import FormatUnsupported, InvalidStateStore, TaskCorrupted
from statestore.failpoints import reach
from statestore.iterator import OpenIterators, StoreIterator
from statestore.layouts.timestamped import UNKNOWN
from statestore.position import Position, changelog_headers, position_of
from statestore.spaces.base import Changes
from statestore.store import Isolation, StateStore, TransactionalMechanism
from statestore.transactions.base import Transaction
from statestore.transactions.direct import DirectTransaction

K = TypeVar("K")
V = TypeVar("V")
Found = TypeVar("Found")
UNCOMMITTED_BYTES = "uncommitted-bytes"
_NAME = re.compile(r"[A-Za-z0-9_-]+")
# So often a committed read in memory is tried beside commits; then they wait for it.
_READS_BESIDE = 2


class Kind(StateStore):
    """A store over a transaction: the space of its name, or spaces whose names begin with it and a dot.

    layout: what its data looks like on disk, `<kind>/<version>`. Data of another layout is refused, unless it is one
        of `reads_layouts`, which the kind upgrades.
    loads: whether `load` may take the place of `restore`: what a record changes depends on no record before it.
    """

    layout: ClassVar[str] = ""
    reads_layouts: ClassVar[frozenset[str]] = frozenset()
    loads: ClassVar[bool] = False

    def __init__(
        self,
        name: str,
        *,
        mechanism: TransactionalMechanism | None = TransactionalMechanism.INDEXED_BATCH,
        persistent: bool = True,
        logged: bool = True,
    ) -> None:
        if name is None:
            raise TypeError("a store's name is a string, not None")
        if not _NAME.fullmatch(name):
            # A dot separates the store's name from its spaces; files and topics are named after stores.
            raise ValueError(f"a store's name has letters, digits, _ and -: {name!r}")
        self._name = name
        self._mechanism = mechanism
        self._persistent = persistent
        self._logged = logged
        self._context: StoreContext | None = None
        self._transaction: Transaction | None = None
        self._committed = StoreVersion()
        self._stream_time_ms = -1
        self._position = Position()
        self._iterators = OpenIterators()

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
        """Open. Raises `TaskCorrupted` if the content may belong to no commit: wipe the store and restore it."""
        context.register(self)
        self._context = context
        transaction = context.transaction(self._name, self._mechanism, persistent=self._persistent)
        try:
            transaction.recover()
            self._check(transaction)
            self._transaction = transaction
            self._read_version()
            self._mark()
            self._opened()
        except BaseException:
            self._transaction = None
            transaction.close()
            raise
        context.metrics.gauge(UNCOMMITTED_BYTES, self._name, lambda: transaction.uncommitted_bytes)

    def _check(self, transaction: Transaction) -> None:
        """Refuse content that this store cannot read, or that no commit stands for."""
        found = self.context.version(self._name, persistent=self._persistent) or StoreVersion()
        if found.layout and self.layout and found.layout not in {self.layout, *self.reads_layouts}:
            raise FormatUnsupported(
                "store was written by another kind", store=self._name, found=found.layout, expected=self.layout
            )
        if not self.context.exactly_once or not self._persistent or not self._logged:
            return
        if found.running:
            raise TaskCorrupted("store was not closed: what it holds belongs to no commit", store=self._name)
        if found.offset is None and any(next(transaction.scan(s), None) for s in transaction.base_spaces()):
            raise TaskCorrupted("store has data, but no committed offset", store=self._name)

    def _read_version(self) -> None:
        self._committed = self.context.version(self._name, persistent=self._persistent) or StoreVersion()
        self._stream_time_ms = self._committed.stream_time_ms
        self._position = self._committed.position

    def _mark(self) -> None:
        """Write down which layout begins here, and that a store without transactions is being written."""
        version = replace(self._committed, layout=self.layout, running=self._unprotected)
        if version != self._committed:
            self._write_version(version if not self._unprotected else replace(version, offset=None))
            self._committed = version

    @property
    def _unprotected(self) -> bool:
        """Writes between commits reach the base, though only commits may: KIP-844 takes its offset away meanwhile."""
        return self._mechanism is None and self.context.exactly_once

    def _version_at_ms(self) -> int:
        at_ms = self.context.version_at_ms
        return self.context.now_ms() if at_ms is None else at_ms

    def _write_version(self, version: StoreVersion) -> None:
        space, entries = self.context.version_entries(self._name, version)
        self.transaction.restore({space: entries})

    def _opened(self) -> None:
        """For subclasses: the transaction is open and stands at the committed version."""

    def commit(self, offset: int | None) -> None:
        if offset is not None and offset < 0:
            raise ValueError(f"an offset must not be negative: {offset}")
        version = replace(
            self._committed,
            offset=offset,
            stream_time_ms=self._stream_time_ms,
            position=self._position,
            written_at_ms=self._version_at_ms(),
        )
        written = replace(version, offset=None) if self._unprotected else version
        self.transaction.commit(*self.context.version_entries(self._name, written))
        self._committed = version

    def rollback(self) -> None:
        """Forget the open transaction: its writes, its position, its stream time."""
        self.transaction.rollback()
        if self.transactional():
            self._read_version()
        self._opened()

    def recover(self, offset: int | None) -> int | None:
        self.transaction.recover()
        if self.transactional():
            self._read_version()
        self._opened()
        return self._committed.offset

    @property
    def failed(self) -> bool:
        """Whether a write has failed since the last commit: what is uncommitted is then not whole."""
        return self._transaction is not None and self._transaction.failed

    def committed_offset(self) -> int | None:
        """The changelog offset that the last commit gave; None if it gave none."""
        return self._committed.offset

    @property
    def committed_version(self) -> StoreVersion:
        """What the last commit or restore said."""
        return self._committed

    @property
    def mechanism(self) -> TransactionalMechanism | None:
        """How uncommitted writes are kept apart; None if they are not."""
        return self._mechanism

    @property
    def logged(self) -> bool:
        """Whether the store has a changelog."""
        return self._logged

    def flush_cache(self) -> bool:
        """Bring what is only cached to the store and its changelog: before the task's Kafka transaction ends.

        Gives whether there was anything: a flush listener may have put it into a store that was flushed before.
        """
        return False

    def flush(self) -> None:
        self.transaction.base.flush()

    def close(self) -> None:
        transaction, self._transaction = self._transaction, None
        if transaction is None:
            return
        self.context.metrics.gauge(UNCOMMITTED_BYTES, self._name, None)
        self._iterators.store_closed()
        if isinstance(transaction, DirectTransaction) and self._unprotected and not transaction.dirty:
            # Nothing was written since the commit, so its offset is true and may be kept.
            space, entries = self.context.version_entries(self._name, replace(self._committed, running=False))
            transaction.restore({space: entries})
        transaction.close()

    # Restoring from the changelog.

    def restore(
        self,
        records: Sequence[ChangelogRecord],
        *,
        offset: int | None = None,
        topic_id: str | None = None,
        at_ms: int | None = None,
    ) -> None:
        """Take in records of the changelog, in its order, with one atomic write past the open transaction.

        `offset` is the next offset to read after them, in the topic with that id; a restore that dies goes on from
        there. Positions that the records carry are taken over. `at_ms` is the version's `written_at_ms`, None the context's.
        """
        with self.context.metrics.timed("restore", self._name):
            self._restore(records, offset, topic_id, at_ms)
        self.context.count("restore-total", self._name, len(records))

    def _restore(
        self, records: Sequence[ChangelogRecord], offset: int | None, topic_id: str | None, at_ms: int | None
    ) -> None:
        changes = self._restored(records)
        position = self._committed.position
        for record in records:
            if record.headers:
                position = position.merged(position_of(record.headers))
        version = replace(
            self._committed,
            offset=self._committed.offset if offset is None else offset,
            stream_time_ms=max(self._stream_time_ms, self._committed.stream_time_ms),
            topic_id=self._committed.topic_id if topic_id is None else topic_id,
            position=position,
            written_at_ms=self._version_at_ms() if at_ms is None else at_ms,
        )
        written = replace(version, offset=None) if self._unprotected else version
        space, entries = self.context.version_entries(self._name, written)
        reach("restore.before-write")
        self.transaction.restore({**changes, space: entries})
        reach("restore.written")
        self._restore_ended()
        reach("restore.ended")
        self._committed, self._position = version, self._position.merged(position)

    def load(self, records: Columns) -> Mapping[str, Entries]:
        """`restore` of many, into a database that is not this store's yet: what they change, per space, in order.

        Nothing is written. After the last records `loaded` and `expired` say what else belongs into that database; the
        store is opened again on it. Until then it is of no use.
        """
        for headers in records.headers:
            self._position = self._position.merged(position_of(headers))
        return self._loaded(records.with_keys())

    def _loaded(self, records: Columns) -> Mapping[str, Entries]:
        """For subclasses: `_restored` of columns. The records have keys."""
        return {self._name: Entries(records.keys, records.values)}

    def loaded(self, *, offset: int, topic_id: str) -> Mapping[str, Changes]:
        """What is written after everything loaded: the store's version, as a clean close leaves it."""
        version = replace(
            self._committed,
            layout=self.layout,
            offset=offset,
            topic_id=topic_id,
            stream_time_ms=self._stream_time_ms,
            position=self._position,
            running=False,
            written_at_ms=self._version_at_ms(),
        )
        space, entries = self.context.version_entries(self._name, version)
        return {space: entries}

    def expired(self, spaces: list[str]) -> list[str]:
        """Those of the spaces that what was loaded has left behind."""
        return []

    def _restored(self, records: Sequence[ChangelogRecord]) -> Mapping[str, Changes]:
        """For subclasses: what the records change, per space. May call `_observe`; must not change the base."""
        return {self._name: [(record.key, record.value) for record in records]}

    def _restore_ended(self) -> None:
        """For subclasses: the restored version is written, so what it does without may go."""

    def changelog_config(self) -> dict[str, str]:
        """Topic settings of the changelog."""
        return changelog_topic.compacted()

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

    def _stream_time(self, isolation: Isolation) -> int:
        """The stream time of what reads see at that isolation."""
        committed = isolation is Isolation.READ_COMMITTED and self.transactional()
        return self._version_seen().stream_time_ms if committed else self._stream_time_ms

    def _version_seen(self) -> StoreVersion:
        """That of committed reads. `_committed` follows it, a moment after the one step of a commit."""
        found = self.context.version(self._name, persistent=self._persistent, seen_by=self.transaction)
        return found or StoreVersion()

    def _of_one_version(self, isolation: Isolation, read: Callable[[int], Found]) -> Found:
        """What `read` finds in several steps, given the stream time at that isolation.

        Committed, it is of one version: if a commit came between two steps, which writes the store's version in its one
        step, all are taken again.
        """
        if isolation is Isolation.READ_UNCOMMITTED or not self.transactional():
            return read(self._stream_time(isolation))
        tries = count()
        while self._persistent or next(tries) < _READS_BESIDE:
            known, version = self._committed, self._version_seen()
            found = read(version.stream_time_ms)
            if known is self._committed and version == self._version_seen():
                return found
        # What is in memory is copied as it is opened: that may always take longer than commits are apart.
        with self.transaction.base.still():
            return read(self._version_seen().stream_time_ms)

    def approximate_num_uncommitted_bytes(self) -> int:
        """Keys and values written since the last commit, overwrites counted again; 0 if not transactional."""
        return self.transaction.uncommitted_bytes

    def uncommitted_memory_bytes(self) -> int:
        """An upper estimate of what uncommitted writes take in this process, bookkeeping included."""
        return self.transaction.memory_bytes

    def _observe(self, time_ms: int) -> None:
        self._stream_time_ms = max(self._stream_time_ms, time_ms)

    def _advance_position(self) -> None:
        record = self.context.record
        if record is not None:
            self._position = self._position.advanced(record.topic, record.partition, record.offset)

    def _record_time_ms(self) -> int:
        """The time of the input record being processed; `UNKNOWN` outside of one, which is sent as the time of now."""
        record = self.context.record
        return UNKNOWN if record is None else record.timestamp_ms

    def _log(self, key: bytes, value: bytes | None, timestamp_ms: int, headers: Headers = ()) -> None:
        """One record to the changelog, if the store has one. Advance the position before."""
        if self._logged:
            if self.context.positions_in_changelog:
                headers = (*headers, *changelog_headers(self._position))
            self.context.log(ChangelogRecord(self._name, key, value, timestamp_ms, headers))

    def _iterate(self, pieces: Iterator[list[tuple[K, V]]], *, ends_with_store: bool = False) -> StoreIterator[K, V]:
        """Pieces of entries as what a read gives: it fails, or ends, once this store is closed."""
        iterator = StoreIterator(pieces, ends_with_store=ends_with_store)
        self._iterators.add(iterator)
        if self._transaction is None:
            # Closed meanwhile, and perhaps before it was added.
            iterator.store_closed()
        return iterator


def require_key(key: bytes) -> None:
    """Raises `TypeError` for anything but bytes."""
    if not isinstance(key, bytes):
        raise TypeError(f"a key is bytes, not {type(key).__name__}")


def require_keys(keys: Iterable[object]) -> None:
    """`require_key` of many: their types are looked at all at once."""
    for other in set(map(type, keys)) - {bytes}:
        if not issubclass(other, bytes):
            raise TypeError(f"a key is bytes, not {other.__name__}")
