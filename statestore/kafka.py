"""Kafka, as this project uses it. The only file that imports the client, beside `librdkafka.py` and its loops, which read and produce in columns.

Reading a log to its end: the end offset is captured as `read_uncommitted` (an open transaction must not hide committed
records behind it), records are read as `read_committed`, and reading stops on the partition-EOF event at or past the
captured end, never by comparing with a message's offset: markers, aborted and compacted records take offsets too.

Errors of the client become ours here and nowhere else: retriable ones are retried inside the client and by `_bounded`,
then `Unavailable`; abortable ones are `TransactionAborted`; fatal ones are `ProducerFatal`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from operator import methodcaller
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, OffsetSpec
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_exponential_jitter

from statestore.config import KafkaConfig
from statestore.errors import Fenced, InvalidConfig, RollforwardError, Unavailable

if TYPE_CHECKING:
    import pyarrow as pa

Headers = list[tuple[str, bytes]]
Answer = TypeVar("Answer")
Connecting = TypeVar("Connecting", AdminClient, ck.Producer)
TopicPartition = tuple[str, int]
_REPLAY_CHUNK = 10_000
# A reader learns that a log has ended when the broker has waited so long for more: behind the marker of a transaction
# there is no record that would tell.
END_WAIT_MS = 2
# It takes some ms; a new producer is ready in less than a second.
_SEND_OFFSETS_S = 10.0
PARTITION_END = ck.KafkaError._PARTITION_EOF
LOST_ITS_PLACE = ck.KafkaError._AUTO_OFFSET_RESET
DEFINITE = {
    ck.KafkaError.UNKNOWN_TOPIC_OR_PART,
    ck.KafkaError.TOPIC_AUTHORIZATION_FAILED,
    ck.KafkaError._UNKNOWN_TOPIC,
    ck.KafkaError._UNKNOWN_PARTITION,
    ck.KafkaError._AUTHENTICATION,
}
_PASSING = {
    ck.KafkaError._TRANSPORT,
    ck.KafkaError._ALL_BROKERS_DOWN,
    ck.KafkaError._TIMED_OUT,
    # A broker that has just started knows a topic before it leads it.
    ck.KafkaError._NOENT,
    ck.KafkaError.FENCED_LEADER_EPOCH,
    ck.KafkaError.UNKNOWN_LEADER_EPOCH,
    ck.KafkaError.NOT_LEADER_FOR_PARTITION,
    ck.KafkaError.LEADER_NOT_AVAILABLE,
    ck.KafkaError.REQUEST_TIMED_OUT,
    ck.KafkaError.NETWORK_EXCEPTION,
    ck.KafkaError.NOT_COORDINATOR,
    ck.KafkaError.COORDINATOR_NOT_AVAILABLE,
    ck.KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    ck.KafkaError.UNSTABLE_OFFSET_COMMIT,
}
_FENCED = {ck.KafkaError._FENCED, ck.KafkaError.INVALID_PRODUCER_EPOCH}
# The group has given the partitions to somebody else, or is about to.
_NOT_A_MEMBER = {
    ck.KafkaError.ILLEGAL_GENERATION,
    ck.KafkaError.UNKNOWN_MEMBER_ID,
    ck.KafkaError.FENCED_INSTANCE_ID,
    ck.KafkaError.REBALANCE_IN_PROGRESS,
}


class TransactionAborted(RollforwardError):
    """The transaction was aborted and the producer can begin another: do the work again."""


class ProducerFatal(RollforwardError):
    """The producer is of no more use (fenced, timed out, id expired). The newest `driver started` tells what to do."""


class ProducerFenced(ProducerFatal):
    """A newer producer has the transactional id, or the broker has timed the transaction out: it cannot be told."""


class Record(NamedTuple):
    """One committed record. `timestamp_ms` is its CreateTime."""

    key: bytes | None
    value: bytes | None
    offset: int
    timestamp_ms: int
    headers: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True)
class Topic:
    """A topic as the cluster describes it. `topic_id` changes when a topic is deleted and made again."""

    name: str
    topic_id: str
    partitions: int


def client_settings(config: KafkaConfig, **settings: object) -> dict[str, Any]:
    """The settings of every client, and those given."""
    return {
        "bootstrap.servers": config.bootstrap_servers,
        "socket.keepalive.enable": True,
        # Half of it is also how long the client waits before it connects to a second broker: with the default 50 ms.
        "reconnect.backoff.ms": 20,
        "log_level": 2,
        **config.client,
        **{name.replace("_", "."): value for name, value in settings.items()},
    }


def _connected(client: Connecting) -> Connecting:
    """The client, once it is connected to a broker.

    The first answer of all ends the bootstrap connection. What else is being asked over it is lost, and asked again
    after three seconds (offsets) or half a second (the coordinator of a transaction). So there are two questions: the
    second waits for a connection that stays. Where no broker answers, whatever comes next says so.
    """
    for _ in range(2):
        with suppress(ck.KafkaException):
            client.list_topics("__transaction_state", timeout=2)
    return client


def unavailable(what: str, error: object, config: KafkaConfig, **fields: object) -> Unavailable:
    """The error of a call that Kafka did not answer."""
    return Unavailable(
        f"kafka does not answer: {what}",
        error=str(error),
        bootstrap_servers=config.bootstrap_servers,
        **fields,
        hint="check that the broker runs and that bootstrap_servers is right",
    )


def _may_pass(error: BaseException) -> bool:
    """Whether asking again can help: the broker is away, or not the leader just now."""
    if not isinstance(error, ck.KafkaException):
        return False
    cause: ck.KafkaError = error.args[0]
    return cause.retriable() or cause.code() in _PASSING


def _ask(
    admin: AdminClient | ck.Consumer, config: KafkaConfig, what: str, question: Callable[[], Answer], **fields: object
) -> Answer:
    """The answer of an admin request, asked again within the time limit; then `Unavailable`."""
    again = Retrying(
        retry=retry_if_exception(_may_pass),
        stop=stop_after_delay(config.request_timeout_s),
        wait=wait_exponential_jitter(multiplier=0.05, max=1.0),
        before_sleep=lambda _: _refresh(admin),
        reraise=True,
    )
    try:
        return again(question)
    except ck.KafkaException as raised:
        raise unavailable(what, raised.args[0].str(), config, **fields) from raised


def _refresh(admin: AdminClient | ck.Consumer) -> None:
    """Fetch the metadata anew: the client repeats a request with the leader epoch it knows, which may be the error."""
    with suppress(ck.KafkaException):
        admin.list_topics(timeout=2)


class TransactionalProducer:
    """One `transactional.id`. `init` fences every older producer of the same id and aborts its open transaction.

    With `transactions` off it only queues and delivers, without fencing and without atomicity: for comparison.
    """

    def __init__(self, config: KafkaConfig, transactional_id: str, *, transactions: bool = True) -> None:
        self.transactional_id = transactional_id
        self._transactions = transactions
        self._config = config
        self._last_error: str | None = None
        self._members: dict[str, object] = {}
        self._producer = ck.Producer(
            {
                **client_settings(config),
                **(
                    {
                        "transactional.id": transactional_id,
                        "transaction.timeout.ms": config.transaction_timeout_ms,
                    }
                    if transactions
                    else {"enable.idempotence": True}
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
                "batch.size": 512 * 1024,
                "error_cb": self._remember,
            }
        )

    def _remember(self, error: ck.KafkaError) -> None:
        self._last_error = str(error)

    def _bounded(self, what: str, call: Callable[[float], object]) -> None:
        """Run `call(timeout_s)` until it succeeds, retrying what the client calls retriable within the time limit."""
        deadline = time.monotonic() + self._config.request_timeout_s
        while True:
            try:
                call(max(0.1, deadline - time.monotonic()))
                return
            except ck.KafkaException as raised:
                error: ck.KafkaError = raised.args[0]
                if error.fatal():
                    kind = ProducerFenced if error.code() in _FENCED else ProducerFatal
                    raise kind(
                        f"producer is unusable: {what}", error=error.str(), transactional_id=self.transactional_id
                    ) from raised
                if error.txn_requires_abort():
                    self.abort()
                    refused = Fenced if error.code() in _NOT_A_MEMBER else TransactionAborted
                    raise refused(
                        f"transaction was aborted: {what}", error=error.str(), transactional_id=self.transactional_id
                    ) from raised
                if not error.retriable() or time.monotonic() >= deadline:
                    raise unavailable(
                        what, error.str(), self._config, transactional_id=self.transactional_id
                    ) from raised
                time.sleep(0.05)

    def init(self) -> None:
        """Take the id over: returns when no older transaction of it is open any more."""
        if self._transactions:
            _connected(self._producer)
            self._bounded("init_transactions", self._producer.init_transactions)

    def begin(self) -> None:
        """Begin a transaction."""
        if self._transactions:
            self._bounded("begin_transaction", lambda _: self._producer.begin_transaction())

    def produce(
        self,
        topic: str,
        *,
        key: bytes | None,
        value: bytes | None,
        partition: int = -1,
        timestamp_ms: int = 0,
        headers: Headers | None = None,
        on_offset: Callable[[int], None] | None = None,
    ) -> None:
        """Queue one record. `on_offset` is called from `flush` with the offset it got."""
        extra: dict[str, Any] = {}
        if partition >= 0:
            extra["partition"] = partition
        if timestamp_ms > 0:
            extra["timestamp"] = timestamp_ms
        if headers:
            extra["headers"] = headers
        if on_offset is not None:

            def delivered(error: ck.KafkaError | None, message: ck.Message) -> None:
                if error is None:
                    on_offset(message.offset())  # type: ignore[arg-type]

            extra["on_delivery"] = delivered
        while True:
            try:
                self._producer.produce(topic, value=value, key=key, **extra)
                return
            except BufferError:
                self._producer.poll(0.5)
            except ck.KafkaException as raised:
                self._bounded("produce", _raising(raised))

    def produce_many(self, topic: str, records: pa.RecordBatch, *, partition: int = -1, skip: int = 0) -> None:
        """Queue records of `columns.RECORDS` in their order, without the first `skip` bytes of each value."""
        # Imports Numba, which those do not need who produce single records.
        from statestore import librdkafka

        for key, value, time_ms in librdkafka.queue_but(self._producer, topic, records, partition, skip=skip):
            # The binding's call tells why it was refused, or waits for room.
            self.produce(topic, key=key, value=value, partition=partition, timestamp_ms=time_ms)

    def flush(self) -> None:
        """Wait until every queued record has been delivered or has failed; a failure surfaces at `commit`."""
        deadline = time.monotonic() + self._config.request_timeout_s
        while remaining := self._flush_some():
            if time.monotonic() >= deadline:
                raise unavailable(
                    "delivery of records", self._last_error or "time-out", self._config, undelivered=remaining
                )

    def _flush_some(self) -> int:
        """Wait up to a second; gives how many records are still on their way."""
        try:
            return self._producer.flush(1.0)
        except ck.KafkaException as raised:
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
        raised: list[BaseException] = []

        def run() -> None:
            try:
                call()
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=run, daemon=True, name=what)
        thread.start()
        thread.join(timeout_s)
        if thread.is_alive():
            raise ProducerFatal(
                f"producer hangs: {what}", seconds=round(timeout_s, 1), transactional_id=self.transactional_id
            )
        if raised:
            raise raised[0]

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
        else:
            self.flush()

    def abort(self) -> None:
        """Abort the open transaction, dropping what was queued."""
        self._producer.purge()
        if self._transactions:
            self._bounded("abort_transaction", self._producer.abort_transaction)

    def close(self) -> None:
        """Forget the producer without waiting for Kafka. An open transaction is left to the next owner's `init`."""
        self._producer.purge()


