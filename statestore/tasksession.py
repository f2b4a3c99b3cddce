"""One ownership of a task: from fencing the owners before it to letting go. `StreamTask` has one at a time.

What is committed is Kafka's word: the input offsets of the consumer group, with a note beside them (`commitnote`) that
says where each changelog stands. Local stores are a cache. Opening:

    1  own       `init_transactions` of `<application>-<partition>`: an older owner cannot commit any more
    2  look      input offsets and note
    3  restore   each store to the note's offset, from where it stands
    4  claim     commit the same offsets with a note of our own: an older owner sees it and keeps away

Committing:

    1  caches    what is only cached is logged, and may be forwarded to outputs
    2  send      where no changelog has lost its end: changelog records and outputs, and their delivery, for the
                 changelogs' offsets
    3  offsets   how far the input is processed, and the note
    4  commit    all of it, or none: from here on the commit exists
    5  apply     each store commits its changelog's offset

A crash before 4 drops all of it; one after it is found at the next opening as a store that stands behind its note.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import structlog

from statestore.changelogs import Changelogs
from statestore.clock import Moment, now_ms
from statestore.commitnote import CommitNote
from statestore.config import StreamConfig
from statestore.context import StoreVersion
from statestore.errors import Fenced, InvariantBroken, RollforwardError, TaskCorrupted, Unavailable
from statestore.failpoints import reach
from statestore.folders import take_place
from statestore.kafka.groups import GroupOffsets, TopicPartition
from statestore.kafka.producer import (
    ABORT_S,
    ProducerFatal,
    ProducerFenced,
    TransactionAborted,
    TransactionalProducer,
)
from statestore.kafka.reader import OffsetsGone, Reader
from statestore.kinds.base import Kind
from statestore.listener import RestoreListener
from statestore.load import beside
from statestore.lockholder import FolderLock
from statestore.outbox import Outbox
from statestore.planning.plan import Way
from statestore.restore import Changelog, RestorePlan, is_loaded, load_store, plan_restore, restore_store
from statestore.rocks.errors import LockHeld
from statestore.store import TransactionalMechanism
from statestore.taskstores import TaskStores, wipe_task
from statestore.typed.base import TypedStore
from statestore.version import ChangelogPosition

log = structlog.get_logger()

Store = TypedStore[Any, Any, Any] | Kind
# More than any chain of stores has members.
_FLUSHES_MAX = 100


@dataclass(frozen=True)
class Committed:
    """What the group has committed of a task's inputs: next offsets, and the newest note if there is one."""

    offsets: dict[TopicPartition, int]
    note: CommitNote | None

    @classmethod
    def read(cls, config: StreamConfig, *, stable: bool = True) -> Committed:
        """`stable` waits for what an open transaction makes of them."""
        group = GroupOffsets(config.kafka, config.application)
        found = group.committed([(topic, config.partition) for topic in config.inputs], stable=stable)
        notes = [note for _, text in found.values() if (note := CommitNote.decode(text)) is not None]
        offsets = {where: offset for where, (offset, _) in found.items()}
        return cls(offsets, max(notes, key=lambda note: note.number, default=None))


@dataclass(frozen=True)
class TaskParts:
    """What a task is made of, the same in each of its sessions."""

    config: StreamConfig
    stores: Sequence[Store]
    owner: str
    topic_configs: Mapping[str, Mapping[str, str]]
    listener: RestoreListener
    member: Callable[[], object] | None
    make_producer: Callable[..., TransactionalProducer]


