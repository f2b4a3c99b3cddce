"""Reading several partitions at once, and one log after the other with the same consumer."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path

import pytest

from statestore.config import KafkaConfig
from statestore.kafka.admin import Admin
from statestore.kafka.producer import TransactionalProducer
from statestore.kafka.reader import Reader, Record
from statestore.task import Task
from tests.support.task import ROCKS, TaskWorld
from tests.support.waiting import await_

# Of all clients of a task together, once the server is connected. Each costs the broker half a millisecond, and a
# recovery that has nothing to replay is made of them.
REQUESTS_MAX = 36


@pytest.fixture
def config(kafka: str) -> KafkaConfig:
    return KafkaConfig(kafka, request_timeout_s=20)


@pytest.fixture
def topic(config: KafkaConfig, unique: str) -> str:
    """Partition 0: k = 0 to 4, each in a transaction, then an aborted 5. Partition 1: empty. Partition 2: j = 0."""
    Admin(config).create(unique, partitions=3, settings={})
    producer = TransactionalProducer(config, unique)
    producer.init()
    for number in range(6):
        producer.begin()
        producer.produce(unique, key=b"k", value=b"%d" % number, partition=0)
        if number == 0:
            producer.produce(unique, key=b"j", value=b"0", partition=2)
        producer.flush()
        if number < 5:
            producer.commit()
        else:
            producer.abort()
    producer.close()
    reader = Reader(config)
    await_("the last transaction has ended", lambda: reader.stable_end(unique, 0) == 2 * 6)
    return unique


def values(found: dict[int, dict[bytes, Record]]) -> dict[int, dict[bytes, bytes | None]]:
    return {partition: {key: record.value for key, record in keys.items()} for partition, keys in found.items()}


def test_newest_records_of_several_partitions(config: KafkaConfig, topic: str) -> None:
    reader = Reader(config)
    assert values(reader.newest(topic, [0, 1, 2])) == {0: {b"k": b"4"}, 1: {}, 2: {b"j": b"0"}}
    assert values(reader.newest(topic, [0, 2], uncommitted=True)) == {0: {b"k": b"5"}, 2: {b"j": b"0"}}
    assert values(reader.newest(topic, [1])) == {1: {}}


def test_a_kept_consumer_reads_one_log_after_the_other(
    config: KafkaConfig, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Reader(config)
    made: list[str] = []
    make = reader._new_consumer
    monkeypatch.setattr(reader, "_new_consumer", lambda isolation: made.append(isolation) or make(isolation))
    with reader.kept():
        for _ in range(3):
            assert values(reader.newest(topic, [0, 2])) == {0: {b"k": b"4"}, 2: {b"j": b"0"}}
            assert [r.value for chunk in reader.read(topic, 2, start=0) for r in chunk] == [b"0"]
            # Left in the middle: what was fetched is not for the next.
            next(reader.read(topic, 0, start=0))
        assert values(reader.newest(topic, [0], uncommitted=True)) == {0: {b"k": b"5"}}
    assert made == ["read_committed", "read_committed", "read_committed", "read_uncommitted"]
    assert reader._idle == []
    made.clear()
    reader.newest(topic, [0])
    reader.newest(topic, [0])
    assert made == ["read_committed", "read_committed"]


def test_opening_a_task_asks_little(kafka: str, unique: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    world = TaskWorld(kafka, unique, tmp_path, None)
    world.open()
    world.commit({b"k": b"1"})
    world.close()
    config = KafkaConfig(kafka, request_timeout_s=20, client={"debug": "protocol", "log_level": "7"})
    reader = Reader(config)
    reader.connect()
    task = Task(world.spec, world.start_driver(), config, ROCKS, transactions=True, reader=reader)
    capfd.readouterr()
    task.open()
    sent = re.findall(r"Sent (\w+)Request", capfd.readouterr().err)
    task.close()
    assert 10 < len(sent) <= REQUESTS_MAX, sent


def test_a_caller_may_take_longer_than_kafka_may(config: KafkaConfig, topic: str) -> None:
    reader = Reader(config)
    reader._config = replace(config, request_timeout_s=1)
    found = []
    # Some chunks, each of which takes the caller longer than that.
    for messages in reader._messages(topic, 0, 0, None, "read_committed", 2):
        found += [message.value() for message in messages]
        time.sleep(1.1)
    assert [b"%d" % number for number in range(5)] == found
