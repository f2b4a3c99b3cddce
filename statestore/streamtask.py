"""One task of a program's own Kafka loop: stores, outputs and input offsets that commit together.

    with StreamTask(config, [store]) as task:
        consumer.assign([TopicPartition(topic, partition, task.next_offset(topic))])
        while True:
            message = consumer.poll(...)
            task.take(RecordContext(topic, partition, message.offset(), message.timestamp()[1]))
            store.put(...)
            task.send(output, key=..., value=...)

    CLOSED ──open──► RUNNING ──commit's outcome unknown──► opened again by itself ──► RUNNING
       ▲                │
       └────────────────┴── close, `Fenced`, or a failure that opening again runs into, too

The protocol of opening and committing is in `tasksession`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self
from uuid import uuid4

import structlog

from statestore.budget import UncommittedBudget
from statestore.builder import StoreBuilder
from statestore.cache.record_cache import RecordCache
from statestore.config import StreamConfig
from statestore.context import Headers, RecordContext
from statestore.errors import Fenced, InvariantBroken, RollforwardError, Unavailable
from statestore.failpoints import reach
from statestore.kafka.producer import ProducerFatal, ProducerFenced, TransactionAborted, TransactionalProducer
from statestore.kinds.base import Kind
from statestore.kinds.custom import Custom
from statestore.layouts.timestamped import UNKNOWN
from statestore.listener import RestoreListener
from statestore.outbox import Output
from statestore.restore import RestorePlan
from statestore.store import StateStore
from statestore.tasksession import Committed, Store, TaskParts, TaskSession
from statestore.taskstores import TaskStores
from statestore.typed.base import TypedStore

log = structlog.get_logger()

# Kafka forgets what a group has committed `offsets.retention.minutes` ago, seven days unless the broker says otherwise.
COMMIT_AGAIN_S = 3_600.0


class StreamTask:
    """One thread uses it; any thread may read the stores. It opens the stores it is given, and closes them.

    stores: each as a store, or as a builder, which follows the configuration's `store_defaults`; see `store`. One of
        the program's own (`kinds.custom`) keeps a changelog unless its builder says otherwise.
    topic_configs: settings of a store's changelog topic, by the store's name; they go over those of its kind and its
        builder.
    cache: what stands before stores whose builders have caching on.
    listener: told how restoring goes.
    budget: shared with the other tasks of the process; one of its own if None.
    member: gives `consumer_group_metadata()` of the consumer that reads for this task, if it is a member of the group:
        the group then refuses a commit after it has given the partition away.
    """

    def __init__(
        self,
        config: StreamConfig,
        stores: Sequence[StateStore | StoreBuilder[Any]],
        *,
        topic_configs: Mapping[str, Mapping[str, str]] | None = None,
        listener: RestoreListener | None = None,
        budget: UncommittedBudget | None = None,
        member: Callable[[], object] | None = None,
        cache: RecordCache | None = None,
        clock: Callable[[], float] = time.monotonic,
        make_producer: Callable[..., TransactionalProducer] = TransactionalProducer,
    ) -> None:
        self.config = config
        topics: dict[str, Mapping[str, str]] = dict(topic_configs or {})
        built: list[Store] = []
        for one in stores:
            if isinstance(one, StoreBuilder):
                topics[one.name] = {**one.topic_config, **topics.get(one.name, {})}
                one = one.build(config.store_defaults, cache=cache)
            built.append(_of_task(one))
        self._stores: dict[str, StateStore] = {one.name: one.store if isinstance(one, Custom) else one for one in built}
        self._parts = TaskParts(
            config, built, uuid4().hex, topics, listener or RestoreListener(), member, make_producer
        )
        self._budget = budget or UncommittedBudget(config.uncommitted_bytes_max)
        self._clock = clock
        self._session: TaskSession | None = None
        self._asked = False
        self._taken = False
        # When the commit interval began, and when Kafka got the last commit.
        self._committed_at_s = self._sent_at_s = 0.0
        self._log = log.bind(application=config.application, task=config.partition)

    # Opening and closing.

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
        session = TaskSession(self._parts)
        try:
            session.open()
        except BaseException:
            session.close()
            raise
        self._session = session
        self._asked = self._taken = False
        self._committed_at_s = self._sent_at_s = self._clock()
        self._budget.join(self)

    def close(self) -> None:
        """Drop what is uncommitted, close the stores and release the folder. Closing twice is harmless."""
        self._budget.leave(self)
        session, self._session = self._session, None
        if session is not None:
            session.close()

    @property
    def is_open(self) -> bool:
        """False before `open` and after `close`, `Fenced`, or an `Unavailable` that opening again ran into, too."""
        return self._session is not None

    @property
    def session(self) -> TaskSession:
        """The present one. Raises `Unavailable` if the task is not open."""
        if self._session is None:
            raise Unavailable("task is not open", task=self.config.transactional_id, hint="open it again")
        return self._session

    @property
    def context(self) -> TaskStores:
        """What is around the stores, their metrics above all."""
        return self.session.context

    def store(self, name: str) -> Any:
        """The store of that name. Raises `KeyError` if the task was not given it."""
        return self._stores[name]

    @property
    def plans(self) -> dict[str, RestorePlan]:
        """How each store was restored when the task was opened."""
        return self.session.plans

    # Working.

    def next_offset(self, topic: str) -> int:
        """Where to read the input on. Ask after opening and after every `Unavailable`, and seek there.

        If a write of a store has failed, the task is opened again first, with errors as of `open`: of the record that
        was being processed a part of the effects is missing, so nothing since the last commit counts.
        """
        if self.session.failed:
            self.open()
        offset = self.session.next[topic, self.config.partition]
        self._asked = True
        return offset

    def take(self, *records: RecordContext) -> None:
        """The writes and outputs that follow come from these records: one, or a batch whose last one they stand for.

        Commits before it if that is due; errors as of `commit`. Raises `InvariantBroken` for a record that is before
        the next offset, or if nobody asked for that since the task was opened.
        """
        if not self._asked:
            raise InvariantBroken("task was opened, but nobody has asked for its next offset")
        self.commit_if_due()
        session = self.session
        for record in records:
            expected = session.next.get((record.topic, record.partition))
            if expected is None or record.offset < expected:
                raise InvariantBroken(
                    "record is not of this task, or was taken before", record=record, next_offset=expected
                )
            session.next[record.topic, record.partition] = record.offset + 1
        session.context.record = records[-1]
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
        record = self.context.record
        time_ms = timestamp_ms if timestamp_ms is not None else record.timestamp_ms if record else UNKNOWN
        self.session.outbox.add(Output(topic, key, value, partition, time_ms, headers))

    @property
    def uncommitted_bytes(self) -> int:
        """What the next commit takes in memory: what waits to be sent, and changes that do not spill to disk."""
        return self.session.uncommitted_bytes

    # Committing.

    def commit_if_due(self) -> None:
        """Commit if the interval is over or the task's share of the budget is used up.

        For loops without input, too: a task that is idle commits the same once an hour, or Kafka would forget its place.
        """
        session, share_bytes = self.session, self._budget.share_bytes
        if (self._clock() - self._committed_at_s) * 1000 >= self.config.commit_interval_ms:
            self.commit()
        elif session.uncommitted_bytes > share_bytes:
            self.commit()
            self.context.metrics.count("early-commit-total", self.config.transactional_id)
        elif session.outbox.bytes > share_bytes // 2:
            with self._settled():
                session.outbox.send()

    def commit(self) -> None:
        """Commit all that was taken. When it returns, that is committed.

        Nothing is done if there is nothing, unless the last commit is an hour old.
        Raises `Fenced` when another owner has the task: stop, or open it again if it is yours again. Raises
        `Unavailable` when it was not committed or cannot be known: the task has gone back to its last commit, or is
        closed; seek to `next_offset`.
        """
        session = self.session
        reach("program.before-commit")
        try:
            session.flush_caches()
        finally:
            self._require_whole()
        if self._taken or len(session.outbox) or self._clock() - self._sent_at_s >= COMMIT_AGAIN_S:
            asked = self._asked or self._taken or len(session.outbox) > 0
            with self._settled(), session.context.metrics.timed("commit", self.config.transactional_id):
                session.transaction()
                self._apply(session)
            # Whatever it took, all that was taken is committed: a loop that had begun may go on where it is.
            self._asked = asked
            self._sent_at_s = self._clock()
        self._taken = False
        self._committed_at_s = self._clock()

    def _require_whole(self) -> None:
        """A write that failed has left out a part of a record's effects, however the program went on."""
        if failed := self.session.failed:
            self.open()
            hint = "the task is back at its last commit: seek to next_offset and go on"
            raise Unavailable("a write has failed: nothing was committed", stores=", ".join(failed), hint=hint)

    def _apply(self, session: TaskSession) -> None:
        """Failing here loses nothing: the commit exists, and opening again restores it."""
        try:
            session.apply()
        except RollforwardError as error:
            self._log.error("commit could not be applied, task is opened again", error=str(error))
            self.open()

    @contextmanager
    def _settled(self) -> Iterator[None]:
        """What is done inside may leave the outcome unknown: then find it out."""
        number = self.session.note.number + 1
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
        task, owner = self.config.transactional_id, self._parts.owner
        try:
            # Our own transaction may still be open, so its end is not waited for.
            note = Committed.read(self.config, stable=False).note
        except BaseException:
            self.close()
            raise
        if note is not None and note.owner != owner:
            self.close()
            raise Fenced("another owner has claimed the task", task=task, owner=note.owner)
        self.open()
        # The claim has taken one more number.
        if self.session.note.number - 1 < number:
            hint = "the task is back at its last commit: seek to next_offset and go on"
            raise Unavailable("nothing was committed", task=task, error=cause, hint=hint) from cause


def _of_task(store: StateStore) -> Store:
    """What the task works with: of a store of the program's own, what stands for it."""
    return store if isinstance(store, TypedStore | Kind) else Custom(store.name, make=lambda: store)
