"""Columns that are queued as records arrive as the binding's single calls would have sent them."""

from __future__ import annotations

import time

import confluent_kafka as ck
import numpy as np
import pytest

from statestore.columns import Timed, records_of
from statestore.config import KafkaConfig
from statestore.errors import InvariantBroken, RollforwardError
from statestore.kafka import messages
from statestore.kafka.admin import Admin
from statestore.kafka.librdkafka import queue
from statestore.kafka.producer import ProducerFatal, ProducerFenced, TransactionAborted, TransactionalProducer
from tests.support.transactions import await_ended

FIRST_MS = 1_700_000_000_000
KEYS = [None, b"", b"k", b"key", b"\x00\xff", b"k" * 300, *(b"%d" % number for number in range(200))]
VALUES = [None, b"", b"v", b"\x00" * 9, b"value" * 1_000]
RECORDS_SENT: list[Timed] = [
    (key, VALUES[number % len(VALUES)], FIRST_MS + number * 7) for number, key in enumerate(KEYS * 3)
]


@pytest.fixture
def topic(kafka: str, unique: str) -> str:
    Admin(KafkaConfig(kafka)).create(unique, partitions=3, settings={"retention.ms": "-1"})
    return unique


def producer(kafka: str, topic: str, **client: str) -> TransactionalProducer:
    made = TransactionalProducer(KafkaConfig(kafka, client=client), f"id-{topic}")
    made.init()
    made.begin()
    return made


def all_of(kafka: str, topic: str) -> dict[int, list[Timed]]:
    """The records by partition, in their order, as the binding reads them."""
    await_ended(kafka, topic, partitions=3)
    consumer = ck.Consumer({"bootstrap.servers": kafka, "group.id": topic, "enable.partition.eof": True})
    consumer.assign([ck.TopicPartition(topic, partition, 0) for partition in range(3)])
    found: dict[int, list[Timed]] = {0: [], 1: [], 2: []}
    ended = 0
    while ended < 3:
        message = consumer.poll(10)
        assert message is not None
        error = message.error()
        if error is not None:
            assert error.code() == ck.KafkaError._PARTITION_EOF
            ended += 1
            continue
        partition = message.partition()
        assert partition is not None
        found[partition].append((message.key(), message.value(), message.timestamp()[1]))
    consumer.close()
    return found


def test_records_arrive_in_their_order_with_nulls_and_empty_ones_where_they_were(kafka: str, topic: str) -> None:
    sending = producer(kafka, topic)
    # A slice of something larger, as Arrow's columns may be.
    sliced = records_of([(b"not", b"sent", 1), *RECORDS_SENT, (b"not", b"sent", 1)]).slice(1, len(RECORDS_SENT))
    sending.produce_many(topic, sliced, partition=1)
    sending.produce_many(topic, records_of([]), partition=1)
    stamped = [
        (key, None if value is None else b"%8d" % number + value, at)
        for number, (key, value, at) in enumerate(RECORDS_SENT)
    ]
    sending.produce_many(topic, records_of(stamped), partition=2, skip=8)
    sending.commit()
    sending.close()
    assert {0: [], 1: RECORDS_SENT, 2: RECORDS_SENT} == all_of(kafka, topic)
    # What is loaded before a commit is what it needs.
    messages.ready()
    assert len(messages.queue.signatures) == 1  # type: ignore[attr-defined]


def test_a_key_s_partition_is_the_one_that_the_binding_takes(kafka: str, topic: str) -> None:
    keyed = [record for record in RECORDS_SENT if record[0] is not None]
    one_by_one = producer(kafka, topic)
    for key, value, time_ms in keyed:
        one_by_one.produce(topic, key=key, value=value, timestamp_ms=time_ms)
    one_by_one.commit()
    one_by_one.begin()
    one_by_one.produce_many(topic, records_of(keyed))
    one_by_one.commit()
    one_by_one.close()
    for records in all_of(kafka, topic).values():
        half = len(records) // 2
        assert records and records[:half] == records[half:]


def test_a_time_of_0_which_the_client_takes_for_now_is_refused(kafka: str, topic: str) -> None:
    sending = producer(kafka, topic)
    with pytest.raises(InvariantBroken, match="time 0"):
        sending.produce_many(topic, records_of([(b"k", b"v", FIRST_MS), (b"k", b"w", 0)]))
    sending.close()


def test_a_single_record_of_time_0_is_sent_with_1_ms_and_one_without_a_time_is_of_now(kafka: str, topic: str) -> None:
    sending, now = producer(kafka, topic), int(time.time() * 1000)
    for time_ms in (0, 1, FIRST_MS, None, -1):
        sending.produce(topic, key=b"k", value=b"v", partition=1, timestamp_ms=time_ms)
    sending.commit()
    sending.close()
    *given, without, unknown = (time_ms for _, _, time_ms in all_of(kafka, topic)[1])
    assert [1, 1, FIRST_MS] == given
    assert now <= without <= unknown