def _raising(raised: ck.KafkaException) -> Callable[[float], object]:
    def call(_: float) -> object:
        raise raised

    return call


_ERROR = methodcaller("error")


class _Ended(Enum):
    """Why no more records of a chunk count: the end that was asked for, or the client has lost its place."""

    AT_STOP = "at stop"
    ASTRAY = "astray"


@dataclass
class _Span:
    """What is left to read of a partition: from `next`, included, to `stop`, not included."""

    next: int
    stop: int


def _assign(consumer: ck.Consumer, topic: str, spans: Mapping[int, _Span]) -> None:
    consumer.assign([ck.TopicPartition(topic, partition, span.next) for partition, span in spans.items()])


def _by_partition(messages: list[ck.Message], spans: Mapping[int, _Span]) -> dict[int, list[ck.Message]]:
    """Those of spans that are still read, in their order. An error that names no partition counts for each."""
    if len(spans) == 1:
        return dict.fromkeys(spans, messages) if messages else {}
    found: dict[int, list[ck.Message]] = {}
    for message in messages:
        partition = message.partition()
        for one in spans if partition is None or partition < 0 else [partition]:
            if one in spans:
                found.setdefault(one, []).append(message)
    return found


class _Asking:
    """What asks a cluster; it connects with its first question, or shares the connection of one that stands `beside`."""

    def __init__(self, config: KafkaConfig, beside: _Asking | None = None) -> None:
        self._config = config
        self._beside = beside

    @cached_property
    def _admin(self) -> AdminClient:
        if self._beside is not None:
            return self._beside._admin
        return _connected(AdminClient(client_settings(self._config, allow_auto_create_topics=False)))

    @property
    def config(self) -> KafkaConfig:
        """How the cluster is reached."""
        return self._config

    def connect(self) -> None:
        """Be connected when the first question comes. Where no broker answers, that question says so."""
        _ = self._admin


