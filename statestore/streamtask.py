"""One task of a program's own Kafka loop: stores, outputs and input offsets that commit together.

    with StreamTask(config, [store]) as task:
        consumer.assign([TopicPartition(topic, partition, task.next_offset(topic))])
        while True:
            message = consumer.poll(...)
            task.take(RecordContext(topic, partition, message.offset(), message.timestamp()[1]))
            store.put(...)
            task.send(output, key=..., value=...)

    CLOSED ──open──► RUNNING ──commit's outcome unknown──► opens itself again ──► RUNNING
       ▲                └──close, fenced, or a failure that opening again does not help──┐
       └──────────────────────────────────────────────────────────────────────────────────┘

What is committed is Kafka's word: the input offsets of the consumer group, with a note beside them (`commitnote`) that
says where each changelog stands. Local stores are a cache. Opening:

    1  own       `init_transactions` of `<application>-<partition>`: an older owner cannot commit any more
    2  look      input offsets and note
    3  restore   each store to the note's offset, from where it stands
    4  claim     commit the same offsets with a note of our own: an older owner sees it and keeps away

Committing, in one Kafka transaction: flush caches, send changelog records and outputs, await delivery, send offsets and
note, commit; then each store commits its changelog's offset. A crash before the transaction ends drops all of it; one
after it is found at the next opening as a store that stands behind its note.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Self
from uuid import uuid4

import structlog

from statestore.budget import UncommittedBudget
from statestore.changelogs import Changelogs
from statestore.commitnote import CommitNote
from statestore.config import StreamConfig
from statestore.context import Headers, RecordContext
from statestore.errors import Fenced, InvariantBroken, RollforwardError, TaskCorrupted, Unavailable
from statestore.failpoints import reach
from statestore.kafka import (
    GroupOffsets,
    OffsetsGone,
    ProducerFatal,
    ProducerFenced,
    Reader,
    TopicPartition,
    TransactionAborted,
    TransactionalProducer,
)
from statestore.kinds.base import Kind
from statestore.listener import RestoreListener
from statestore.outbox import Outbox, Output
from statestore.planning.plan import Way
from statestore.restore import Changelog, RestorePlan, plan_restore, restore_store
from statestore.rocks import LockHeld
from statestore.store import TransactionalMechanism
from statestore.taskstores import TaskStores, wipe_task
from statestore.typed.base import TypedStore
from statestore.version import ChangelogPosition

log = structlog.get_logger()

Store = TypedStore[Any, Any, Any] | Kind
MakeProducer = Callable[..., TransactionalProducer]


class StreamTask:
    """One thread uses it; any thread may read the stores. It opens the stores it is given, and closes them.

    topic_configs: settings of a store's changelog topic, by the store's name; they go over those of its kind.
    listener: told how restoring goes.
    budget: shared with the other tasks of the process; one of its own if None.
    member: gives `consumer_group_metadata()` of the consumer that reads for this task, if it is a member of the group:
        the group then refuses a commit after it has given the partition away.
    """

    def __init__(
        self,
        config: StreamConfig,
        stores: Sequence[Store],
        *,
        topic_configs: Mapping[str, Mapping[str, str]] | None = None,
        listener: RestoreListener | None = None,
        budget: UncommittedBudget | None = None,
        member: Callable[[], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
        make_producer: MakeProducer = TransactionalProducer,
    ) -> None:
        self.config = config
        self.plans: dict[str, RestorePlan] = {}
        self._stores = {store.name: store for store in stores}
        self._kinds = {store.name: store.store if isinstance(store, TypedStore) else store for store in stores}
        self._listener = listener or RestoreListener()
        self._budget = budget or UncommittedBudget(config.uncommitted_bytes_max)
        self._member = member
        self._clock = clock
        self._make_producer = make_producer
        self._reader = Reader(config.kafka)
        self._changelogs = Changelogs(config, self._reader, topic_configs)
        self._group = GroupOffsets(config.kafka, config.application)
        self._owner = uuid4().hex
        self._note = CommitNote()
        self._next: dict[TopicPartition, int] = {}
        self._asked = False
        self._taken = False
        self._committed_at_s = 0.0
        self._context: TaskStores | None = None
        self._outbox: Outbox | None = None
        self._log = log.bind(application=config.application, task=config.partition)

    # Opening.

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Commit and close; after an exception only close, which drops what is uncommitted."""
        try:
            if kind is None:
                self.commit()
        finally:
            self.close()

    def open(self) -> None:
        """Own the task and bring its stores to the last commit.

        Raises `Unrecoverable` if Kafka has lost what that takes, and `Unavailable` if Kafka does not answer or another
        process still has the folder open.
        """
        self.close()
        try:
            self._open()
        except BaseException:
            self.close()
            raise
        self._budget.join(self)

    def _open(self) -> None:
        # 1 Own.
        reach("program.before-init")
        producer = self._make_producer(
            self.config.kafka, self.config.transactional_id, transactions=self.config.exactly_once
        )
        self._outbox = Outbox(producer, self.config.partition, {}, {})
        producer.init()
        reach("program.after-init")
        # 2 Look.
        found = self._find_note()
        changelogs = self._changelogs.look(self._kinds.values(), found)
        if not self._next:
            self._changelogs.require_empty(changelogs.values())
        # 3 Restore.
        self._outbox.changelogs = {name: changelog.topic for name, changelog in changelogs.items()}
        try:
            self._open_stores(found, changelogs)
        except TaskCorrupted as error:
            self._log.warning("task is corrupted, all of it is restored", error=str(error))
            self._release_stores()
            wipe_task(self.config.task_folder)
            self._open_stores(found, changelogs)
        reach("program.restored")
        # 4 Claim.
        self._complete_offsets()
        self._note = found or CommitNote()
        with self._as_task_errors():
            self._outbox.send()
            self._send_offsets()
            self._end_transaction()
        reach("program.claimed")
        self._asked = self._taken = False
        self._committed_at_s = self._clock()

    def _find_note(self, *, stable: bool = True) -> CommitNote | None:
        """Reads the committed input offsets, too. `stable` waits for what an open transaction makes of them."""
        inputs = [(topic, self.config.partition) for topic in self.config.inputs]
        committed = self._group.committed(inputs, stable=stable)
        self._next = {where: offset for where, (offset, _) in committed.items()}
        notes = [note for _, text in committed.values() if (note := CommitNote.decode(text)) is not None]
        return max(notes, key=lambda note: note.number, default=None)

    def _complete_offsets(self) -> None:
        """An input that the group knows nothing of is read from its beginning."""
        for topic in self.config.inputs:
            where = topic, self.config.partition
            if where not in self._next:
                self._next[where] = self._reader.begin_and_end(*where)[0]

    def _open_stores(self, found: CommitNote | None, changelogs: Mapping[str, Changelog]) -> None:
        config = self.config
        self._context = TaskStores(
            config.task_folder,
            sink=self._require_outbox().add,
            exactly_once=config.exactly_once,
            positions_in_changelog=config.positions_in_changelog,
            rocks=config.rocks,
            uncommitted_bytes_max=config.uncommitted_bytes_max,
        )
        # Without transactions what was sent after the last commit is there for good.
        known = found.stores if found is not None and config.exactly_once else {}
        self.plans = {}
        for name, store in self._stores.items():
            self._init(store)
            if name in changelogs:
                self._restore(store, changelogs[name], known.get(name))

    def _init(self, store: Store) -> None:
        """Open a store; one that belongs to no commit is emptied first."""
        context = self._require_context()
        try:
            store.init(context)
        except TaskCorrupted as error:
            self._log.warning("store is corrupted and is restored", store=store.name, error=str(error))
            context.wipe(store.name)
            store.init(context)
        except LockHeld as error:
            raise Unavailable(
                "another process has the task's folder open",
                folder=self.config.task_folder,
                hint="it cannot commit any more and stops when it tries to; end it, then try again",
            ) from error

    def _restore(self, store: Store, changelog: Changelog, committed: ChangelogPosition | None) -> None:
        kind, context = self._kinds[store.name], self._require_context()
        plan = plan_restore(store.name, kind.committed_version, committed, changelog, context.now_ms())
        if kind.persistent() and plan.way is Way.FULL_REPLAY:
            store.close()
            context.wipe(store.name)
            store.init(context)
        self.plans[store.name] = plan
        try:
            records = restore_store(kind, plan, changelog, self._reader, self._listener)
        except OffsetsGone as error:
            # The broker has deleted its head since the plan was made.
            raise Unavailable("changelog was cut while it was read", store=store.name, error=error) from error
        self._require_outbox().offsets[store.name] = plan.end
        self._log.info("store opened", store=store.name, way=plan.way.value, reason=plan.reason, records=records)

    # Working.

    def next_offset(self, topic: str) -> int:
        """Where to read the input on. Ask after opening and after every `Unavailable`, and seek there."""
        self._asked = True
        return self._next[topic, self.config.partition]

    def take(self, *records: RecordContext) -> None:
        """The writes and outputs that follow come from these records: one, or a batch whose last one they stand for.

        Commits before it if that is due; errors as of `commit`. Raises `InvariantBroken` for a record that is before
        the next offset, or if nobody asked for that since the task was opened.
        """
        self._require_outbox()
        if not self._asked:
            raise InvariantBroken("task was opened, but nobody has asked for its next offset")
        self.commit_if_due()
        for record in records:
            expected = self._next.get((record.topic, record.partition))
            if expected is None or record.offset < expected:
                raise InvariantBroken(
                    "record is not of this task, or was taken before", record=record, next_offset=expected
                )
            self._next[record.topic, record.partition] = record.offset + 1
        self._require_context().record = records[-1]
        self._taken = True
        reach("program.taken")

    def send(
        self,
        topic: str,
        *,
        key: bytes | None,
        value: bytes | None,
        partition: int = -1,
        timestamp_ms: int | None = None,
        headers: Headers = (),
    ) -> None:
        """Send a record with the next commit. Without a time of its own it has that of the record being processed."""
        record = self._require_context().record
        time_ms = timestamp_ms if timestamp_ms is not None else record.timestamp_ms if record else 0
        self._require_outbox().add(Output(topic, key, value, partition, time_ms, headers))

    @property
    def uncommitted_bytes(self) -> int:
        """What the open transaction takes in memory: what waits to be sent, and changes that are not spilled to disk."""
        kinds = [kind for kind in self._kinds.values() if _in_memory(kind)]
        return self._require_outbox().bytes + sum(kind.approximate_num_uncommitted_bytes() for kind in kinds)

    def commit_if_due(self) -> None:
        """Commit if the interval is over or the task's share of the budget is used up. For loops without input, too."""
        if (self._clock() - self._committed_at_s) * 1000 >= self.config.commit_interval_ms:
            self.commit()
        elif self.uncommitted_bytes > self._budget.share_bytes:
            self.commit()
            self._require_context().metrics.count("early-commit-total", self.config.transactional_id)
        elif self._require_outbox().bytes > self._budget.share_bytes // 2:
            with self._settled():
                self._require_outbox().send()

    # Committing.

    def commit(self) -> None:
        """Commit all that was taken. When it returns, that is committed; nothing is done if there is nothing.

        Raises `Fenced` when another owner has the task: stop, or open it again if it is yours again. Raises
        `Unavailable` when nothing was committed: the task has gone back to its last commit, so seek to `next_offset`.
        """
        outbox = self._require_outbox()
        reach("program.before-commit")
        # 1 What is only cached is logged, and may be forwarded to outputs.
        for store in self._stores.values():
            store.flush_cache()
        reach("program.cache-flushed")
        if self._taken or len(outbox):
            with self._settled(), self._require_context().metrics.timed("commit", self.config.transactional_id):
                self._transaction()
                self._apply()
            # Whatever it took, all that was taken is committed: the loop may go on where it is.
            self._asked = True
        self._taken = False
        self._committed_at_s = self._clock()

    def _transaction(self) -> None:
        outbox = self._require_outbox()
        # 2 Changelog records and outputs, and their delivery, for the changelogs' offsets.
        outbox.deliver()
        # 3 How far the input is processed.
        self._send_offsets()
        reach("program.offsets-sent")
        # 4 From here on the commit exists.
        self._end_transaction()
        reach("program.committed")

    def _send_offsets(self) -> None:
        outbox = self._require_outbox()
        stores = {
            name: ChangelogPosition(self._kinds[name].committed_version.topic_id, offset)
            for name, offset in outbox.offsets.items()
        }
        self._note = CommitNote(self._owner, self._note.number + 1, stores)
        member = None if self._member is None else self._member()
        outbox.producer.send_offsets(self.config.application, self._next, note=self._note.encode(), member=member)

    def _end_transaction(self) -> None:
        self._require_outbox().producer.commit()
        self._require_outbox().ended()

    def _apply(self) -> None:
        """Failing here loses nothing: the commit exists, and opening again restores it."""
        try:
            for name, store in self._stores.items():
                store.commit(self._require_outbox().offsets.get(name))
                reach("program.in-apply")
            reach("program.applied")
        except RollforwardError as error:
            self._log.error("commit could not be applied, task is opened again", error=str(error))
            self.open()

    @contextmanager
    def _settled(self) -> Iterator[None]:
        """What is done inside may leave the outcome unknown: then find it out."""
        number = self._note.number + 1
        try:
            yield
        except ProducerFenced as error:
            self.close()
            raise Fenced("another owner has the task", task=self.config.transactional_id, error=error) from error
        except Fenced:
            self.close()
            raise
        except (TransactionAborted, ProducerFatal, Unavailable) as error:
            self._settle(number, error)

    def _settle(self, number: int, cause: RollforwardError) -> None:
        """Open again, unless somebody else has claimed the task; raises `Unavailable` unless `number` was committed."""
        self._log.warning("commit failed, asking kafka what became of it", error=str(cause))
        try:
            # Our own transaction may still be open, so its end is not waited for.
            found = self._find_note(stable=False)
        except BaseException:
            self.close()
            raise
        if found is not None and found.owner != self._owner:
            self.close()
            raise Fenced("another owner has claimed the task", task=self.config.transactional_id, owner=found.owner)
        self.open()
        # The claim has taken one more number.
        if self._note.number - 1 >= number:
            return
        raise Unavailable(
            "nothing was committed",
            task=self.config.transactional_id,
            error=cause,
            hint="the task is back at its last commit: seek to next_offset and go on",
        ) from cause

    @contextmanager
    def _as_task_errors(self) -> Iterator[None]:
        try:
            yield
        except ProducerFenced as error:
            raise Fenced("another owner has the task", task=self.config.transactional_id, error=error) from error
        except (TransactionAborted, ProducerFatal) as error:
            raise Unavailable("task could not be claimed", task=self.config.transactional_id, error=error) from error

    # Closing.

    def close(self) -> None:
        """Drop what is uncommitted, close the stores and release the folder. Closing twice is harmless."""
        self._budget.leave(self)
        outbox, self._outbox = self._outbox, None
        try:
            self._release_stores()
        finally:
            if outbox is not None:
                _forget(outbox)

    def _release_stores(self) -> None:
        context, self._context = self._context, None
        if context is None:
            return
        for store in self._stores.values():
            if store.is_open():
                # A cache would write what is in it.
                with suppress(RollforwardError):
                    store.rollback()
        context.close()

    def _require_outbox(self) -> Outbox:
        if self._outbox is None:
            raise Unavailable("task is not open", task=self.config.transactional_id)
        return self._outbox

    def _require_context(self) -> TaskStores:
        if self._context is None:
            raise Unavailable("task is not open", task=self.config.transactional_id)
        return self._context

    @property
    def is_open(self) -> bool:
        """False before `open` and after `close`, `Fenced`, or an `Unavailable` that opening again ran into, too."""
        return self._outbox is not None

    @property
    def stores(self) -> TaskStores:
        """What is around the stores: their metrics above all. Raises `Unavailable` if the task is not open."""
        return self._require_context()


def _in_memory(kind: Kind) -> bool:
    """Whether uncommitted changes take memory without bound. One with a disk to spill to is left alone."""
    return kind.transactional() and (not kind.persistent() or kind.mechanism is TransactionalMechanism.INDEXED_BATCH)


def _forget(outbox: Outbox) -> None:
    """Abort what is open, so that readers need not wait for its time-out."""
    with suppress(RollforwardError):
        if outbox.begun:
            outbox.producer.abort()
    outbox.producer.close()
