"""Producers of transactions, and what ends one: aborted, fenced, of no more use."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import confluent_kafka as ck

from statestore.config import KafkaConfig
from statestore.errors import Fenced, RollforwardError
from statestore.kafka.connection import client_settings, connected, unavailable
from statestore.kafka.groups import GroupOffsets, TopicPartition
from statestore.patience import within

if TYPE_CHECKING:
    import pyarrow as pa

Headers = list[tuple[str, bytes]]
# It takes some ms; a new producer is ready in less than a second.
_SEND_OFFSETS_S = 10.0
# For `close`: it takes some ms, and who interrupts a transaction does not want to wait for a Kafka that is away.
ABORT_S = 5.0


_FENCED = {ck.KafkaError._FENCED, ck.KafkaError.INVALID_PRODUCER_EPOCH}
# The group has given the partitions to somebody else, or is about to.
_NOT_A_MEMBER = {
    ck.KafkaError.ILLEGAL_GENERATION,
    ck.KafkaError.UNKNOWN_MEMBER_ID,
    ck.KafkaError.FENCED_INSTANCE_ID,
    ck.KafkaError.REBALANCE_IN_PROGRESS,
}

# The client's own limit is a megabyte, less than brokers take: how large a record may be is the topic's to say.
_MESSAGE_BYTES = 1_000_000_000
# What a transaction does by itself: a record that is refused is an error of all, and not told to nobody; none is given up.
_NOTHING_LEFT_OUT = {"enable.idempotence": True, "enable.gapless.guarantee": True, "message.timeout.ms": 0}
_HINTS = {
    ck.KafkaError.INVALID_TIMESTAMP: "a record's time is far from the broker's: set message.timestamp.after.max.ms (or before.max.ms) of its topic to 9223372036854775807, or correct the column that times come from",
    ck.KafkaError.MSG_SIZE_TOO_LARGE: "set a larger max.message.bytes of the topic, or a smaller batch.size under [kafka], and start again",
}


def message_bytes(config: KafkaConfig) -> int:
    """How large a record may be for the client, whatever its topic takes; it has a limit where its settings say one."""
    return int(config.client.get("message.max.bytes", _MESSAGE_BYTES))


def sent_time_ms(time_ms: int) -> int:
    """A record's time as it is sent: 1 ms in place of 0, which the client takes for the time of now."""
    return time_ms or 1


class TransactionAborted(RollforwardError):
    """The transaction was aborted and the producer can begin another: do the work again."""


class ProducerFatal(RollforwardError):
    """The producer is of no more use (fenced, timed out, id expired). The newest `driver started` tells what to do."""


class ProducerFenced(ProducerFatal):
    """A newer producer has the transactional id, or the broker has timed the transaction out: it cannot be told."""