class Reader(_Asking):
    """Reads logs from given offsets to their ends. Belongs to no group and commits nothing. For any number of threads."""

    def __init__(self, config: KafkaConfig, beside: _Asking | None = None) -> None:
        super().__init__(config, beside)
        self._keeping = threading.Lock()
        self._keepers = 0
        # Those that read nothing just now, by isolation level.
        self._idle: list[tuple[str, ck.Consumer]] = []

    @contextmanager
    def kept(self) -> Iterator[None]:
        """The consumer of one read is kept for the next until the end: a new one makes three connections."""
        with self._keeping:
            self._keepers += 1
        try:
            yield
        finally:
            with self._keeping:
                self._keepers -= 1
                ended = [] if self._keepers else self._idle
                self._idle = self._idle if self._keepers else []
            for _, consumer in ended:
                consumer.close()

    @contextmanager
    def _consumer(self, isolation: str) -> Iterator[ck.Consumer]:
        """One that has no partition. After an error, and where nobody keeps it, it is closed."""
        with self._keeping:
            found = next((kept for kept in self._idle if kept[0] == isolation), None)
            if found is not None:
                self._idle.remove(found)
        consumer = found[1] if found is not None else self._new_consumer(isolation)
        with ExitStack() as closing:
            closing.callback(consumer.close)
            yield consumer
            with self._keeping:
                if self._keepers:
                    consumer.unassign()
                    self._idle.append((isolation, consumer))
                    closing.pop_all()

    def _new_consumer(self, isolation: str) -> ck.Consumer:
        return ck.Consumer(
            {
                **client_settings(self._config),
                "group.id": "rollforward-reader",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "isolation.level": isolation,
                "auto.offset.reset": "error",
                "allow.auto.create.topics": False,
                "queued.max.messages.kbytes": 64 * 1024,
                "fetch.wait.max.ms": END_WAIT_MS,
                "fetch.message.max.bytes": 4 * 1024 * 1024,
            }
        )

    def begin_and_end(self, topic: str, partition: int) -> tuple[int, int]:
        """First offset present and the offset after the last, open transactions included."""
        return self.begins_and_ends(topic, [partition])[partition]

    def begins_and_ends(self, topic: str, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        """`begin_and_end` of each partition."""
        where = [ck.TopicPartition(topic, partition) for partition in partitions]
        wanted = [dict.fromkeys(where, spec()) for spec in (OffsetSpec.earliest, OffsetSpec.latest)]
        first, last = list_all_offsets(self._admin, self._config, wanted)
        return {partition: (first[topic, partition], last[topic, partition]) for partition in partitions}

    def stable_end(self, topic: str, partition: int) -> int:
        """The offset where the first open transaction begins; the log's end if none is open."""
        where = ck.TopicPartition(topic, partition)
        wanted = {where: OffsetSpec.latest()}
        return list_offsets(self._admin, self._config, wanted, committed=True)[(topic, partition)]

    def read(
        self,
        topic: str,
        partition: int,
        *,
        start: int,
        end: int | None = None,
        uncommitted: bool = False,
    ) -> Iterator[list[Record]]:
        """Chunks of the committed records from `start` up to `end` (exclusive), or to the log's end.

        With `uncommitted` those of aborted and of open transactions are among them.

        Raises `Unavailable` when Kafka stays silent for the time limit or the log ends before `end`, and
        `TaskCorrupted`'s cause, `OffsetsGone`, when `start` lies before the log.
        """
        isolation = "read_uncommitted" if uncommitted else "read_committed"
        for messages in self._messages(topic, partition, start, end, isolation, _REPLAY_CHUNK):
            yield [_record(message) for message in messages]

    def newest(
        self, topic: str, partitions: Sequence[int], *, uncommitted: bool = False
    ) -> dict[int, dict[bytes, Record]]:
        """The last record of each key in each partition, of the committed ones unless `uncommitted`."""
        found: dict[int, dict[bytes, Record]] = {partition: {} for partition in partitions}
        spans = {n: _Span(*span) for n, span in self.begins_and_ends(topic, partitions).items()}
        isolation = "read_uncommitted" if uncommitted else "read_committed"
        for messages in self._consumed(topic, spans, isolation, _REPLAY_CHUNK):
            newest = found[messages[0].partition()]  # type: ignore[index]
            newest.update((record.key or b"", record) for record in map(_record, messages))
        return found

    def _messages(
        self, topic: str, partition: int, start: int, end: int | None, isolation: str, most: int
    ) -> Iterator[list[ck.Message]]:
        """At most so many at a time, none of them an event or at the end or after it."""
        if end is not None and start >= end:
            return
        first, last = self.begin_and_end(topic, partition)
        if end is not None and last < end:
            # To read what there is would pass for all of it.
            raise Unavailable(
                "log ends too early", topic=topic, partition=partition, last=last, wanted=end, hint="ask again"
            )
        if start < first:
            raise OffsetsGone(
                "records are gone from the log", topic=topic, partition=partition, wanted=start, first=first
            )
        yield from self._consumed(topic, {partition: _Span(start, last if end is None else end)}, isolation, most)

    def _consumed(self, topic: str, spans: dict[int, _Span], isolation: str, most: int) -> Iterator[list[ck.Message]]:
        """The messages of all spans, each chunk of one partition."""
        spans = {partition: span for partition, span in spans.items() if span.next < span.stop}
        if not spans:
            return
        with self._consumer(isolation) as consumer:
            _assign(consumer, topic, spans)
            deadline = time.monotonic() + self._config.request_timeout_s
            while spans:
                # The client waits its whole time for a full chunk: so for one first, then a moment for those behind it.
                messages = consumer.consume(1, timeout=0.2)
                messages += consumer.consume(most - 1, timeout=0.001) if messages else []
                for partition, chunk in _by_partition(messages, spans).items():
                    span = spans[partition]
                    taken, ended_by = self._taken(chunk, span.stop)
                    if taken:
                        deadline = time.monotonic() + self._config.request_timeout_s
                        span.next = taken[-1].offset() + 1  # type: ignore[operator]
                        yield taken
                    if ended_by is _Ended.AT_STOP:
                        del spans[partition]
                    if ended_by is _Ended.ASTRAY:
                        self._require_present(topic, partition, span.next)
                        _assign(consumer, topic, spans)
                if time.monotonic() >= deadline:
                    raise unavailable(
                        "read to the end of the log",
                        "time-out",
                        self._config,
                        topic=topic,
                        partitions=sorted(spans),
                        ends=[span.stop for _, span in sorted(spans.items())],
                    )

    def _taken(self, messages: list[ck.Message], stop: int) -> tuple[list[ck.Message], _Ended | None]:
        """The records among one partition's messages up to `stop`, and what ended them before the messages did."""
        # An error is true, whatever it says; comparing one with None would raise.
        if not any(map(_ERROR, messages)) and (last := messages[-1].offset()) < stop:  # type: ignore[operator]
            return messages, _Ended.AT_STOP if last == stop - 1 else None
        taken: list[ck.Message] = []
        ended_by = None
        for message in messages:
            error = message.error()
            offset: int = message.offset()  # type: ignore[assignment]
            if error is None:
                if offset >= stop:
                    return taken, _Ended.AT_STOP
                taken.append(message)
            elif error.code() == PARTITION_END:
                ended_by = _Ended.AT_STOP if offset >= stop else ended_by
            elif error.code() == LOST_ITS_PLACE:
                return taken, _Ended.ASTRAY
            elif error.code() in DEFINITE or error.fatal():
                topic, partition = message.topic(), message.partition()
                raise unavailable("read", error.str(), self._config, topic=topic, partition=partition)
            # Anything else, a broken connection above all, may pass: the deadline bounds it.
        return taken, ended_by

    def _require_present(self, topic: str, partition: int, wanted: int) -> None:
        """The client gives its place up too when a broker comes back; only the log can tell."""
        first, _ = self.begin_and_end(topic, partition)
        if wanted < first:
            raise OffsetsGone(
                "records are gone from the log", topic=topic, partition=partition, wanted=wanted, first=first
            )


def _record(message: ck.Message) -> Record:
    headers = tuple(message.headers() or ())
    offset, time_ms = message.offset(), message.timestamp()[1]
    return Record(message.key(), message.value(), offset, time_ms, headers)  # type: ignore[arg-type]


class GroupOffsets:
    """What a consumer group has committed, without being a member of it."""

    def __init__(self, config: KafkaConfig, group: str) -> None:
        self._config = config
        self._group = group

    def committed(
        self, partitions: Iterable[TopicPartition], *, stable: bool = True
    ) -> dict[TopicPartition, tuple[int, str]]:
        """Next-to-read offset and note of each partition that has one.

        `stable` waits until no open transaction can change them (KIP-447); without it they are as last committed.
        """
        wanted = [ck.TopicPartition(topic, partition) for topic, partition in partitions]
        timeout = self._config.request_timeout_s
        found = self._with_consumer(
            "committed", lambda consumer: _whole(consumer.committed(wanted, timeout=timeout)), stable=stable
        )
        return {(one.topic, one.partition): (one.offset, one.metadata or "") for one in found if one.offset >= 0}

    def commit(self, positions: list[ck.TopicPartition]) -> None:
        """Commit outside of any transaction."""
        self._with_consumer("commit", lambda consumer: _whole(consumer.commit(offsets=positions, asynchronous=False)))

    def _with_consumer(self, what: str, question: Callable[[ck.Consumer], Answer], *, stable: bool = True) -> Answer:
        isolation = "read_committed" if stable else "read_uncommitted"
        consumer = ck.Consumer({**client_settings(self._config), "group.id": self._group, "isolation.level": isolation})
        try:
            return _ask(consumer, self._config, what, lambda: question(consumer), group=self._group)
        finally:
            consumer.close()


class OffsetsGone(RollforwardError):
    """The offset asked for lies outside of the log."""


def list_offsets(
    admin: AdminClient,
    config: KafkaConfig,
    wanted: Mapping[ck.TopicPartition, OffsetSpec],
    *,
    committed: bool = False,
    none: int | None = None,
) -> dict[tuple[str, int], int]:
    """Offsets as `read_uncommitted` sees them, or `read_committed`, keyed by topic and partition.

    `none` is a broker's answer that there is no such offset, where there may be such an answer.
    """
    return list_all_offsets(admin, config, [wanted], committed=committed, none=none)[0]


def list_all_offsets(
    admin: AdminClient,
    config: KafkaConfig,
    wanted: Sequence[Mapping[ck.TopicPartition, OffsetSpec]],
    *,
    committed: bool = False,
    none: int | None = None,
) -> list[dict[tuple[str, int], int]]:
    """`list_offsets` of each, asked at the same time: one request has one offset of a partition."""
    isolation = ck.IsolationLevel.READ_COMMITTED if committed else ck.IsolationLevel.READ_UNCOMMITTED

    def question() -> list[dict[tuple[str, int], int]]:
        _led(admin, config, {where for each in wanted for where in each})
        asked = [
            admin.list_offsets(dict(each), isolation_level=isolation, request_timeout=config.request_timeout_s)
            for each in wanted
        ]
        return [
            {(where.topic, where.partition): _real(future.result().offset, none) for where, future in futures.items()}
            for futures in asked
        ]

    return _ask(admin, config, "list_offsets", question)


def _led(admin: AdminClient, config: KafkaConfig, partitions: Iterable[ck.TopicPartition]) -> None:
    """The client knows a leader of each of these partitions; raises an error of Kafka's that may pass otherwise.

    Where it does not, librdkafka asks for the leader in two threads, and either may free the question while the other
    still writes to it: a segmentation fault, once in some ten thousand questions about offsets (`query_leaders_async`
    in rdkafka_partition.c, 2.16). An answer to a question for metadata is in the client's cache before it is given.
    """
    numbers: dict[str, list[int]] = {}
    for where in partitions:
        numbers.setdefault(where.topic, []).append(where.partition)
    for topic, asked in numbers.items():
        found = admin.list_topics(topic, timeout=config.request_timeout_s).topics[topic]
        if found.error is not None and found.error.code() != ck.KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise ck.KafkaException(found.error)
        for number in asked:
            if number not in found.partitions or found.partitions[number].leader < 0:
                raise ck.KafkaException(ck.KafkaError(ck.KafkaError._NOENT, f"no broker leads {topic}-{number}"))


# What a broker says of a time that all its records are older than.
_NO_RECORD = -1


def _real(offset: int, none: int | None) -> int:
    """An offset, or `none`, that a broker has said.

    When its time is over before the broker has answered, the client may give -1001 (no offset) as a result without an
    error. Taken for a log's end it would make a full log an empty one.
    """
    if offset < 0 and offset != none:
        raise ck.KafkaException(ck.KafkaError(ck.KafkaError._TIMED_OUT, f"no broker has said the offset: {offset}"))
    return offset


def _whole(found: list[ck.TopicPartition]) -> list[ck.TopicPartition]:
    """An answer of which every partition is right. An error of one would look like an offset that was never committed."""
    for one in found:
        if one.error is not None:
            raise ck.KafkaException(one.error)
    return found


_NOT_TO_BE_SEEN = (ck.KafkaError.UNKNOWN_TOPIC_OR_PART, ck.KafkaError.TOPIC_AUTHORIZATION_FAILED)


class Admin(_Asking):
    """Topics: describe, create, delete. Nothing else creates a topic."""

    def describe(self, names: Sequence[str]) -> dict[str, Topic]:
        """The topics that exist among `names`."""
        if not names:
            return {}
        return _ask(
            self._admin, self._config, "describe_topics", lambda: self._describe(names), topics=", ".join(names)
        )

    def _describe(self, names: Sequence[str]) -> dict[str, Topic]:
        found: dict[str, Topic] = {}
        timeout = self._config.request_timeout_s
        futures = self._admin.describe_topics(ck.TopicCollection(list(names)), request_timeout=timeout)
        for name, future in futures.items():
            try:
                about = future.result()
            except ck.KafkaException as raised:
                if raised.args[0].code() == ck.KafkaError.UNKNOWN_TOPIC_OR_PART:
                    continue
                raise
            found[name] = Topic(name, str(about.topic_id), len(about.partitions))
        return found

    def topics(self) -> dict[str, int]:
        """Every topic with its number of partitions."""
        found = _ask(self._admin, self._config, "list_topics", lambda: self._admin.list_topics(timeout=10.0).topics)
        return {name: len(topic.partitions) for name, topic in found.items()}

    def configs(self, topic: str) -> dict[str, str]:
        """The topic's settings."""
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)

        def question() -> dict[str, str]:
            entries = self._admin.describe_configs([resource], request_timeout=self._config.request_timeout_s)
            return {name: entry.value for name, entry in entries[resource].result().items()}

        return _ask(self._admin, self._config, "describe_configs", question, topic=topic)

    def broker_configs(self) -> dict[str, str]:
        """Settings of one broker, which are the cluster's where the brokers agree; none if this user may not read them."""

        def question() -> dict[str, str]:
            broker = next(iter(self._admin.list_topics(timeout=self._config.request_timeout_s).brokers))
            resource = ConfigResource(ConfigResource.Type.BROKER, str(broker))
            entries = self._admin.describe_configs([resource], request_timeout=self._config.request_timeout_s)
            try:
                found = entries[resource].result()
            except ck.KafkaException as raised:
                if raised.args[0].code() != ck.KafkaError.CLUSTER_AUTHORIZATION_FAILED:
                    raise
                return {}
            return {name: entry.value for name, entry in found.items() if entry.value is not None}

        return _ask(self._admin, self._config, "describe_configs", question, broker="any")

    def authorized(self, names: Sequence[str]) -> dict[str, set[str]]:
        """What this user may do (`READ`, `WRITE`, …) with those of the topics that exist and that it may describe."""

        def question() -> dict[str, set[str]]:
            futures = self._admin.describe_topics(
                ck.TopicCollection(list(names)),
                include_authorized_operations=True,
                request_timeout=self._config.request_timeout_s,
            )
            found = {}
            for name, future in futures.items():
                try:
                    found[name] = {operation.name for operation in future.result().authorized_operations or []}
                except ck.KafkaException as raised:
                    if raised.args[0].code() not in _NOT_TO_BE_SEEN:
                        raise
            return found

        return _ask(self._admin, self._config, "describe_topics", question, topics=", ".join(names))

    def create(self, name: str, *, partitions: int, settings: Mapping[str, str], replication: int = -1) -> Topic:
        """Create the topic unless it exists. Raises `InvalidConfig` if it exists with other partitions."""
        return self.create_all({name: (partitions, settings)}, replication=replication)[name]

    def create_all(
        self, wanted: Mapping[str, tuple[int, Mapping[str, str]]], *, replication: int = -1
    ) -> dict[str, Topic]:
        """Create those of the topics, name: (partitions, settings), that do not exist, in one request; gives them all.

        Raises `InvalidConfig` if one exists with other partitions.
        """
        names = list(wanted)
        missing = sorted(set(names) - set(self.describe(names)))
        if missing:
            self._create(
                [
                    NewTopic(name, wanted[name][0], replication_factor=replication, config=dict(wanted[name][1]))
                    for name in missing
                ]
            )
        found = self._await(names)
        for name, (partitions, _) in wanted.items():
            if found[name].partitions != partitions:
                raise InvalidConfig(
                    "topic exists with another number of partitions",
                    topic=name,
                    found=found[name].partitions,
                    wanted=partitions,
                    hint="use another pipeline name, or delete the topic if nothing needs it",
                )
        return found

    def _create(self, topics: list[NewTopic]) -> None:
        for name, future in self._admin.create_topics(topics, request_timeout=self._config.request_timeout_s).items():
            try:
                future.result()
            except ck.KafkaException as raised:
                if raised.args[0].code() != ck.KafkaError.TOPIC_ALREADY_EXISTS:
                    raise unavailable("create_topics", raised.args[0].str(), self._config, topic=name) from raised

    def _await(self, names: Sequence[str]) -> dict[str, Topic]:
        deadline = time.monotonic() + self._config.request_timeout_s
        while len(found := self.describe(names)) < len(set(names)):
            if time.monotonic() >= deadline:
                raise unavailable("topic creation", "time-out", self._config, topics=", ".join(names))
            time.sleep(0.02)
        return found

    def await_gone(self, name: str) -> None:
        """Return when the topic is deleted: that goes on after `delete` has returned."""
        deadline = time.monotonic() + self._config.request_timeout_s
        while self.describe([name]):
            if time.monotonic() >= deadline:
                raise unavailable("topic deletion", "time-out", self._config, topic=name)
            time.sleep(0.05)

    def delete(self, names: Sequence[str]) -> None:
        """Delete the topics that exist among `names`; another may do so at the same time."""
        present = list(self.describe(names))
        if not present:
            return
        for name, future in self._admin.delete_topics(present, request_timeout=self._config.request_timeout_s).items():
            try:
                future.result()
            except ck.KafkaException as raised:
                if raised.args[0].code() != ck.KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise unavailable("delete_topics", raised.args[0].str(), self._config, topic=name) from raised

    def configure(self, topic: str, settings: Mapping[str, str]) -> None:
        """Set these settings of the topic, leaving its others."""
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in settings.items()
        ]
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)

        def question() -> None:
            futures = self._admin.incremental_alter_configs([resource], request_timeout=self._config.request_timeout_s)
            futures[resource].result()

        _ask(self._admin, self._config, "incremental_alter_configs", question, topic=topic)

    def trim(self, topic: str, partition: int, *, before: int) -> None:
        """Delete the records before this offset."""
        where = ck.TopicPartition(topic, partition, before)

        def question() -> None:
            _led(self._admin, self._config, [where])
            futures = self._admin.delete_records([where], request_timeout=self._config.request_timeout_s)
            futures[where].result()

        _ask(self._admin, self._config, "delete_records", question, topic=topic)

    def groups(self) -> set[str]:
        """Names of all consumer groups."""
        timeout = self._config.request_timeout_s

        def question() -> set[str]:
            listed = self._admin.list_consumer_groups(request_timeout=timeout).result()
            return {group.group_id for group in listed.valid}

        return _ask(self._admin, self._config, "list_consumer_groups", question)

    def delete_groups(self, names: Sequence[str]) -> None:
        """Delete the groups that exist among `names`; another may do so at the same time."""
        present = sorted(set(names) & self.groups())
        if not present:
            return
        timeout = self._config.request_timeout_s
        for name, future in self._admin.delete_consumer_groups(present, request_timeout=timeout).items():
            try:
                future.result()
            except ck.KafkaException as raised:
                if raised.args[0].code() != ck.KafkaError.GROUP_ID_NOT_FOUND:
                    raise unavailable(
                        "delete_consumer_groups", raised.args[0].str(), self._config, group=name
                    ) from raised

    def ends(self, topic: str, *, partitions: int) -> dict[int, int]:
        """The offset after the last record of every partition."""
        wanted = {ck.TopicPartition(topic, number): OffsetSpec.latest() for number in range(partitions)}
        return {number: at for (_, number), at in list_offsets(self._admin, self._config, wanted).items()}

    def stable_ends(self, topic: str, *, partitions: int) -> dict[int, int]:
        """The offset of every partition where the first open transaction begins; the log's end if none is open."""
        wanted = {ck.TopicPartition(topic, number): OffsetSpec.latest() for number in range(partitions)}
        return {n: at for (_, n), at in list_offsets(self._admin, self._config, wanted, committed=True).items()}

    def begins(self, topic: str, *, partitions: int) -> dict[int, int]:
        """The first offset present in every partition."""
        wanted = {ck.TopicPartition(topic, number): OffsetSpec.earliest() for number in range(partitions)}
        return {number: at for (_, number), at in list_offsets(self._admin, self._config, wanted).items()}

    def at_time(self, topic: str, time_ms: int, *, partitions: int) -> dict[int, int]:
        """The first offset of every partition whose record is of that time or later; the log's end where there is none.

        Records of that time that come after the question are behind every offset given.
        """
        # The ends first: a record that comes between the questions must not be left out.
        ends = self.ends(topic, partitions=partitions)
        wanted = {ck.TopicPartition(topic, n): OffsetSpec.for_timestamp(time_ms) for n in range(partitions)}
        found = list_offsets(self._admin, self._config, wanted, none=_NO_RECORD)
        return {number: ends[number] if at == _NO_RECORD else at for (_, number), at in found.items()}

    def check(self) -> None:
        """Raise `Unavailable` unless the cluster answers."""
        try:
            self._admin.list_topics(timeout=min(10.0, self._config.request_timeout_s))
        except ck.KafkaException as raised:
            raise unavailable("metadata", raised.args[0].str(), self._config) from raised
