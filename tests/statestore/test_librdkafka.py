"""Messages read as columns are what the binding gives one by one."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from typing import Any

import confluent_kafka as ck
import psutil
import pytest

from statestore.config import KafkaConfig
from statestore.errors import InvalidConfig
from statestore.kafka import messages
from statestore.kafka.admin import Admin
from statestore.kafka.connection import LOST_ITS_PLACE, PARTITION_END
from statestore.kafka.librdkafka import Consumer, Event, Records

COUNT = 3_000
SETTINGS = {"group.id": "test", "log_level": 2, "enable.partition.eof": True, "auto.offset.reset": "error"}
Row = tuple[int, bytes | None, bytes | None, int, Any]


def some_bytes(chance: random.Random) -> bytes | None:
    size = chance.choice([None, 0, 1, 7, 8, 9, 100, 5_000])
    return None if size is None else chance.randbytes(size)


def fill(servers: str, topic: str, chance: random.Random) -> None:
    """In requests of all sizes, compressed in every way and not at all, with and without headers."""
    now_ms = time.time_ns() // 1_000_000
    for compression in ("none", "lz4", "zstd", "gzip", "snappy"):
        producer = ck.Producer({"bootstrap.servers": servers, "compression.type": compression, "linger.ms": 1})
        for _ in range(COUNT // 5):
            headers = chance.choice([None, None, [("h", some_bytes(chance)), ("ä", b"2")]])
            extra: dict[str, Any] = {} if headers is None else {"headers": headers}
            time_ms = now_ms - chance.randrange(2**30)
            producer.produce(
                topic, value=some_bytes(chance), key=some_bytes(chance), partition=0, timestamp=time_ms, **extra
            )
            if chance.random() < 0.02:
                producer.flush()
        producer.flush()


def one_by_one(servers: str, topic: str) -> list[Row]:
    consumer = ck.Consumer({"bootstrap.servers": servers, **SETTINGS})
    consumer.assign([ck.TopicPartition(topic, 0, 0)])
    rows: list[Row] = []
    while len(rows) < COUNT:
        message = consumer.poll(10)
        assert message is not None and message.error() is None
        headers = tuple(message.headers() or ())
        rows.append((message.offset(), message.key(), message.value(), message.timestamp()[1], headers))  # type: ignore[arg-type]
    consumer.close()
    return rows


def in_columns(consumer: Consumer, topic: str, most: int) -> Iterator[Records]:
    consumer.assign(topic, 0, 0)
    deadline = time.monotonic() + 60
    ended = False
    while not ended:
        assert time.monotonic() < deadline
        for found in consumer.consume(most, 0.1):
            if isinstance(found, Event):
                assert (found.code, found.topic, found.partition, found.offset) == (PARTITION_END, topic, 0, COUNT)
                ended = True
            else:
                assert (found.topic, found.partition) == (topic, 0)
                yield found


@pytest.fixture
def topic(kafka: str, unique: str) -> str:
    Admin(KafkaConfig(kafka)).create(unique, partitions=1, settings={"retention.ms": "-1"})
    return unique


def test_columns_are_what_the_binding_gives(kafka: str, topic: str) -> None:
    seed = int.from_bytes(os.urandom(4))
    chance = random.Random(seed)
    fill(kafka, topic, chance)
    expected = one_by_one(kafka, topic)
    consumer = Consumer({"bootstrap.servers": kafka, **SETTINGS}, headers=True)
    for most in (10_000, 700, 1):
        runs = list(in_columns(consumer, topic, most))
        columns = [
            [item for run in runs for item in part(run)]
            for part in (
                lambda run: run.offsets.tolist(),
                lambda run: run.keys.to_pylist(),
                lambda run: run.values.to_pylist(),
                lambda run: run.times_ms.tolist(),
            )
        ]
        assert [row[:4] for row in expected] == list(zip(*columns, strict=True)), f"seed {seed}"
        assert [row[4] for row in expected if row[4]] == [found for run in runs for found in run.headers]
        for run in runs[:3]:
            for end in (0, int(run.offsets[0]) + 1, int(run.offsets[-1]), COUNT):
                count = sum(offset < end for offset in run.offsets.tolist())
                assert run.values[:count] == run.until(end).values
                assert run.keys[:count] == run.until(end).keys
    consumer.close()
    consumer.close()
    # What is loaded before anybody reads is what reading needs.
    messages.ready()
    loops: list[Any] = [messages.run, messages.copy, messages.give_back]
    assert [1, 1, 1] == [len(loop.signatures) for loop in loops]


def test_messages_are_given_back(kafka: str, topic: str) -> None:
    fill(kafka, topic, random.Random(1))
    consumer = Consumer({"bootstrap.servers": kafka, **SETTINGS, "fetch.wait.max.ms": 10})

    def read_mb(times: int) -> float:
        """How much it was to read all of the topic so many times."""
        for _ in range(times):
            read = sum(run.bytes for run in in_columns(consumer, topic, 10_000))
        return times * read / 1e6

    read_mb(5)
    before = psutil.Process().memory_info().rss
    assert read_mb(60) > 100
    assert (psutil.Process().memory_info().rss - before) / 1e6 < 40
    consumer.close()


def test_errors_come_as_events(kafka: str, topic: str) -> None:
    consumer = Consumer({"bootstrap.servers": kafka, **SETTINGS})
    consumer.assign(topic, 0, 5)
    deadline = time.monotonic() + 30
    while not (found := consumer.consume(10, 0.2)):
        assert time.monotonic() < deadline
    consumer.close()
    [event] = found
    assert isinstance(event, Event)
    assert (event.code, event.topic, event.partition) == (LOST_ITS_PLACE, topic, 0)
    assert "out of range" in event.text


def test_a_setting_that_the_client_does_not_know_is_told() -> None:
    with pytest.raises(InvalidConfig, match=r"setting=`no.such`"):
        Consumer({"no.such": 1})
