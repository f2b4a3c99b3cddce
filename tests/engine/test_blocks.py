"""Ranges in large blocks: exactly the committed records of each, whatever the log holds beside them, or an error."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Generator, Iterator
from dataclasses import asdict, replace

import confluent_kafka as ck
import pyarrow as pa
import pytest

from statestore.config import KafkaConfig
from statestore.errors import Unavailable
from statestore.kafka import blocks
from statestore.kafka.admin import Admin
from statestore.kafka.blocks import BlockReader
from statestore.kafka.librdkafka import Consumer
from statestore.kafka.producer import TransactionalProducer
from statestore.kafka.reader import OffsetsGone


@pytest.fixture
def config(kafka: str) -> KafkaConfig:
    return KafkaConfig(kafka)


@pytest.fixture
def topic(config: KafkaConfig, unique: str) -> Iterator[str]:
    admin = Admin(config)
    admin.create(unique, partitions=2, settings={})
    yield unique
    admin.delete([unique])


def send(config: KafkaConfig, topic: str, count: int, *, commit: bool = True, partition: int = 0) -> None:
    """One transaction of records whose values are numbers from 0 on; it ends with a marker, which takes an offset."""
    producer = TransactionalProducer(config, f"{topic}-{partition}")
    producer.init()
    producer.begin()
    for number in range(count):
        producer.produce(topic, key=b"k", value=b"%d" % number, partition=partition, timestamp_ms=1_000 + number)
    producer.flush()
    if commit:
        producer.commit()
    else:
        producer.abort()
    producer.close()


def read(config: KafkaConfig, topic: str, start: int, end: int, partition: int = 0) -> list[tuple[int, bytes | None]]:
    blocks = BlockReader(config).read(topic, partition, start=start, end=end)
    return [pair for block in blocks for pair in zip(block.offsets.to_pylist(), block.values.to_pylist(), strict=True)]


def numbered(count: int, start: int = 0) -> list[tuple[int, bytes]]:
    return [(start + number, b"%d" % number) for number in range(count)]


def kept(config: KafkaConfig) -> list[Consumer]:
    """The consumers that wait for a next range; one at the most, since one range is read at a time."""
    return list(blocks._idle.get(json.dumps(asdict(config), sort_keys=True), []))


def test_a_range_may_end_in_markers_and_aborted_records_and_consist_of_them(config: KafkaConfig, topic: str) -> None:
    send(config, topic, 3)
    send(config, topic, 4, commit=False)
    send(config, topic, 2)
    # 0-2 records, 3 a marker, 4-7 aborted, 8 a marker, 9-10 records, 11 a marker; 12 is the log's end.
    assert 12 == Admin(config).ends(topic, partitions=2)[0]
    everything = numbered(3) + numbered(2, start=9)
    for start in range(13):
        for end in range(start, 13):
            assert [pair for pair in everything if start <= pair[0] < end] == read(config, topic, start, end)


def test_any_ranges_one_after_the_other_with_one_consumer_are_exact(config: KafkaConfig, topic: str) -> None:
    # Far more than a block, so that the client has fetched ahead of every range's end, which the next may begin before.
    for partition in (0, 1):
        for _ in range(3):
            send(config, topic, 10_000, partition=partition)
    first, end = read(config, topic, 0, 30_003), 30_003
    assert [pair for part in range(3) for pair in numbered(10_000, start=part * 10_001)] == first
    [before] = kept(config)
    seed = int.from_bytes(os.urandom(4))
    chance = random.Random(seed)
    at = 0
    for _ in range(40):
        partition = chance.randrange(2)
        start = chance.choice([at, chance.randrange(end)])
        at = min(end, start + chance.choice([1, 100, 9_999, 10_000, 25_000]))
        expected = [pair for pair in first if start <= pair[0] < at]
        assert expected == read(config, topic, start, at, partition), f"seed {seed}"
        at = at if at < end else 0
    assert [before] == kept(config)


def test_a_compacted_log_is_read_with_its_holes(config: KafkaConfig, topic: str) -> None:
    producer = TransactionalProducer(config, topic)
    producer.init()
    producer.begin()
    for number in range(100):
        producer.produce(topic, key=b"%d" % (number % 10), value=b"%d" % number, partition=0)
    producer.flush()
    producer.commit()
    Admin(config).configure(
        topic,
        {
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0.0",
            "segment.ms": "100",
            "max.compaction.lag.ms": "100",
            "min.compaction.lag.ms": "0",
        },
    )
    _await_compaction(config, topic, producer)
    found = dict(read(config, topic, 0, 101))
    assert {number: b"%d" % number for number in range(90, 100)} == found
    assert {number: b"%d" % number for number in range(90, 95)} == dict(read(config, topic, 5, 95))
    assert [] == read(config, topic, 5, 80)


def _await_compaction(config: KafkaConfig, topic: str, producer: TransactionalProducer) -> None:
    """A segment is compacted once a newer one has begun, so records of another partition's key keep coming."""
    deadline = time.monotonic() + 120
    while len(read(config, topic, 0, 100)) > 10:
        assert time.monotonic() < deadline, "the log was not compacted"
        producer.begin()
        producer.produce(topic, key=b"more", value=b"", partition=0)
        producer.flush()
        producer.commit()


