"""Making another version the committed one: all tasks of a query, in one Kafka transaction.

    0 take     the driver's transactional id, which ends what an earlier attempt that was killed has left open: until
               then readers of committed records wait for it
    1 own      "driver started", then every task's transactional id: older drivers and servers can commit nothing more
    2 open     every task recovers its store, so that what is committed now is known
    3 write    one transaction of the driver's id: per task the difference, key by key, in its changelog, and its
               position at the new batch; the batch as planned and done; the input's offsets of the consumer group
    4 commit   from here on the new version is the committed one

Killed before 4, nothing has changed but the epoch; after it, everything has. Stores are brought up by the next driver,
which finds them one batch behind and replays the difference.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from statestore.batches import (
    DONE,
    DRIVER,
    PLANNED,
    POSITION,
    BatchesLog,
    DriverLog,
    Order,
    Planned,
    Position,
    encode,
    encode_fields,
)
from statestore.clock import now_ms
from statestore.columns import records_of
from statestore.config import KafkaConfig, RocksConfig, TaskSpec
from statestore.digest import Digesting
from statestore.errors import Unavailable
from statestore.failpoints import reach
from statestore.kafka.admin import Admin
from statestore.kafka.producer import (
    ABORT_S,
    ProducerFatal,
    TransactionAborted,
    TransactionalProducer,
    sent_time_ms,
)
from statestore.kafka.reader import Reader
from statestore.layouts import timestamped
from statestore.layouts.local import is_local
from statestore.ownership import require_newest, require_newest_at_once
from statestore.placement import AtIsolation, Placement
from statestore.snapshots.service import Snapshots
from statestore.store import Entry, Isolation
from statestore.task import Task
from statestore.version import ChangelogPosition

# The longest that a broker allows unless it is told otherwise.
_TRANSACTION_MS = 15 * 60 * 1000
_TIME = struct.Struct(">q")
Change = tuple[bytes, bytes | None]


@dataclass(frozen=True)
class Rewritten:
    """Keys that one task's changelog was given: `puts` new or changed ones, `deletes` those that went.

    The task's own entries (`layouts.local`) are written as well and not counted.
    """

    task: str
    puts: int
    deletes: int


class Rewrite:
    """One query, owned. `plan` is the hash of the plan that the new version is of."""

    def __init__(
        self,
        kafka: KafkaConfig,
        driver_id: str,
        specs: Sequence[TaskSpec],
        *,
        plan: str,
        snapshots: Snapshots | None = None,
    ) -> None:
        self.specs = specs
        self._kafka = kafka
        self._driver_id = driver_id
        self._plan = plan
        self._snapshots = snapshots
        self._reader = Reader(kafka)
        self._log = BatchesLog(self._reader, specs[0].batches_topic, tasks=specs[0].tasks)
        self._config = replace(kafka, transaction_timeout_ms=max(kafka.transaction_timeout_ms, _TRANSACTION_MS))
        self._producer = TransactionalProducer(self._config, driver_id)
        self._tasks: list[Task] = []
        self._epoch = -1
        self._tombstones = False
        self._partitions: int | None = None

    def take(self) -> None:
        """0. Do it before anything is looked up in the query's log."""
        self._producer.init()

    def own(self, records: Mapping[bytes, bytes]) -> DriverLog:
        """1 and 2. `records` go into the driver's partition beside "driver started"; gives what it says then.

        Raises `Fenced` if a newer driver has started.
        """
        started: list[int] = []
        self._producer.begin()
        self._to_driver({DRIVER: encode_fields(started_at=time.time(), plan=self._plan)}, started)
        self._to_driver(records)
        self._producer.flush()
        self._producer.commit()
        self._epoch = started[0]
        reach("rewrite.owned")
        for spec in self.specs:
            task = Task(spec, self._epoch, self._kafka, RocksConfig(), transactions=True, snapshots=self._snapshots)
            self._tasks.append(task)
            task.open()
        reach("rewrite.opened")
        return self._log.driver_log()

    def commit(
        self,
        versions: Mapping[int, Iterator[Entry]],
        planned: Planned,
        records: Mapping[bytes, bytes],
        group: str,
        *,
        orders: Mapping[int, Order] | None = None,
    ) -> list[Rewritten]:
        """3 and 4. `versions` has each task's new content in the order of its keys; `planned` is the batch that it is.

        `records` go into the driver's partition. `orders` say how far each task's records have come in that version;
        None for a query that does not take them one after the other. Raises `Unavailable` when nothing was changed,
        `Fenced`.
        """
        orders = {} if orders is None else orders
        # As a task's own commit: what is written where Kafka has lost something hides that.
        self._reader.require_reach({log: end for task in self._tasks for log, end in task.committed_ends().items()})
        try:
            self._producer.begin()
            done = []
            for task in self._tasks:
                number = task.spec.number
                done.append(self._write(task, versions[number], planned, orders.get(number)))
            self._to_driver({PLANNED: encode(planned), DONE: encode_fields(batch=planned.batch), **records})
            ends = {(r.topic, r.partition): r.end for r in planned.ranges}
            self._producer.send_offsets(group, ends)
            self._producer.flush()
            reach("rewrite.before-commit")
            self._producer.commit()
        except TransactionAborted as error:
            raise Unavailable("transaction was aborted, nothing was changed", error=error, hint="try again") from error
        except (ProducerFatal, Unavailable) as error:
            self._require_done(planned.batch, error)
        reach("rewrite.committed")
        return done

    def empty(self, planned: Planned, group: str, *, results: bool, in_record_order: bool) -> list[Rewritten]:
        """3 and 4 for versions without any key. With `results` each key gets a tombstone in the result topic as well.

        Of a query that takes its records one after the other no time has come yet.
        Raises `Unavailable` when nothing was changed, `Fenced`.
        """
        self._tombstones = results
        numbers = [spec.number for spec in self.specs]
        orders = {number: Order() for number in numbers} if in_record_order else None
        return self.commit({number: iter(()) for number in numbers}, planned, {}, group, orders=orders)

    def _to_driver(self, records: Mapping[bytes, bytes], offsets: list[int] | None = None) -> None:
        for key, value in records.items():
            self._producer.produce(
                self.specs[0].batches_topic,
                key=key,
                value=value,
                partition=self._log.driver_partition,
                on_offset=None if offsets is None else offsets.append,
            )

    def _write(self, task: Task, version: Iterator[Entry], planned: Planned, order: Order | None) -> Rewritten:
        """One task's difference and position."""
        spec, store = task.spec, task.spec.store
        following = [task.changelog_offset()]
        puts = deletes = 0

        def delivered(offset: int) -> None:
            following[0] = max(following[0], offset + 1)

        # Of a windowed store also those that have expired and are still there.
        committed = AtIsolation(task.store, Isolation.READ_COMMITTED)
        digest = Digesting(as_sent(version))
        for key, value in differences(Placement(store).scan(committed), digest):
            state = None if value is None else value[timestamped.SIZE :]
            timestamp_ms = now_ms() if value is None else _TIME.unpack_from(value)[0]
            self._producer.produce(
                store.changelog_topic,
                key=key,
                value=state,
                timestamp_ms=timestamp_ms,
                partition=spec.number,
                on_offset=delivered,
            )
            reach("rewrite.in-produce")
            # A task's own entries are in the changelog alone: nobody was ever shown a result of their keys.
            if is_local(key):
                continue
            if value is None and self._tombstones:
                self._produce_tombstone(task, key, timestamp_ms)
            puts, deletes = puts + (value is not None), deletes + (value is None)
        self._producer.flush()
        at = {store.name: ChangelogPosition(store.changelog_topic_id, following[0])}
        ends = {str(r.partition): r.end for r in planned.ranges}
        position = Position(planned.batch, self._epoch, self._plan, at, ends, order, digest.digest)
        self._producer.produce(spec.batches_topic, key=POSITION, value=encode(position), partition=spec.number)
        reach("rewrite.position-sent")
        return Rewritten(spec.name, puts, deletes)

    def _produce_tombstone(self, task: Task, key: bytes, timestamp_ms: int) -> None:
        topic = task.spec.output_topic
        for partition, records in (
            Placement(task.spec.store)
            .results(records_of([(key, None, timestamp_ms)]), self._result_partitions(topic))
            .items()
        ):
            self._producer.produce_many(topic, records, partition=partition)

    def _result_partitions(self, topic: str) -> int:
        if self._partitions is None:
            found = Admin(self._kafka).describe([topic])
            if not found:
                raise Unavailable("result topic does not exist", topic=topic)
            self._partitions = found[topic].partitions
        return self._partitions

    def _require_done(self, batch: int, cause: Exception) -> None:
        """The outcome is unknown: a new producer of the id ends the transaction, then the log tells."""
        self._producer.close()
        require_newest_at_once(self._log, self._epoch, self._driver_id)
        self._producer = TransactionalProducer(self._config, self._driver_id)
        self._producer.init()
        require_newest(self._log, self._epoch, self._driver_id)
        planned = self._log.driver_log().planned
        if planned is None or planned.batch != batch:
            raise Unavailable("nothing was changed", batch=batch, error=cause, hint="try again") from cause

    def close(self) -> None:
        """End what is open, so that no reader waits for it, and release the tasks' folders and ids."""
        self._producer.close(abort_within_s=ABORT_S)
        for task in self._tasks:
            task.close()


def as_sent(version: Iterator[Entry]) -> Iterator[Entry]:
    """The entries as their changelog gives them back: states of time 0, as versions before wrote them, have another."""
    zero, sent = _TIME.pack(0), _TIME.pack(sent_time_ms(0))
    for key, value in version:
        yield key, sent + value[len(zero) :] if value.startswith(zero) else value


def differences(current: Iterator[Entry], wanted: Iterator[Entry]) -> Iterator[Change]:
    """What turns one content into another, both in the order of their keys; None deletes."""
    ours, theirs = next(current, None), next(wanted, None)
    while ours is not None or theirs is not None:
        if theirs is None or (ours is not None and ours[0] < theirs[0]):
            assert ours is not None
            yield ours[0], None
            ours = next(current, None)
        elif ours is None or theirs[0] < ours[0]:
            yield theirs
            theirs = next(wanted, None)
        else:
            if ours[1] != theirs[1]:
                yield theirs
            ours, theirs = next(current, None), next(wanted, None)