class TransactionalProducer:
    """One `transactional.id`. `init` fences every older producer of the same id and aborts its open transaction.

    With `transactions` off it only queues and delivers, without fencing and without atomicity. A record that Kafka refuses
    ends it: `flush` raises `ProducerFatal`.
    """

    def __init__(self, config: KafkaConfig, transactional_id: str, *, transactions: bool = True) -> None:
        self.transactional_id = transactional_id
        self._transactions = transactions
        self._config = config
        # The client calls back into what does not lead to it: in a cycle it would outlive its last use, with its threads.
        self._errors: deque[ck.KafkaError] = deque(maxlen=1)
        self._fatal: ck.KafkaError | None = None
        # Topic and partition, or -1, of records that were queued since the last flush.
        self._sent_to: set[tuple[str, int]] = set()
        self._begun = False
        self._members: dict[str, object] = {}
        self._client: ck.Producer | None = ck.Producer(
            {
                "message.max.bytes": _MESSAGE_BYTES,
                # Above what a topic takes (`max.message.bytes`) a whole batch of small records would be refused.
                "batch.size": 512 * 1024,
                **client_settings(config),
                **(
                    {
                        "transactional.id": transactional_id,
                        "transaction.timeout.ms": config.transaction_timeout_ms,
                    }
                    if transactions
                    else _NOTHING_LEFT_OUT
                ),
                "acks": "all",
                "partitioner": "murmur2_random",
                "allow.auto.create.topics": False,
                # send_offsets right after a commit waits one back-off: the default of 100 ms would be most of a commit.
                "retry.backoff.ms": 10,
                "linger.ms": 5,
                "compression.type": "lz4",
                "queue.buffering.max.messages": 2_000_000,
                "queue.buffering.max.kbytes": 512 * 1024,
                "error_cb": self._errors.append,
            }
        )

    @property
    def _producer(self) -> ck.Producer:
        """The client. Raises `ProducerFatal` behind `close`, as of any producer that is of no more use."""
        if self._client is None:
            raise ProducerFatal("producer is closed", transactional_id=self.transactional_id)
        return self._client

    def _bounded(self, what: str, call: Callable[[float], object], limit_s: float | None = None) -> None:
        """Run `call(timeout_s)` until it succeeds, retrying what the client calls retriable within the time limit."""
        deadline = time.monotonic() + (self._config.request_timeout_s if limit_s is None else limit_s)
        while True:
            try:
                call(max(0.1, deadline - time.monotonic()))
                return
            except (ck.KafkaException, SystemError) as raised:
                error = _error_of(raised)
                if error.fatal():
                    # The client tells it once.
                    self._fatal = error
                    kind = ProducerFenced if error.code() in _FENCED else ProducerFatal
                    raise kind(
                        f"producer is unusable: {what}", error=error.str(), transactional_id=self.transactional_id
                    ) from raised
                if error.txn_requires_abort():
                    self.abort()
                    refused = Fenced if error.code() in _NOT_A_MEMBER else TransactionAborted
                    raise refused(
                        f"transaction was aborted: {what}",
                        error=error.str(),
                        transactional_id=self.transactional_id,
                        hint=_HINTS.get(error.code(), ""),
                    ) from raised
                if not error.retriable() or time.monotonic() >= deadline:
                    raise unavailable(
                        what, error.str(), self._config, transactional_id=self.transactional_id
                    ) from raised
                time.sleep(0.05)

    def init(self) -> None:
        """Take the id over: returns when no older transaction of it is open any more."""
        if self._transactions:
            connected(self._producer)
            self._bounded("init_transactions", self._producer.init_transactions)

    def begin(self) -> None:
        """Begin a transaction."""
        if self._transactions:
            self._bounded("begin_transaction", lambda _: self._producer.begin_transaction())
            self._begun = True

    def produce(
        self,
        topic: str,
        *,
        key: bytes | None,
        value: bytes | None,
        partition: int = -1,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
        on_offset: Callable[[int], None] | None = None,
    ) -> None:
        """Queue one record. `on_offset` is called from `flush` with the offset it got.

        Its time is that of now where none is given or it is not known, which is below 0; see `sent_time_ms`.
        """
        extra: dict[str, Any] = {}
        if partition >= 0:
            extra["partition"] = partition
        if timestamp_ms is not None and timestamp_ms >= 0:
            extra["timestamp"] = sent_time_ms(timestamp_ms)
        if headers:
            extra["headers"] = headers
        if on_offset is not None:

            def delivered(error: ck.KafkaError | None, message: ck.Message) -> None:
                if error is None:
                    on_offset(message.offset())  # type: ignore[arg-type]

            extra["on_delivery"] = delivered
        self._sent_to.add((topic, partition))
        while True:
            try:
                self._producer.produce(topic, value=value, key=key, **extra)
                return
            except BufferError:
                self._await_room()
            except ck.KafkaException as raised:
                if self._transactions and raised.args[0].code() == ck.KafkaError._STATE:
                    # It has failed of a record before this one. Its commit cannot succeed, and tells why.
                    self.commit()
                self._bounded("produce", _raising(raised))

    def _await_room(self) -> None:
        try:
            self._producer.poll(0.5)
        except (ck.KafkaException, SystemError) as raised:
            self._bounded("produce", _raising(raised))

    def produce_many(self, topic: str, records: pa.RecordBatch, *, partition: int = -1, skip: int = 0) -> None:
        """Queue records of `columns.RECORDS` in their order, without the first `skip` bytes of each value."""
        # Imports Numba, which those do not need who produce single records.
        from statestore.kafka import librdkafka

        self._sent_to.add((topic, partition))
        for key, value, time_ms in librdkafka.queue_but(self._producer, topic, records, partition, skip=skip):
            # The binding's call tells why it was refused, or waits for room.
            self.produce(topic, key=key, value=value, partition=partition, timestamp_ms=time_ms)

    def flush(self) -> None:
        """Wait until every queued record has been delivered or has failed.

        A failure surfaces at `commit`; without transactions it is raised here.
        """
        deadline = time.monotonic() + self._config.request_timeout_s
        while remaining := self._flush_some():
            if time.monotonic() >= deadline:
                last = str(self._errors[-1]) if self._errors else "time-out"
                raise unavailable("delivery of records", last, self._config, undelivered=remaining)
        if not self._transactions:
            self._require_all_sent()
        self._sent_to.clear()

    def _require_all_sent(self) -> None:
        """Without transactions a record that Kafka refuses is a fatal error, but one that has no topic or partition is not."""
        if self._fatal is not None:
            raise ProducerFatal("a record was not delivered", error=self._fatal.str())
        for topic in {topic for topic, _ in self._sent_to}:
            try:
                found = self._producer.list_topics(topic, timeout=self._config.request_timeout_s).topics[topic]
            except ck.KafkaException as raised:
                raise unavailable("topics", raised.args[0].str(), self._config) from raised
            wanted = {partition for each, partition in self._sent_to if each == topic} - {-1}
            if found.error is not None or wanted - found.partitions.keys():
                error = "partition does not exist" if found.error is None else found.error.str()
                raise ProducerFatal("a record was not delivered", topic=topic, error=error)

    def _flush_some(self) -> int:
        """Wait up to a second; gives how many records are still on their way."""
        try:
            return self._producer.flush(1.0)
        except (ck.KafkaException, SystemError) as raised:
            self._bounded("flush", _raising(raised))
            return len(self._producer)

    def send_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int], *, note: str = "", member: object = None
    ) -> None:
        """Commit next-to-read offsets for a consumer group inside the transaction; without transactions, at once.

        `note` is kept beside each offset, up to 4096 bytes. `member` is what `consumer_group_metadata()` of a member
        of the group gives: the commit is then refused with `Fenced` once the group has rebalanced without it.
        """
        positions = [
            ck.TopicPartition(topic, partition, at, metadata=note) for (topic, partition), at in offsets.items()
        ]
        if not self._transactions:
            self.flush()
            GroupOffsets(self._config, group).commit(positions)
            return
        metadata = member or self._member(group)
        producer = self._producer
        self._bounded(
            "send_offsets_to_transaction",
            lambda timeout: self._in_time(
                "send_offsets_to_transaction",
                lambda: producer.send_offsets_to_transaction(positions, metadata, timeout),
                min(timeout, _SEND_OFFSETS_S),
            ),
        )

    def _in_time(self, what: str, call: Callable[[], object], timeout_s: float) -> None:
        """Run a call that may hang in the client. Raises `ProducerFatal` then: this producer is of no more use.

        The client does not look at the time limit of this one call, and after the group's coordinator has been
        restarted it may wait for ever for a connection to the old one (librdkafka issues 5456 and 5511). The thread
        that hangs keeps the client alive until the call returns, if it does.
        """
        try:
            within(timeout_s, what, call)
        except TimeoutError as error:
            raise ProducerFatal(
                f"producer hangs: {what}", seconds=round(timeout_s, 1), transactional_id=self.transactional_id
            ) from error

    def _member(self, group: str) -> object:
        """What names the group in a commit from outside of it."""
        if group not in self._members:
            consumer = ck.Consumer({**client_settings(self._config), "group.id": group})
            try:
                self._members[group] = consumer.consumer_group_metadata()
            finally:
                consumer.close()
        return self._members[group]

    def commit(self) -> None:
        """Commit. `Unavailable` leaves the outcome unknown: only a new producer of the same id can tell."""
        if self._transactions:
            self._bounded("commit_transaction", self._producer.commit_transaction)
            self._begun = False
        else:
            self.flush()

    def abort(self) -> None:
        """Abort the open transaction, dropping what was queued."""
        self._abort(None)

    def _abort(self, limit_s: float | None) -> None:
        self._producer.purge()
        if self._transactions:
            self._bounded("abort_transaction", self._producer.abort_transaction, limit_s)
            self._begun = False

    def close(self, *, abort_within_s: float = 0.0) -> None:
        """Forget the producer.

        An open transaction is aborted if Kafka does that in time. Else readers wait for it until the next owner's `init`,
        or until it times out. Does nothing the second time; every other call raises `ProducerFatal` from now on.
        """
        if self._client is None:
            return
        if self._begun and abort_within_s > 0:
            with suppress(RollforwardError):
                self._abort(abort_within_s)
        self._producer.purge()
        # What was queued is in reports now, which are freed as they are given out.
        while self._gives_out():
            pass
        # With its last reference go its threads, connections and queue.
        self._client = None

    def _gives_out(self) -> bool:
        """Take reports and errors of the client; False if there were none."""
        try:
            return self._producer.poll(0) > 0
        except (ck.KafkaException, SystemError):
            # A fatal error is raised, and what comes behind it waits for the next call.
            return True


def _error_of(raised: ck.KafkaException | SystemError) -> ck.KafkaError:
    """What the client says. It calls reports on behind a fatal error that it is about to raise, of which Python complains."""
    said = raised if isinstance(raised, ck.KafkaException) else raised.__cause__
    if not isinstance(said, ck.KafkaException):
        raise raised
    error: ck.KafkaError = said.args[0]
    return error


def _raising(raised: ck.KafkaException | SystemError) -> Callable[[float], object]:
    def call(_: float) -> object:
        raise raised

    return call
