"""The metastore of one service, in this process: reads the log, accepts statements, writes commands.

A statement's way, numbered as in `Metastore._attempt`:

    1  a new producer with the service's transactional id
    2  init: every other writer is fenced, an open transaction of theirs ends
    3  begin
    4  the log's end offset: nothing can follow it now without fencing this writer
    5  wait until the projection has applied everything before it
    6  validate against that snapshot
    7  produce the command
    8  commit: refused if another writer has come in between, and then everything begins again

Nothing but Kafka and a database is needed: a command of the command line does all of it and ends. `rollforward serve`
does it for others over HTTP.

A client that does not hear the answer asks for its idempotency key, or sends the statement again with it: after step 2
nothing of that key is under way, so after step 5 it is in the log or will never be.

Behind step 8 nothing takes the statement back: if the database fails then, the answer says that it is in the log and not
yet shown here.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import structlog
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from pipelines.database import open_database, prepare, unavailable
from pipelines.deploy import KafkaWorld
from pipelines.metastore import backup
from pipelines.metastore.backup import Backup, Turned
from pipelines.metastore.checkpoint import checkpoint_values
from pipelines.metastore.command import CHECKPOINT, Command, Head, Unreadable, decode, encode
from pipelines.metastore.decide import decide
from pipelines.metastore.degraded import Fault, Reason
from pipelines.metastore.follower import Follower
from pipelines.metastore.log import VALUE_BYTES_MAX, CommandLog
from pipelines.metastore.projection import Position, Projection, Snapshot
from pipelines.metastore.replay import Replay
from pipelines.metastore.rows import Applied
from pipelines.metastore.statement import DROP, SQL, Statement, require_key
from pipelines.metastore.validate import DROPPED, Accepted, World, check
from pipelines.settings import Settings
from statestore.errors import InvalidInput, InvariantBroken, Unavailable
from statestore.failpoints import reach
from statestore.kafka.producer import ProducerFatal, TransactionAborted, TransactionalProducer
from statestore.kafka.reader import Record

log = structlog.get_logger()
Answer = TypeVar("Answer")
ATTEMPTS = 12
_WAIT_MAX_S = 3.0
# The end of a transaction is in the log some ms behind the answer to its commit.
_READERS_S = 10.0
_REPAIR = "rollforward drift --repair"


@dataclass(frozen=True)
class Outcome:
    """What became of a statement.

    `sequence` is its command's number in the log, None if it had nothing to change; `offset` is where it was written
    just now. `repeated`: an earlier sending with the same key had put it there. `applied`: this machine's projection
    shows it.
    """

    key: str
    sequence: int | None
    changed: bool
    offset: int | None = None
    repeated: bool = False
    applied: bool = True
    names: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


class _Written(NamedTuple):
    """Commands that are committed, where the projection stood when they were validated, and what they have dropped.

    `dropped` are the names under which is noted what is left of it in Kafka.
    """

    records: list[Record]
    position: Position
    dropped: tuple[str, ...] = ()


_Done = tuple[Outcome, _Written | None]


class _OutcomeUnknown(Exception):
    """The commit was sent and not answered: only the next `init` tells."""


class Metastore:
    """Open it, use it, `close` it. Threads may share it; one at a time writes."""

    def __init__(self, settings: Settings, engine: Engine | None = None, *, world: World | None = None) -> None:
        config = settings.kafka_config()
        self.service = settings.service
        self._own_engine = engine is None
        self._engine = engine or open_database(settings.metastore)
        self.log = CommandLog(config, settings.service, replication=settings.replication_factor)
        self.projection = Projection(self._engine, settings.service)
        self._follower = Follower(self.log, self.projection)
        self._world = world or KafkaWorld(settings)
        self._writing = threading.Lock()
        self._patience_s = settings.request_timeout_s

    def close(self) -> None:
        """Release the database."""
        if self._own_engine:
            self._engine.dispose()

    def prepare(self) -> None:
        """Make the tables again where the database has come back without them."""
        prepare(self._engine)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """One statement at a time; the others wait for about as long as Kafka may take. Raises `Unavailable`."""
        if not self._writing.acquire(timeout=self._patience_s):
            raise Unavailable("statements before this one take too long", waited_s=self._patience_s)
        try:
            yield
        finally:
            self._writing.release()

    # Reading.

    def refresh(self) -> Fault | None:
        """Apply what the log has; gives why it cannot be trusted, if so. Raises `Unavailable` without Kafka."""
        return self._follower.catch_up()

    def restore(self) -> Fault | None:
        """At the start of a service: make the log if this is a new one, and apply all of it."""
        if not self._follower.knows and self.log.topic() is None:
            self.log.create()
        return self.refresh()

    def outcome(self, key: str) -> Applied | None:
        """The command with this idempotency key, or None if it is not in the log and never will be by what was sent.

        Fences whoever is writing, so nothing is under way. Raises `MetastoreDegraded`, `Unavailable`.
        """
        return self._retried(lambda: self._look(require_key(key)))

    def _look(self, key: str) -> Applied | None:
        with self._turn():
            producer = self.log.producer()
            try:
                producer.init()
                self._require_current()
                return self.projection.command(key)
            finally:
                producer.close()

    def _require_current(self) -> Position:
        """Apply everything before now. Raises `MetastoreDegraded`."""
        fault = self._follower.catch_up(writer=True)
        if fault is not None:
            raise fault.error(self.log.topic_name)
        return self.projection.position()

    # Writing.

    def execute(self, statement: Statement, key: str | None = None) -> Outcome:
        """Put the statement into the log and apply it, or raise what is wrong with it.

        `key` makes sending it again harmless. Raises `SqlError`, `InvalidInput`, `InvalidConfig` for a refused
        statement, `MetastoreDegraded`, and `Unavailable` with the key when its fate could not be learnt or other
        writers were always faster.
        """
        key = require_key(key or uuid.uuid4().hex)
        check(statement, self._world.default_tasks)
        done, written = self._retried(lambda: self._attempt(statement, key), key)
        outcome = self._shown(done, written)
        if outcome.applied:
            for dropped in self._noted(statement, outcome) if written is None else written.dropped:
                self.clean(dropped)
        return outcome

    def _noted(self, statement: Statement, outcome: Outcome) -> list[str]:
        """What to clean where nothing was written: sent again, the first sending may have been killed before it had cleaned.

        Under which names it had noted what it dropped is not known any more, and to clean a note twice is harmless.
        """
        if not outcome.repeated or statement.kind not in (DROP, SQL):
            return []
        try:
            with self.projection.snapshot() as snapshot:
                return snapshot.names(DROPPED)
        except SQLAlchemyError as error:
            log.warning("what was dropped is not known", key=outcome.key, error=str(error), hint=_REPAIR)
            return []

    def clean(self, dropped: str) -> list[str]:
        """Delete what a drop left in Kafka; gives the names. Killed or failing, `drift` finds the rest."""
        try:
            with self.projection.snapshot() as snapshot:
                left = snapshot.get(DROPPED, dropped)
            return [] if left is None else self._world.remove(left["topics"], left["groups"])
        except (Unavailable, SQLAlchemyError) as error:
            log.warning("what a drop left could not be deleted", dropped=dropped, error=str(error), hint=_REPAIR)
            return []

    def _make_log(self) -> None:
        """At the first statement of a service."""
        if not self._follower.knows:
            fault = self.restore()
            if fault is not None:
                raise fault.error(self.log.topic_name)

    def _shown(self, outcome: Outcome, written: _Written | None) -> Outcome:
        """Apply what was written here as well, as far as the database answers: it is committed in any case."""
        fault = None
        try:
            if written is not None:
                fault = self._follower.applied(written.records, written.position)
        except SQLAlchemyError as error:
            log.warning("statement is in the log and not applied here yet", key=outcome.key, error=str(error))
            return replace(outcome, applied=False)
        if written is not None:
            self._await_readers(written.records[-1].offset)
        reach("statement.applied")
        return replace(outcome, applied=fault is None)

    def _await_readers(self, offset: int) -> None:
        """Return when readers see the record: the answer to a commit may come before. No longer than a while."""
        deadline = time.monotonic() + min(_READERS_S, self._patience_s)
        try:
            while self.log.stable_end() <= offset and time.monotonic() < deadline:
                time.sleep(0.01)
        except Unavailable as error:
            log.warning("whether readers see the statement is not known", offset=offset, error=str(error))

    def _retried(self, attempt: Callable[[], Answer], key: str = "") -> Answer:
        """Run it again while other writers come in between, with growing random waits."""
        unknown = False

        def run() -> Answer:
            nonlocal unknown
            try:
                return attempt()
            except _OutcomeUnknown:
                unknown = True
                raise

        again = Retrying(
            retry=retry_if_exception_type((ProducerFatal, TransactionAborted, _OutcomeUnknown)),
            stop=stop_after_attempt(ATTEMPTS),
            wait=wait_random_exponential(multiplier=0.05, max=_WAIT_MAX_S),
            retry_error_callback=lambda state: _gave_up(state, key, unknown),
        )
        try:
            return again(run)
        except SQLAlchemyError as error:
            raise _told_fate(unavailable(error), key, unknown) from error
        except Unavailable as error:
            if "key" in error.fields:
                raise
            raise _told_fate(error, key, unknown) from error

    def _attempt(self, statement: Statement, key: str) -> _Done:
        """One run of the protocol; the numbers are those above."""
        self._make_log()
        with self._turn():
            reach("statement.before-init")
            producer = self.log.producer()  # 1
            try:
                producer.init()  # 2
                reach("statement.initialised")
                producer.begin()  # 3
                reach("statement.begun")
                return self._in_transaction(producer, statement, key)
            finally:
                producer.close()

    def _in_transaction(self, producer: TransactionalProducer, statement: Statement, key: str) -> _Done:
        try:
            position = self._require_current()  # 4, 5
            reach("statement.caught-up")
            known = self.projection.command(key)
            if known is not None:
                producer.abort()
                return _repeated(known, statement), None
            with self.projection.snapshot() as snapshot:
                accepted = decide(statement, snapshot, self._world)  # 6
                value = _encoded(statement, accepted, position.head, key)
                _require_applicable(value, position.head, snapshot)
            reach("statement.validated")
        except (ProducerFatal, TransactionAborted):
            raise
        except Exception:
            self._abort(producer)
            raise
        if not accepted.changes:
            producer.abort()
            return Outcome(key, None, changed=False, names=accepted.names), None
        records = self._commit(producer, [value], key)
        offset = records[-1].offset
        outcome = Outcome(key, position.head.sequence, changed=True, offset=offset, names=accepted.names)
        dropped = tuple(c.name for c in accepted.changes if c.op == "put" and c.kind == DROPPED)
        return outcome, _Written(records, position, dropped)

    def _abort(self, producer: TransactionalProducer) -> None:
        """End the transaction for readers. If that fails the next `init` of anybody ends it."""
        try:
            producer.abort()
        except (ProducerFatal, TransactionAborted, Unavailable):
            return

    def _commit(
        self, producer: TransactionalProducer, values: list[bytes], key: str, *, kind: str = "statement"
    ) -> list[Record]:
        """Produce and commit; gives the records as they are in the log."""
        offsets: list[int] = []
        for value in values:
            self.log.produce(producer, value, key, offsets.append)  # 7
            if kind == "checkpoint":
                reach("checkpoint.part-sent")
        producer.flush()
        reach("statement.produced" if kind == "statement" else f"{kind}.sent")
        try:
            producer.commit()  # 8
        except (Unavailable, ProducerFatal) as error:
            raise _OutcomeUnknown(str(error)) from error
        reach(f"{kind}.committed")
        return [Record(key.encode(), value, offset, 0) for value, offset in zip(values, offsets, strict=True)]

    # Compaction, backup.

    def backup(self, path: Path) -> Backup:
        """Save the log to a file, whatever state it is in. Raises `MetastoreDegraded` if there is none."""
        return backup.save(self.log, self.service, path)

    def turned_by(self, path: Path) -> Turned:
        """What `restore_backup` would do to pipelines, by what is known here. Raises as it does, and changes no log."""
        found = backup.load(path)
        backup.require_restorable(self.log, found, self.service)
        self.refresh()
        with self.projection.snapshot() as snapshot:
            return backup.turned(found, snapshot)

    def restore_backup(self, path: Path) -> None:
        """Replace the log by that of the file, and the projection with it."""
        found = backup.load(path)
        with self._turn():
            backup.restore_file(self.log, self._follower, found, self.service)

    def restore_from_here(self) -> None:
        """Replace the log by a checkpoint of this machine's projection."""
        with self._turn():
            backup.restore_projection(self.log, self._follower, self.projection)

    def rebuild(self, *, accept_loss: bool = False) -> Fault | None:
        """Replace the projection by what the log says. One that lacks applied commands is refused, or taken with `accept_loss`."""
        topic = self.log.topic()
        if topic is None:
            return Fault(Reason.MISSING)
        return self._follower.rebuild(topic, *self.log.settled(), accept_loss=accept_loss)

    def checkpoint(self, key: str | None = None) -> Outcome:
        """Write a checkpoint of everything and delete the commands before it. Raises as `execute` does."""
        key = require_key(key or uuid.uuid4().hex)
        outcome = self._shown(*self._retried(lambda: self._checkpoint(key), key))
        self.trim()
        return outcome

    def _checkpoint(self, key: str) -> _Done:
        self._make_log()
        with self._turn():
            producer = self.log.producer()
            try:
                producer.init()
                producer.begin()
                position = self._require_current()
                known = self.projection.command(key)
                if known is not None:
                    producer.abort()
                    return Outcome(key, known.sequence, changed=True, repeated=True), None
                values = checkpoint_values(self.projection.rows(), position.head, key)
                records = self._commit(producer, values, key, kind="checkpoint")
                offset, sequence = records[-1].offset, position.head.sequence + len(values) - 1
                return Outcome(key, sequence, changed=True, offset=offset), _Written(records, position)
            finally:
                producer.close()

    def trim(self) -> int:
        """Delete what the newest checkpoint has replaced; gives the log's first offset. Safe at any time and twice."""
        start, end = self.log.settled()
        at = newest_checkpoint(self.log, start, end)
        if at is not None and at > start:
            self.log.trim(before=at)
            reach("checkpoint.trimmed")
            # Whoever follows finds the log whole from there.
            self._follower.catch_up()
        return start if at is None else at