def test_nulls_headers_times_and_large_values_come_as_they_were_sent(config: KafkaConfig, topic: str) -> None:
    large = os.urandom(900_000)
    producer = ck.Producer({"bootstrap.servers": config.bootstrap_servers, "enable.idempotence": True})
    headers: list[tuple[str, str | bytes | None]] = [("a", b"1"), ("a", None), ("b", b"")]
    producer.produce(topic, value=None, key=None, partition=0, timestamp=7)
    producer.produce(topic, value=b"", key=b"", partition=0, timestamp=8, headers=headers)
    for number in range(6):
        producer.produce(topic, value=large, key=b"large", partition=0, timestamp=9 + number)
    assert 0 == producer.flush(60)
    blocks = list(BlockReader(config).read(topic, 0, start=0, end=8))
    assert [None, b"", *[b"large"] * 6] == [key for block in blocks for key in block.keys.to_pylist()]
    assert [None, b"", *[large] * 6] == [value for block in blocks for value in block.values.to_pylist()]
    assert list(range(7, 15)) == [time_ms for block in blocks for time_ms in block.times.to_pylist()]
    assert list(range(8)) == [offset for block in blocks for offset in block.offsets.to_pylist()]
    assert [] == [found for block in blocks for found in block.headers]
    once = list(BlockReader(config).read_once(topic, 0, start=0, end=8, headers=True))
    assert [tuple(headers)] == [found for block in once for found in block.headers]
    assert pa.chunked_array([block.values for block in blocks]) == pa.chunked_array([block.values for block in once])


def test_records_that_are_gone_are_told_and_the_next_range_is_read(config: KafkaConfig, topic: str) -> None:
    send(config, topic, 100)
    assert numbered(5) == read(config, topic, 0, 5)
    assert 1 == len(kept(config))
    Admin(config).trim(topic, 0, before=50)
    with pytest.raises(OffsetsGone, match="first=`50`"):
        read(config, topic, 5, 60)
    # The consumer that has met the error is not used again.
    assert [] == kept(config)
    assert [(50, b"50")] == read(config, topic, 50, 51)


def test_a_log_that_ends_before_the_range_is_an_error(config: KafkaConfig, topic: str) -> None:
    send(config, topic, 10)
    for start in (0, 11):
        with pytest.raises(Unavailable, match="log ends too early"):
            read(config, topic, start, 12)
    assert numbered(10) == read(config, topic, 0, 11)


def test_an_open_transaction_inside_the_range_is_waited_for_and_then_an_error(config: KafkaConfig, topic: str) -> None:
    send(config, topic, 3)
    producer = TransactionalProducer(config, f"{topic}-open")
    producer.init()
    producer.begin()
    producer.produce(topic, key=None, value=b"open", partition=0)
    producer.flush()
    with pytest.raises(Unavailable):
        read(replace(config, request_timeout_s=3.0), topic, 0, 5)
    producer.commit()
    assert [*numbered(3), (4, b"open")] == read(config, topic, 0, 5)


def test_a_range_that_is_not_read_to_its_end_costs_its_consumer(config: KafkaConfig, topic: str) -> None:
    send(config, topic, 20)
    assert numbered(1) == read(config, topic, 0, 1)
    assert 1 == len(kept(config))
    blocks = BlockReader(config).read(topic, 0, start=0, end=20)
    next(blocks)
    assert isinstance(blocks, Generator)
    blocks.close()
    assert [] == kept(config)
    assert numbered(20) == read(config, topic, 0, 20)


def test_a_topic_that_is_not_there_is_an_error(kafka: str, unique: str) -> None:
    with pytest.raises(Unavailable, match="read of a range"):
        read(KafkaConfig(kafka, request_timeout_s=3.0), f"{unique}_none", 0, 5)
