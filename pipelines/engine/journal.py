"""What one query's driver writes into the batches topic, and by whose right: steps 1, 2 and 6 of the protocol.

Every entry is one transaction of the driver's id. Entries are the same when they are written twice, so one whose
outcome is unknown is written again, after it has been made sure that no newer driver exists.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog

from pipelines import names
from pipelines.deploy import DeployedQuery
from pipelines.plan import plan_hash, query_to_json
from statestore.batches import (
    COPIED,
    DONE,
    DRIVER,
    PLAN_PREFIX,
    PLANNED,
    BatchesLog,
    DriverLog,
    Planned,
    encode,
    encode_fields,
)
from statestore.config import KafkaConfig
from statestore.errors import InvalidConfig, Unavailable
from statestore.failpoints import reach
from statestore.kafka.producer import ProducerFatal, TransactionAborted, TransactionalProducer
from statestore.kafka.reader import Reader
from statestore.ownership import require_newest, require_newest_at_once

log = structlog.get_logger()


class Journal:
    """The driver's partition of the batches topic. `own` comes first; `attempts` bounds how often an entry is tried."""

    def __init__(self, deployed: DeployedQuery, kafka: KafkaConfig, *, attempts: int) -> None:
        self.epoch = -1
        self.hash = plan_hash(deployed.query)
        self._query = deployed.query
        self._origin = deployed.origin
        self._topic = deployed.batches_topic
        self._group = names.group(deployed.pipeline, self._query.name)
        self._driver_id = names.driver_id(deployed.pipeline, self._query.name)
        self._kafka = kafka
        self._attempts = attempts
        self._reader = BatchesLog(Reader(kafka), self._topic, tasks=self._query.tasks)
        self._producer: TransactionalProducer | None = None
        self._log = log.bind(pipeline=deployed.pipeline, query=self._query.name)

    def own(self) -> DriverLog:
        """1 Own: become the query's newest driver; gives what the drivers before have left.

        Raises `InvalidConfig` for a clone that was not made to its end.
        """
        self._producer = TransactionalProducer(self._kafka, self._driver_id)
        self._producer.init()
        started: list[int] = []
        self._producer.begin()
        self._put(DRIVER, encode_fields(started_at=time.time(), plan=self.hash), on_offset=started.append)
        self._put(PLAN_PREFIX + self.hash.encode(), query_to_json(self._query).encode())
        self._producer.flush()
        self._producer.commit()
        self.epoch = started[0]
        self._log = self._log.bind(epoch=self.epoch)
        reach("driver.owned")
        found = self._past()
        self._require_copied(found)
        return found

    def _past(self) -> DriverLog:
        """What the log has, which must be our own start at least: to take a log for empty would be to start anew."""
        found = self._reader.driver_log()
        if found.epoch > self.epoch:
            self.require_newest()
        if found.epoch != self.epoch:
            raise Unavailable("batches topic does not show what was written", topic=self._topic, epoch=self.epoch)
        return found

    def _require_copied(self, found: DriverLog) -> None:
        """The definition of a clone is there before its stores and its place in the input."""
        origin = found.origin.get("pipeline", self._origin)
        if origin and found.origin.get("state") != COPIED:
            raise InvalidConfig(
                "clone is not complete: its stores are not there yet",
                query=self._query.name,
                origin=origin,
                hint="run `rollforward clone` again, or drop it",
            )

    def plan(self, planned: Planned) -> None:
        """2 Plan."""
        reach("driver.before-plan")
        self._in_transaction(lambda _: self._put(PLANNED, encode(planned)))
        reach("driver.planned")

    def finish(self, planned: Planned) -> None:
        """6 Finish, together with the source offsets of the consumer group."""

        def finish(producer: TransactionalProducer) -> None:
            self._put(DONE, encode_fields(batch=planned.batch))
            producer.send_offsets(self._group, {(r.topic, r.partition): r.end for r in planned.ranges})
            reach("driver.before-done-commit")

        self._in_transaction(finish)
        reach("driver.done")

    def require_newest(self) -> None:
        """Raise `Fenced` if a newer driver has started."""
        require_newest(self._reader, self.epoch, self._query.name)

    def _put(self, key: bytes, value: bytes, on_offset: Callable[[int], None] | None = None) -> None:
        assert self._producer is not None
        partition = self._reader.driver_partition
        self._producer.produce(self._topic, key=key, value=value, partition=partition, on_offset=on_offset)

    def _in_transaction(self, work: Callable[[TransactionalProducer], None]) -> None:
        """Run `work` in a transaction, again where it was aborted or its outcome is unknown. Raises `Fenced`."""
        for attempt in range(1, self._attempts + 1):
            assert self._producer is not None
            try:
                self._producer.begin()
                work(self._producer)
                self._producer.flush()
                self._producer.commit()
                return
            except TransactionAborted as error:
                self._log.warning("driver transaction aborted", attempt=attempt, error=str(error))
            except (ProducerFatal, Unavailable) as error:
                self._log.warning("driver producer lost", attempt=attempt, error=str(error))
                self._producer.close()
                require_newest_at_once(self._reader, self.epoch, self._query.name)
                self._producer = TransactionalProducer(self._kafka, self._driver_id)
                self._producer.init()
                self.require_newest()
        raise Unavailable("driver could not commit to the batches topic", query=self._query.name)

    def close(self) -> None:
        """Forget the producer."""
        if self._producer is not None:
            self._producer.close()
