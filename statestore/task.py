"""One task: its store, its transactional producer, and the commit of its batches.

    CLOSED ──open──► RUNNING ──a step fails, outcome unknown──► BROKEN ──open──► RUNNING

A running task holds its transactional id and stands exactly at its committed position. The `token` names that
standing: it changes with every open and every commit. READ gives it out and WRITE returns it, so rows that were
merged with another version of the state are refused. A broken task answers nothing until it has been opened again.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from enum import Enum
from itertools import islice
from pathlib import Path
from threading import Condition, Lock, RLock
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import structlog

from statestore.batches import POSITION, BatchesLog, Order, Position, encode
from statestore.bring_up import BringUp, BroughtUp
from statestore.clock import Moment, now_ms
from statestore.committedhashes import CommittedHashes
from statestore.config import KafkaConfig, RocksConfig, TaskSpec
from statestore.deadletter import DeadLetter
from statestore.digest import EMPTY, changed, hashed
from statestore.entrycache import EntryCache
from statestore.entryhashes import column_hashes
from statestore.errors import InvariantBroken, RollforwardError, TaskCorrupted, Unavailable
from statestore.failpoints import reach
from statestore.folders import doubted, settle
from statestore.kafka.admin import Admin
from statestore.kafka.producer import ProducerFatal, TransactionAborted, TransactionalProducer, message_bytes
from statestore.kafka.reader import Reader
from statestore.layouts import timestamped
from statestore.layouts.local import are_local
from statestore.listener import RestoreListener
from statestore.lockholder import FolderLock, end_zombie
from statestore.ownership import own, require_newest
from statestore.partitioner import tasks_of
from statestore.placement import AtIsolation, Placement
from statestore.planning.facts import UNUSABLE, Found, gather, unusable, why_not_opened, with_done, with_snapshots
from statestore.planning.plan import RecoveryPlan, patience_with_snapshots_s
from statestore.rocks.errors import LockHeld, is_damage
from statestore.snapshots.copy import Steps, describe
from statestore.snapshots.manifest import Manifest
from statestore.snapshots.repository import Repository
from statestore.snapshots.service import Snapshots
from statestore.spaces.base import ChangeColumns
from statestore.staging import Staged
from statestore.store import Entry, Isolation
from statestore.transactions.indexed_batch import IndexedBatchTransaction
from statestore.version import ChangelogPosition, Checkpoint, TaskDatabase

log = structlog.get_logger()
# A commit that is staged comes at once; by then its driver is gone.
_COMMIT_WAIT_S = 60.0
# Bytes of a record that every topic takes unless somebody has set less; then its limit has to be asked for.
_SURELY_TAKEN = 500_000
# So many windows may expire in any batch, though it writes few itself: it takes some tenths of a second.
EXPIRED_AT_ONCE = 100_000


class TaskState(Enum):
    """See the drawing above."""

    CLOSED = "closed"
    RUNNING = "running"
    BROKEN = "broken"


@dataclass(frozen=True)
class Opened:
    """How an opening went."""

    plan: RecoveryPlan
    records: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**self.plan.to_json(), "records": self.records, "seconds": round(self.seconds, 3)}


class Task:
    """Owned by one server process. Every method may be called from any thread."""

    def __init__(
        self,
        spec: TaskSpec,
        epoch: int,
        kafka: KafkaConfig,
        rocks: RocksConfig,
        *,
        transactions: bool,
        snapshots: Snapshots | None = None,
        reader: Reader | None = None,
    ) -> None:
        self.spec = spec
        self.epoch = epoch
        self.state = TaskState.CLOSED
        self.committed_batch = -1
        # How long the newest commit's apply took.
        self.apply_s = 0.0
        self.token = 0
        self._kafka = kafka
        self._rocks = rocks
        self._transactions = transactions
        # Tasks of one process share its connection.
        self._reader = reader or Reader(kafka)
        self._admin = Admin(kafka, self._reader)
        self._batches = BatchesLog(self._reader, spec.batches_topic, tasks=spec.tasks)
        self._lock = RLock()
        # Told when a commit is over, whatever came of it, and when the task is let go.
        self._turned = Condition(self._lock)
        # Held while rows are laid over the store or taken away, for readers who want them; after the other lock.
        self._laying = Lock()
        self._position: Position | None = None
        # The offset after the newest position's record; 0 where an owner before has written it.
        self._position_end = 0
        self._producer: TransactionalProducer | None = None
        self._folder_lock: FolderLock | None = None
        self._database: TaskDatabase | None = None
        self._store: IndexedBatchTransaction | None = None
        self._placement = Placement(spec.store)
        # Stream time of the store's version by its batch; also of the one being written. Replaced, never changed.
        self._stream_times: dict[int, int] = {}
        # The segment of which a part has expired and is deleted, and the last key of that.
        self._swept: tuple[str, bytes] | None = None
        self._hashes = CommittedHashes()
        self._cache = EntryCache(rocks.entry_cache_bytes)
        self._result_partitions = 1
        self._staged: Staged | None = None
        self.steps = Steps()
        self.repository: Repository | None = None
        self._snapshots = snapshots
        self._log = log.bind(pipeline=spec.pipeline, task=spec.name, epoch=epoch)

    # Opening: own, then recover.

    def open(self, listener: RestoreListener | None = None) -> Opened:
        """Own the task's transactional id and bring the store to the committed version. Raises `Fenced`."""
        with self._lock, self._reader.kept():
            started = time.monotonic()
            self._release()
            with ExitStack() as undo:
                undo.callback(self._release)
                asked = Moment()
                self._producer, standing = own(
                    self._kafka, self.spec, self._batches, self.epoch, transactions=self._transactions
                )
                self._position = standing.position
                with self.spoiling():
                    brought = self._recover(listener or RestoreListener(), asked, standing.done)
                self._database = brought.database
                self._become_running()
                undo.pop_all()
            opened = Opened(brought.plan, brought.records, time.monotonic() - started)
            self._log.info("task opened", **{k: v for k, v in opened.to_json().items() if k not in ("task", "ways")})
            return opened

    @contextmanager
    def spoiling(self, *, in_query: bool = False) -> Iterator[None]:
        """Work on the store's files. Raises `Unavailable` for damage, and the next opening begins without them.

        in_query: what the moment is to blame for, as too many open files, is the query's alone: the task goes on.
        """
        database = self._database
        try:
            yield
        except TaskCorrupted as error:
            if in_query and not is_damage(error):
                hint = "ask again"
                raise Unavailable("local store cannot be read", task=self.spec.name, error=error, hint=hint) from error
            with self._lock:
                # A reader may be at files that the task has let go by now.
                if database is self._database:
                    self._spoil(error)
            hint = "nothing to do: the store is made again from snapshot and changelog"
            raise Unavailable("local store cannot be used", task=self.spec.name, error=error, hint=hint) from error

    def _spoil(self, error: TaskCorrupted) -> None:
        self.state = TaskState.BROKEN
        self._log.error("local store cannot be used", error=str(error))
        if is_damage(error):
            # On a full disk the damage is met again instead.
            with suppress(OSError):
                doubted(self.spec.folder).touch()

    def _look(self, undo: ExitStack, asked: Moment, done: int) -> tuple[Found, Repository | None, TaskDatabase | None]:
        """The facts for a plan. The database is left open if it is usable, and closed by `undo`."""
        database: TaskDatabase | None = None
        settle(self.spec.folder)
        checkpoint, problem = None, why_not_opened(self.spec.folder)
        if not problem and self.spec.folder.exists():
            try:
                database = self._open_database()
                undo.callback(database.close)
                checkpoint = database.checkpoint()
                if checkpoint is None:
                    problem = "local store was not complete"
            except UNUSABLE as error:
                problem = unusable(error)
        found = gather(self.spec, self._reader, self._admin, self._position, checkpoint, problem, asked)
        found = with_done(found, self.spec, self._reader, done, transactions=self._transactions)
        if self._snapshots is None:
            return replace(found, snapshots_problem="snapshots are turned off"), None, database
        self.repository = self._snapshots.repository(self.spec, found.batches_topic_id)
        patience_s = patience_with_snapshots_s(self.spec, found)
        if patience_s:
            found = with_snapshots(found, self.repository, patience_s=patience_s)
        return found, self.repository, database

    def _open_database(self) -> TaskDatabase:
        return TaskDatabase(self.spec.folder, [self.spec.store.name], self._rocks)

    def _lock_folder(self) -> FolderLock:
        """From a zombie of ours if need be."""
        try:
            return FolderLock(self.spec.folder)
        except LockHeld:
            if not end_zombie(self.spec.folder):
                raise
            return FolderLock(self.spec.folder)

    def _recover(self, listener: RestoreListener, asked: Moment, done: int) -> BroughtUp:
        """The store at the committed version. After an error nothing is open or locked."""
        with ExitStack() as undo:
            self._folder_lock = self._lock_folder()
            undo.callback(self._folder_lock.close)
            found, repository, database = self._look(undo, asked, done)
            way = BringUp(
                self.spec, self._reader, repository, self._open_database, self._rocks, listener, epoch=self.epoch
            )
            if self._snapshots is not None:
                way.pin_life_s = self._snapshots.config.pin_life_s
            undo.callback(way.close)
            brought = way.run(found, database)
            undo.pop_all()
        return brought

    def _become_running(self) -> None:
        assert self._database is not None
        if self._placement.windowed:
            found = self._admin.describe([self.spec.output_topic])
            if not found:
                raise Unavailable("result topic does not exist", task=self.spec.name, topic=self.spec.output_topic)
            self._result_partitions = found[self.spec.output_topic].partitions
        self._store = IndexedBatchTransaction(self.spec.store.name, self._database.database)
        self._staged = None
        self._hashes.clear()
        self._cache.clear()
        self.committed_batch = -1 if self._position is None else self._position.batch
        self._position_end = 0
        checkpoint = self._database.checkpoint()
        self._stream_times = {_batch_of(checkpoint): self.order.stream_time_ms}
        self._swept = None
        self.steps.begin(self._position, checkpoint)
        self.token = secrets.randbits(62)
        self.state = TaskState.RUNNING

    def _release(self) -> None:
        """Let go of everything, the store first, and of each whatever the one before says: on a full disk it may say a lot."""
        self.state = TaskState.CLOSED
        self._turned.notify_all()
        self._staged = None
        held = (self._producer, self._folder_lock, self._database, self._store)
        self._producer = self._folder_lock = self._database = self._store = None
        with ExitStack() as releasing:
            for one in held:
                if one is not None:
                    releasing.callback(one.close)

    def close(self) -> None:
        """Drop what is uncommitted and release the folder and the producer."""
        with self._lock:
            self._release()

    @property
    def store(self) -> IndexedBatchTransaction:
        """The store's open transaction; its one space has the store's name. Raises `Unavailable` unless running."""
        if self._store is None or self.state is not TaskState.RUNNING:
            raise Unavailable("task is not running", task=self.spec.name, state=self.state.value)
        return self._store

    # Reading and staging.

    def await_commit(self, batch: int) -> None:
        """Return when the batch is committed, which must be staged until then. Raises `Unavailable` if that is not so."""
        deadline = time.monotonic() + _COMMIT_WAIT_S
        with self._lock:
            while self.committed_batch < batch:
                left = deadline - time.monotonic()
                if self._staged is None or self._staged.batch != batch or left <= 0:
                    raise Unavailable("batch before is not committed", task=self.spec.name, batch=batch)
                self._turned.wait(left)

    def begin_read(self) -> None:
        """Forget what an attempt before has read: of each attempt that failed it would be kept until the next commit."""
        with self._lock:
            self._hashes.clear()

    def read(self, keys: pa.BinaryArray) -> tuple[pa.BinaryArray, int, int]:
        """Committed states of the keys, and the token and the stream time of the version they are of.

        Their hashes are kept for the digest of the batch that changes them.
        """
        with self._lock:
            self._require_mine(keys)
            states = self._committed(keys)
            if self.digest is not None:
                self._hashes.add(keys, states)
            return states, self.token, self.order.stream_time_ms

    def _committed(self, keys: pa.BinaryArray) -> pa.BinaryArray:
        """Committed states of the keys."""
        reader = AtIsolation(self.store, Isolation.READ_COMMITTED)

        def stored(keys: pa.BinaryArray) -> pa.BinaryArray:
            with self.spoiling():
                return self._placement.states(reader, keys)

        return self._cache.states(keys, stored)

    @property
    def digest(self) -> str | None:
        """The digest of the committed version; None if it is not known, as without transactions."""
        if not self._transactions:
            return None
        return EMPTY if self._position is None else self._position.digest

    @property
    def order(self) -> Order:
        """The committed stream time and how many records have come too late."""
        return (None if self._position is None else self._position.order) or Order()

    def entry(self, key: bytes, isolation: Isolation) -> bytes | None:
        """The stored value of one stored key."""
        return self._placement.get_many(AtIsolation(self.store, isolation), [key])[0]

    def entries(self, lower: bytes | None, upper: bytes | None, isolation: Isolation) -> Iterator[Entry]:
        """Entries between two stored keys, both included, as they are at the call. Waits for no commit under way."""
        if not self._placement.windowed:
            return self._placement.scan(AtIsolation(self.store, isolation), lower=lower, upper=upper)
        if isolation is Isolation.READ_COMMITTED:
            return self._segments_of_one_version(lower, upper, isolation)
        with self._laying:
            return self._segments_of_one_version(lower, upper, isolation)

    def _segments_of_one_version(
        self, lower: bytes | None, upper: bytes | None, isolation: Isolation
    ) -> Iterator[Entry]:
        """Open all segments, and again if a commit came between: it writes the checkpoint in its one step."""
        while True:
            reader, checkpoint = AtIsolation(self.store, isolation), self._checkpoint()
            # None if two commits came between.
            now = self._stream_times.get(_batch_of(checkpoint))
            if now is None:
                continue
            opened = self._placement.scan(reader, lower=lower, upper=upper, stream_time_ms=now)
            if checkpoint == self._checkpoint():
                return opened

    def _checkpoint(self) -> Checkpoint | None:
        """The version in the store's files. Raises `Unavailable` if they are closed."""
        database = self._database
        if database is None:
            raise Unavailable("task is not running", task=self.spec.name, state=self.state.value)
        return database.checkpoint()

    def begin_stage(self, *, batch: int, attempt: int, token: int, order: Order | None = None) -> Staged:
        """Start collecting an attempt. Raises `Unavailable` if its rows were read at another version."""
        with self._lock:
            if token != self.token or self.state is not TaskState.RUNNING:
                raise Unavailable(
                    "rows were merged with another version of the state", task=self.spec.name, batch=batch
                )
            return Staged(batch, attempt, token, order)

    def check_stage(self, rows: pa.RecordBatch) -> None:
        """Refuse rows that belong to another task."""
        keys, states, dead = (rows.column(name) for name in ("key", "state", "dead"))
        if states.null_count or dead.null_count < len(dead):
            keys = keys.filter(pc.and_(dead.is_null(), states.is_valid()))
        self._require_mine(keys)

    def close_stage(self, staged: Staged) -> None:
        """The attempt is complete: it replaces what an earlier attempt of the batch staged."""
        with self._lock:
            if staged.token != self.token:
                raise Unavailable("task went on while rows were staged", task=self.spec.name, batch=staged.batch)
            staged.closed = True
            # Should this fail half-way, what an earlier attempt said must not be committed with half of this one's rows.
            self._staged = None
            with self._laying, self.spoiling():
                self._lay(staged)
            self._staged = staged
            reach("stage.closed")

    def _lay(self, staged: Staged) -> None:
        """Make the attempt what is uncommitted, in the place of what was; nothing is, where that fails."""
        self.store.rollback()
        with ExitStack() as undo:
            undo.callback(self.store.rollback)
            placement, stream_time_ms = self._placement, (staged.order or self.order).stream_time_ms
            if placement.windowed:
                # What is out of retention by the end of the batch is not even written.
                staged.keep(lambda keys: placement.live(keys, stream_time_ms))
            self._put(staged)
            staged.changed = staged.changed_columns(self.store.changes)
            gone = self._expire(staged, stream_time_ms) if placement.windowed else []
            staged.digest = self._digest_after(staged, gone)
            undo.pop_all()

    def _expire(self, staged: Staged, stream_time_ms: int) -> list[int]:
        """Delete stored windows that are out of retention at that stream time, the oldest first; gives their hashes.

        A transaction has to end in time, so a batch lets no more of them go than a bound, and at least twice what it
        writes itself, lest they become ever more. Those left are read by nobody and go with the next batches.
        """
        most = max(EXPIRED_AT_ONCE, 2 * len(staged.keys))
        gone: list[int] = []
        for space in self._placement.expired(self.store.spaces(Isolation.READ_COMMITTED), stream_time_ms):
            left = most - len(staged.expired)
            # Not over all that earlier batches have deleted, again in each.
            lower = self._swept[1] if self._swept is not None and self._swept[0] == space else None
            keys: list[bytes] = []
            for some, hashes in hashed(
                islice(self.store.scan(space, lower=lower, isolation=Isolation.READ_COMMITTED), left)
            ):
                keys += some
                gone += hashes
            staged.expired += keys
            if len(keys) == left:
                self.store.put_all(space, ChangeColumns(keys, [None] * left))
                staged.swept = (space, keys[-1])
                break
            self.store.drop(space)
        return gone

    def _digest_after(self, staged: Staged, gone: list[int]) -> str | None:
        """The digest of the version that the attempt makes; `gone` are hashes of entries that have expired."""
        if self.digest is None:
            return None
        pieces = staged.changed
        if not pieces:
            return changed(self.digest, added=(), taken=gone)
        added = sum(int(column_hashes(keys, states).sum()) for keys, states in pieces)
        taken = int(self._hashes.of(pa.concat_arrays([keys for keys, _ in pieces]), self._committed).sum())
        return changed(self.digest, added=[added], taken=[taken, *gone])

    def _put(self, staged: Staged) -> None:
        changes = ChangeColumns(staged.keys, staged.states)
        if not self._placement.windowed:
            self.store.put_all(self.spec.store.name, changes)
            return
        for space, its in self._placement.placed_lists(changes, staged.key_column).items():
            self.store.put_all(space, its)

    def _require_mine(self, keys: pa.BinaryArray) -> None:
        if keys.null_count:
            raise InvariantBroken("a row has no key", task=self.spec.name)
        local = are_local(keys)
        if local.true_count:
            keys = keys.filter(pc.invert(local))
        if len(keys) and (tasks_of(self._placement.owners(keys), self.spec.tasks) != self.spec.number).any():
            raise InvariantBroken("a row of another task arrived", task=self.spec.name)

    # Committing.

    def commit(self, *, batch: int, attempt: int, plan: str, ends: Mapping[str, int] | None = None) -> bool:
        """Commit the staged attempt; False if the batch was committed before. Steps are numbered as in the design.

        `ends` is where the input stands after the batch, by source partition: it is kept with the position.

        Raises `Unavailable` when the batch has to run again and `Fenced` when a newer owner exists. When it returns,
        the batch is committed in Kafka, whatever became of the local store.
        """
        with self._lock:
            try:
                return self._commit(batch, attempt, plan, ends or {})
            finally:
                self._turned.notify_all()

    def _commit(self, batch: int, attempt: int, plan: str, ends: Mapping[str, int]) -> bool:
        if batch <= self.committed_batch:
            return False
        staged = self._staged
        if staged is None or not staged.closed or (staged.batch, staged.attempt) != (batch, attempt):
            raise Unavailable("attempt is not staged", task=self.spec.name, batch=batch, attempt=attempt)
        self.apply_s = 0.0
        # However long this process sleeps from here on: nothing behind the batch is committed before.
        at_ms = now_ms()
        try:
            position = self._transaction(staged, plan, ends)
        except TransactionAborted as error:
            self._staged = None
            with self._laying:
                self.store.rollback()
            raise Unavailable("transaction was aborted", task=self.spec.name, batch=batch, error=error) from error
        except (ProducerFatal, Unavailable) as error:
            return self._settle(batch, error)
        reach("commit.committed")
        started = time.monotonic()
        self._apply(position, staged, at_ms)
        self.apply_s = time.monotonic() - started
        reach("apply.before-answer")
        return True

    def _transaction(self, staged: Staged, plan: str, ends: Mapping[str, int]) -> Position:
        """Step 4: changelog, outputs, dead letters and position, all or none."""
        assert self._producer is not None
        producer, spec = self._producer, self.spec
        # 4.1 Nothing is written where Kafka has lost something. The transaction begins now, so it lasts as long as sending
        # takes.
        reach("commit.before-begin")
        self._reader.require_reach(self.committed_ends())
        producer.begin()
        reach("commit.begun")
        # 4.2 Everything the batch changed. The changelog's next offset is the one after its last record.
        next_offset = [self.changelog_offset()]
        self._produce_changelog(staged, next_offset)
        reach("commit.in-produce")
        for outputs in staged.outputs:
            for partition, records in self._placement.results(outputs, self._result_partitions).items():
                producer.produce_many(spec.output_topic, records, partition=partition)
        for dead in self._dead_letters(staged):
            producer.produce(
                spec.dead_letter_topic,
                key=dead.key,
                value=dead.value,
                timestamp_ms=dead.timestamp_ms,
                headers=dead.headers,
            )
        reach("commit.produced")
        # 4.3 The delivery reports, for the changelog's offset.
        producer.flush()
        reach("commit.delivered")
        # 4.4 The position, in the same transaction.
        stores = {spec.store.name: ChangelogPosition(spec.store.changelog_topic_id, next_offset[0])}
        position = Position(
            staged.batch, self.epoch, plan, stores, dict(ends), self._order_after(staged), staged.digest
        )
        position_at: list[int] = []
        producer.produce(
            spec.batches_topic,
            key=POSITION,
            value=encode(position),
            partition=spec.number,
            on_offset=position_at.append,
        )
        # The commit would wait for it as well.
        producer.flush()
        reach("commit.position-sent")
        # 4.5 From here on the batch exists.
        producer.commit()
        self._position_end = position_at[0] + 1 if position_at else 0
        return position

    def _dead_letters(self, staged: Staged) -> list[DeadLetter]:
        """As large as their topic and the client take them: a source may take larger records, or compress them better."""
        clients = message_bytes(self._kafka)
        if all(dead.size < min(_SURELY_TAKEN, clients // 2) for dead in staged.dead):
            return staged.dead
        most = min(clients, int(self._admin.configs(self.spec.dead_letter_topic)["max.message.bytes"]))
        return [dead.cut(most) for dead in staged.dead]

    def _order_after(self, staged: Staged) -> Order | None:
        """The order as of the batch: late records are counted on."""
        if staged.order is None:
            return None if self._position is None else self._position.order
        return replace(staged.order, dropped=self.order.dropped + staged.order.dropped)

    def _produce_changelog(self, staged: Staged, next_offset: list[int]) -> None:
        """The delivery report of the last record, which has the highest offset, moves `next_offset`."""
        assert self._producer is not None
        if not staged.changes:
            return
        topic, partition = self.spec.store.changelog_topic, self.spec.number
        *before, last = staged.changelog()
        for records in (*before, last.slice(0, len(last) - 1)):
            self._producer.produce_many(topic, records, partition=partition, skip=timestamped.SIZE)

        def delivered(offset: int) -> None:
            next_offset[0] = offset + 1

        key, value, time_ms = (column[-1].as_py() for column in last.columns)
        self._producer.produce(
            topic,
            key=key,
            value=value if value is None else value[timestamped.SIZE :],
            timestamp_ms=time_ms,
            partition=partition,
            on_offset=delivered,
        )

    def committed_ends(self) -> dict[tuple[str, int], int]:
        """Up to where its logs (topic, partition) were committed, as far as it knows: what is to be asked before writing there."""
        return {
            (self.spec.store.changelog_topic, self.spec.number): self.changelog_offset(),
            (self.spec.batches_topic, self.spec.number): self._position_end,
        }

    def changelog_offset(self) -> int:
        """The store's next offset in its changelog."""
        return 0 if self._position is None else self._position.stores[self.spec.store.name].offset

    def _settle(self, batch: int, cause: RollforwardError) -> bool:
        """The outcome is unknown, or the producer is gone: the newest driver and the position decide."""
        self.state = TaskState.BROKEN
        require_newest(self._batches, self.epoch, self.spec.transactional_id)
        self._log.warning("commit outcome unknown, asking kafka", batch=batch, error=str(cause))
        stood = self.committed_batch
        self.open()
        if self.committed_batch < stood:
            self._log.error("kafka has lost committed batches", batch=self.committed_batch, lost=stood)
        if self.committed_batch >= batch:
            return True
        raise Unavailable("batch was not committed", task=self.spec.name, batch=batch, error=cause) from cause

    def _apply(self, position: Position, staged: Staged, at_ms: int) -> None:
        """Step 5: the committed batch goes into the store's files, in one write. Failing here loses nothing."""
        assert self._database is not None
        before = max(self._stream_times)
        self._position = position
        # Readers find the time of the version that they find, whichever of the two that is.
        self._stream_times = {before: self._stream_times[before], position.batch: self.order.stream_time_ms}
        self._hashes.clear()
        self.committed_batch = position.batch
        self.token = secrets.randbits(62)
        self._staged = None
        self._swept = staged.swept or self._swept
        try:
            reach("apply.before-write")
            self.store.commit(*self._database.entries(position.checkpoint(self.spec.tasks, at_ms)))
            if self._snapshots is not None:
                # Else no snapshot would ever take them away.
                self.steps.add(position)
            # Windows expire by their segments, of which the cache knows nothing.
            if not self._placement.windowed:
                self._cache.put(staged.changed)
            reach("apply.written")
        except BaseException as error:
            # Whatever it was: the store stands behind its position, and must not be read as if it did not.
            self.state = TaskState.BROKEN
            self._log.error("committed batch could not be applied", batch=position.batch, error=str(error))
            if isinstance(error, TaskCorrupted):
                self._spoil(error)
            if not isinstance(error, RollforwardError):
                raise

    # Snapshots.

    def copy(self, folder: Path) -> Manifest:
        """Make `folder` a hard-link copy of the committed version; gives its manifest, without files and write id.

        The task waits for the links, and for a flush of what was written during the flush before them.

        Raises `Unavailable` when the task is not running.
        """
        database = self._database
        if database is not None:
            database.database.flush_ahead()
        with self._lock:
            if (
                self.state is not TaskState.RUNNING
                or self._database is None
                or self._position is None
                or self.repository is None
            ):
                raise Unavailable("task has no committed version to copy", task=self.spec.name, state=self.state.value)
            self._database.database.copy_to(folder)
            checkpoint = self._database.checkpoint()
            if checkpoint is None or checkpoint.batch != self._position.batch:
                raise InvariantBroken("store of a running task stands elsewhere", task=self.spec.name)
            topic_id = self.repository.layout.batches_topic_id
            return describe(self.spec, topic_id, self._position, checkpoint, self.steps.since_last())

    # Looking.

    def figures(self) -> dict[str, Any]:
        """Numbers for people: where the task stands and how large its store is."""
        with self._lock:
            figures: dict[str, Any] = {
                "task": self.spec.name,
                "pipeline": self.spec.pipeline,
                "state": self.state.value,
                "epoch": self.epoch,
                "batch": self.committed_batch,
                "token": self.token,
                "digest": self.digest,
            }
            if self.state is TaskState.RUNNING and self._database is not None:
                database, order = self._database.database, self.order
                spaces = self._placement.spaces(database.spaces())
                figures["keys"] = sum(map(database.estimate, spaces))
                figures["bytes"] = sum(
                    database.property(space, name)
                    for space in spaces
                    for name in ("live-sst-files-size", "size-all-mem-tables")
                )
                figures["memory"] = database.memory() | {"entry_cache": self._cache.bytes}
                figures |= {"stream_time_ms": order.stream_time_ms, "dropped": order.dropped}
            return figures


def _batch_of(checkpoint: Checkpoint | None) -> int:
    return -1 if checkpoint is None else checkpoint.batch