@dataclass
class TaskSession:
    """`next` are the input offsets that the next commit says; `plans` tell how each store was restored.

    With an error out of any method it is of no more use but to be closed.
    """

    parts: TaskParts
    next: dict[TopicPartition, int] = field(default_factory=dict)
    note: CommitNote = field(default_factory=CommitNote)
    plans: dict[str, RestorePlan] = field(default_factory=dict)

    def __post_init__(self) -> None:
        config = self.parts.config
        # Before anything is asked: what the stores are restored to is of then, or newer.
        self._asked = Moment()
        self._kinds = {one.name: one.store if isinstance(one, TypedStore) else one for one in self.parts.stores}
        self._reader = Reader(config.kafka)
        producer = self.parts.make_producer(config.kafka, config.transactional_id, transactions=config.exactly_once)
        self.outbox = Outbox(producer, self._reader, config.partition, {}, {})
        self.context = self._new_context()
        self._lock: FolderLock | None = None
        self._log = log.bind(application=config.application, task=config.partition)

    def _new_context(self) -> TaskStores:
        config = self.parts.config
        context = TaskStores(
            config.task_folder,
            sink=self.outbox.add,
            exactly_once=config.exactly_once,
            positions_in_changelog=config.positions_in_changelog,
            rocks=config.rocks,
            uncommitted_bytes_max=config.uncommitted_bytes_max,
        )
        context.version_at_ms = self._asked.at_ms
        return context

    # Opening.

    def open(self) -> None:
        """Steps 1 to 4. Raises `Fenced`, `Unrecoverable`, `Unavailable`."""
        config = self.parts.config
        # 1 Own.
        reach("program.before-init")
        self.outbox.producer.init()
        reach("program.after-init")
        self._lock = self._lock_folder()
        # 2 Look.
        committed = Committed.read(config)
        logs = Changelogs(config, self._reader, self.parts.topic_configs)
        changelogs = logs.look(self._kinds.values(), committed.note)
        if not committed.offsets:
            logs.require_empty(changelogs.values())
        # 3 Restore.
        self._open_stores(committed.note, changelogs)
        reach("program.restored")
        # 4 Claim. An input that the group knows nothing of is read from its beginning.
        unknown = {(topic, config.partition) for topic in config.inputs} - committed.offsets.keys()
        self.next = committed.offsets | {where: self._reader.begin_and_end(*where)[0] for where in unknown}
        self.note = committed.note or CommitNote()
        self._claim()
        reach("program.claimed")

    def _open_stores(self, note: CommitNote | None, changelogs: Mapping[str, Changelog]) -> None:
        self.outbox.changelogs = {name: changelog.topic for name, changelog in changelogs.items()}
        # Without transactions, what was sent after the last commit is there for good.
        known = note.stores if note is not None and self.parts.config.exactly_once else {}
        try:
            self._restore_all(known, changelogs)
        except TaskCorrupted as error:
            # Nothing is deleted where a changelog does not give its store.
            for name, changelog in changelogs.items():
                plan_restore(name, StoreVersion(), known.get(name), changelog, self.context.now_ms())
            self._log.warning("task is corrupted, all of it is restored", error=str(error))
            self._release_stores()
            wipe_task(self.parts.config.task_folder)
            self.context = self._new_context()
            self._restore_all(known, changelogs)

    def _restore_all(self, known: Mapping[str, ChangelogPosition], changelogs: Mapping[str, Changelog]) -> None:
        """First a plan for every store: where there is none, what is on disk stays as it is, for whoever reads it there."""
        self.context.restoring = True
        for store in self.parts.stores:
            self._open_if_whole(store, logged=store.name in changelogs)
        for name, changelog in changelogs.items():
            self.plans[name] = self._plan(name, changelog, known.get(name))
        if any(self._changes_disk(name) for name in changelogs):
            self.context.restore_begins()
        for store in self.parts.stores:
            if not store.is_open() or self._begins_anew(store.name):
                self._empty(store)
        many = {name: log for name, log in changelogs.items() if is_loaded(self._kinds[name], self.plans[name])}
        try:
            if many:
                self._load(many)
            for name, changelog in changelogs.items():
                if name not in many:
                    self._restore(name, changelog)
        except OffsetsGone as error:
            # The broker has deleted its head since the plan was made.
            raise Unavailable("changelog was cut while it was read", error=error) from error
        self.context.restored()

    def _open_if_whole(self, store: Store, *, logged: bool) -> None:
        """Open a store, but none that belongs to no commit, and none that is new: others would read it as empty."""
        persistent = self._kinds[store.name].persistent()
        try:
            if logged and persistent and self.context.version(store.name, persistent=True) is None:
                return
            store.init(self.context)
        except TaskCorrupted as error:
            self._log.warning("store is corrupted and is restored", store=store.name, error=str(error))

    def _empty(self, store: Store) -> None:
        """Open a store without what is there of it."""
        if store.is_open():
            store.close()
        self.context.wipe(store.name)
        store.init(self.context)

    def _changes_disk(self, name: str) -> bool:
        return self._kinds[name].persistent() and self.plans[name].way is not Way.NOTHING

    def _begins_anew(self, name: str) -> bool:
        return name in self.plans and self._kinds[name].persistent() and self.plans[name].way is Way.FULL_REPLAY

    def _lock_folder(self) -> FolderLock:
        try:
            return FolderLock(self.parts.config.task_folder)
        except LockHeld as error:
            raise Unavailable(
                "another process has the task's folder open",
                folder=self.parts.config.task_folder,
                hint="it cannot commit any more and stops when it tries to; end it, then try again",
            ) from error

    def _plan(self, name: str, changelog: Changelog, committed: ChangelogPosition | None) -> RestorePlan:
        kind = self._kinds[name]
        local = kind.committed_version if kind.is_open() else StoreVersion()
        return plan_restore(name, local, committed, changelog, self.context.now_ms())

    def _load(self, changelogs: Mapping[str, Changelog]) -> None:
        """Load these stores into a copy of the task's database, and go on with that."""
        config, records = self.parts.config, {}
        # What a store writes as it is closed belongs into the copy.
        self._close_stores()
        with beside(self.context.committed, config.rocks, copied=self.context.database) as database:
            for name, changelog in changelogs.items():
                records[name] = load_store(
                    self._kinds[name],
                    self.plans[name],
                    changelog,
                    database,
                    self._reader,
                    self.parts.listener,
                    asked=self._asked,
                    piece_bytes=config.rocks.write_buffer_bytes,
                )
        self.context.close()
        take_place(self.context.committed, points="load")
        self.context = self._new_context()
        self.context.restoring = True
        for store in self.parts.stores:
            # A corrupted one would be emptied and not loaded again: let all of it be.
            store.init(self.context)
        for name in changelogs:
            self.context.count("restore-total", name, records[name])
            self._is_open(name, records[name])

    def _restore(self, name: str, changelog: Changelog) -> None:
        kind, plan = self._kinds[name], self.plans[name]
        records = restore_store(kind, plan, changelog, self._reader, self.parts.listener, self._asked)
        self._is_open(name, records)

    def _is_open(self, name: str, records: int) -> None:
        plan = self.plans[name]
        self.outbox.offsets[name] = plan.end
        self._log.info("store opened", store=name, way=plan.way.value, reason=plan.reason, records=records)

    def _claim(self) -> None:
        task = self.parts.config.transactional_id
        try:
            self.outbox.send()
            self._commit_offsets()
        except ProducerFenced as error:
            raise Fenced("another owner has the task", task=task, error=error) from error
        except (TransactionAborted, ProducerFatal) as error:
            raise Unavailable("task could not be claimed", task=task, error=error) from error

    # Committing.

    def flush_caches(self) -> None:
        """Step 1: until nothing is only cached. A flush listener may put into a store that was flushed before its own."""
        for _ in range(_FLUSHES_MAX):
            if not sum(store.flush_cache() for store in self.parts.stores):
                break
        else:
            raise InvariantBroken(
                "caches are not empty however often they are flushed",
                task=self.parts.config.transactional_id,
                flushes=_FLUSHES_MAX,
                hint="a flush listener puts what makes it put again",
            )
        reach("program.cache-flushed")

    def transaction(self) -> None:
        """Steps 2 to 4. Raises `Fenced`, or an error of the producer that leaves the outcome open."""
        # However long this process sleeps from here on: nothing behind the commit is committed before.
        self.context.version_at_ms = now_ms()
        self.outbox.deliver()
        self._commit_offsets()
        reach("program.committed")

    def _commit_offsets(self) -> None:
        config, member = self.parts.config, self.parts.member
        stores = {
            name: ChangelogPosition(self._kinds[name].committed_version.topic_id, offset)
            for name, offset in self.outbox.offsets.items()
        }
        self.note = CommitNote(self.parts.owner, self.note.number + 1, stores)
        self.outbox.producer.send_offsets(
            config.application, self.next, note=self.note.encode(), member=None if member is None else member()
        )
        reach("program.offsets-sent")
        self.outbox.producer.commit()
        self.outbox.ended()

    def apply(self) -> None:
        """Step 5."""
        for store in self.parts.stores:
            store.commit(self.outbox.offsets.get(store.name))
            reach("program.in-apply")
        reach("program.applied")

    @property
    def failed(self) -> list[str]:
        """The stores of which a write has failed since the last commit."""
        return [name for name, kind in self._kinds.items() if kind.failed]

    @property
    def uncommitted_bytes(self) -> int:
        """What waits to be sent, and changes in memory that do not spill to disk."""
        kinds = [kind for kind in self._kinds.values() if _in_memory(kind)]
        return self.outbox.bytes + sum(kind.uncommitted_memory_bytes() for kind in kinds)

    # Closing.

    def close(self) -> None:
        """Drop what is uncommitted, release the folder, and abort what is open, so that no reader waits for it."""
        try:
            self._release_stores()
        finally:
            if self._lock is not None:
                self._lock.close()
            self.outbox.producer.close(abort_within_s=ABORT_S)

    def _release_stores(self) -> None:
        self._roll_back()
        self.context.close()

    def _close_stores(self) -> None:
        self._roll_back()
        for store in self.parts.stores:
            store.close()

    def _roll_back(self) -> None:
        """Of every store that is open: a cache would write what is in it as it is closed."""
        for store in self.parts.stores:
            if store.is_open():
                with suppress(RollforwardError):
                    store.rollback()


def _in_memory(kind: Kind) -> bool:
    return kind.transactional() and (not kind.persistent() or kind.mechanism is TransactionalMechanism.INDEXED_BATCH)