def newest_checkpoint(log: CommandLog, start: int, end: int) -> int | None:
    """Offset of the first part of the newest checkpoint."""
    found = None
    for record in log.read(start, end):
        # Looking at every command's JSON would be most of the time.
        if record.value and b'"checkpoint"' in record.value:
            command = _checkpoint_part(record.value)
            if command is not None and command.other.get("part") == 0:
                found = record.offset
    return found


def _checkpoint_part(value: bytes) -> Command | None:
    try:
        command = decode(value)
    except Unreadable:
        return None
    return command if command.kind == CHECKPOINT else None


def _encoded(statement: Statement, accepted: Accepted, head: Head, key: str) -> bytes:
    command = Command(
        id=uuid.uuid4().hex,
        key=key,
        sequence=head.sequence,
        previous=head.hash,
        kind=statement.kind,
        pipeline=statement.pipeline,
        names=accepted.names or statement.names,
        statement=statement.text,
        changes=accepted.changes,
        at_ms=int(time.time() * 1000),
    )
    value = encode(command)
    if len(value) > VALUE_BYTES_MAX:
        raise InvalidInput(
            "statement is too large",
            bytes=len(value),
            bytes_max=VALUE_BYTES_MAX,
            hint="split it into several pipelines",
        )
    return value


def _require_applicable(value: bytes, head: Head, snapshot: Snapshot) -> None:
    """A command that does not read back or cannot be applied would be set aside by everybody: it is not written."""
    replay = Replay(head, snapshot.has)
    replay.feed([Record(None, value, 0, 0)])
    if replay.set_aside or replay.fault is not None:
        reasons = [row.error for row in replay.set_aside.values()]
        raise InvariantBroken("command could not be applied", reason=", ".join(reasons) or replay.fault)


def _repeated(known: Applied, statement: Statement) -> Outcome:
    if (known.kind, known.pipeline, known.statement) != (statement.kind, statement.pipeline, statement.text):
        raise InvalidInput(
            "idempotency key was used for another statement", key=known.key, hint="give each statement a key of its own"
        )
    return Outcome(known.key, known.sequence, changed=True, repeated=True)


def _told_fate(error: Unavailable, key: str, unknown: bool) -> Unavailable:
    """The same error, saying what is known of the statement with this key. `unknown`: a commit was not answered."""
    if not key:
        return error
    fate = "it is not known whether the statement is in the log" if unknown else "nothing was written"
    hint = "send it again with the same idempotency key when that is put right"
    fields = error.fields | {"key": key}
    return Unavailable(f"{fate}: {error.message}", **fields, hint="; ".join(filter(None, (error.hint, hint))))


def _gave_up(state: RetryCallState, key: str, unknown: bool) -> None:
    error = state.outcome.exception() if state.outcome is not None else None
    raise Unavailable(
        "statement's fate is not known" if unknown else "statement could not be written: other writers were faster",
        key=key,
        attempts=state.attempt_number,
        error=str(error),
        hint="send it again with the same idempotency key",
    ) from error