def test_no_order_is_lost_while_the_queue_is_full(kafka: str, topic: str) -> None:
    sending = TransactionalProducer(KafkaConfig(kafka), topic, transactions=False)
    sending._client = ck.Producer({"bootstrap.servers": kafka, "queue.buffering.max.messages": 50, "linger.ms": 0})
    assert queue(sending._producer, topic, records_of(RECORDS_SENT), 1) == 50
    sending.produce_many(topic, records_of(RECORDS_SENT[50:]), partition=1)
    sending.flush()
    assert all_of(kafka, topic)[1] == RECORDS_SENT


def test_a_record_that_is_too_large_is_an_error_of_its_own(kafka: str, topic: str) -> None:
    sending = producer(kafka, topic, **{"message.max.bytes": "2000"})
    records = records_of([(b"k", b"small", FIRST_MS), (b"k", b"large" * 1_000, FIRST_MS)])
    with pytest.raises(RollforwardError, match=r"too large|size"):
        sending.produce_many(topic, records)
    sending.close()


def test_a_topic_that_takes_less_than_a_batch_is_told_and_takes_smaller_ones(kafka: str, topic: str) -> None:
    Admin(KafkaConfig(kafka)).configure(topic, {"max.message.bytes": "50000"})
    noise = np.random.default_rng(1)
    records: list[Timed] = [(b"k", noise.bytes(1_000), FIRST_MS + number) for number in range(400)]
    sending = producer(kafka, topic)
    with pytest.raises(TransactionAborted, match=r"smaller batch.size under \[kafka\]"):
        sending.produce_many(topic, records_of(records), partition=1)
        sending.commit()
    sending.close()
    sending = producer(kafka, topic, **{"batch.size": "40000"})
    sending.produce_many(topic, records_of(records), partition=1)
    sending.commit()
    sending.close()
    assert records == all_of(kafka, topic)[1]


@pytest.mark.parametrize("many", [True, False])
def test_without_transactions_a_record_that_is_refused_is_not_lost_in_silence(
    kafka: str, topic: str, many: bool
) -> None:
    Admin(KafkaConfig(kafka)).configure(topic, {"max.message.bytes": "1000"})
    sending = TransactionalProducer(KafkaConfig(kafka), f"id-{topic}", transactions=False)
    value = np.random.default_rng(1).bytes(5_000)
    if many:
        sending.produce_many(topic, records_of([(b"k", value, FIRST_MS)]), partition=1)
    else:
        sending.produce(topic, key=b"k", value=value, partition=1)
    with pytest.raises(ProducerFatal, match="size too large"):
        sending.flush()
    with pytest.raises(ProducerFatal):
        sending.send_offsets(topic, {(topic, 0): 1})
    sending.close()


@pytest.mark.parametrize("many", [True, False])
def test_without_transactions_a_topic_that_is_gone_is_told(kafka: str, topic: str, many: bool) -> None:
    # How long the client takes a topic that is not there for one that is being made: by default half a minute.
    config = KafkaConfig(kafka, {"topic.metadata.propagation.max.ms": "500"})
    sending = TransactionalProducer(config, f"id-{topic}", transactions=False)
    if many:
        sending.produce_many(f"{topic}-none", records_of([(b"k", b"v", FIRST_MS)]), partition=0)
    else:
        sending.produce(f"{topic}-none", key=b"k", value=b"v", partition=0)
    with pytest.raises(ProducerFatal, match="not delivered"):
        sending.flush()
    sending.close()


def test_a_fatal_error_is_told_whatever_the_client_reports_behind_it(kafka: str, topic: str) -> None:
    Admin(KafkaConfig(kafka)).configure(topic, {"max.message.bytes": "1000"})
    sending = TransactionalProducer(KafkaConfig(kafka), f"id-{topic}", transactions=False)
    reports: list[object] = []
    large = np.random.default_rng(1).bytes(5_000)
    # A report that calls anything, as one with `on_offset` does.
    sending._producer.produce(topic, large, b"k", 1, on_delivery=lambda error, _: reports.append(error))
    with pytest.raises(ProducerFatal, match="size too large"):
        sending.flush()
    sending.close()


def test_a_fenced_producer_says_so(kafka: str, topic: str) -> None:
    old = producer(kafka, topic)
    new = producer(kafka, topic)
    with pytest.raises(ProducerFenced):
        while True:
            old.produce_many(topic, records_of(RECORDS_SENT), partition=0)
            old.flush()
            old.commit()
            old.begin()
    old.close()
    new.close()
