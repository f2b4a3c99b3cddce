"""The broker: up in seconds, keeps its data and its address through kill -9, says who has its port."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from infra import ports, process
from infra.broker import Broker, answers
from infra.errors import PortInUse, StartFailed
from infra.java import JavaHome
from tests.support.present import present

pytestmark = pytest.mark.usefixtures("leftovers")
QUIET: dict[str, str | int | float] = {"log_level": 0}


def create_topic(broker: Broker, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": present(broker.address), **QUIET})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(10)


def commit(broker: Broker, topic: str, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": broker.address, "transactional.id": "test", **QUIET})
    producer.init_transactions(20)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value)
    producer.commit_transaction(20)


def read(broker: Broker, topic: str, count: int) -> list[bytes]:
    config = {"bootstrap.servers": broker.address, "group.id": "test", "isolation.level": "read_committed", **QUIET}
    consumer = Consumer(config)
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        return [present(message.value()) for message in consumer.consume(count, 20)]
    finally:
        consumer.close()


def test_broker_starts_and_stops_in_seconds_and_keeps_what_is_committed_when_it_is_killed(
    broker: Broker,
    java: JavaHome,
    kafka_jars: list[Path],
    leftovers: Callable[[], list[int]],
    record_property: Callable[[str, object], None],
) -> None:
    steps: list[str] = []
    began = time.monotonic()
    record = broker.start(java, kafka_jars, on_step=steps.append)
    started = time.monotonic()
    record_property("start_s", round(started - began, 2))
    record_property("rss_mb", psutil.Process(record.pid).memory_info().rss // 10**6)
    assert ["formatting a new data folder", f"starting on port {broker.port}"] == steps
    assert started - began < 15
    address = broker.address
    create_topic(broker, "kept")
    commit(broker, "kept", [b"a", b"b", b"c"])
    # The broker has answered the commit, and writes the transaction's end after that: see docs/faults.md.
    assert [b"a", b"b", b"c"] == read(broker, "kept", 3)
    os.kill(record.pid, signal.SIGKILL)
    psutil.wait_procs([psutil.Process(record.pid)], timeout=60)
    assert not process.is_alive(record)
    steps.clear()
    began = time.monotonic()
    second = broker.start(java, kafka_jars, on_step=steps.append)
    record_property("restart_after_kill_s", round(time.monotonic() - began, 2))
    assert address == broker.address
    assert [f"starting on port {broker.port}"] == steps
    assert [b"a", b"b", b"c"] == read(broker, "kept", 3)
    assert [second.pid] == leftovers()
    began = time.monotonic()
    assert broker.stop()
    record_property("stop_s", round(time.monotonic() - began, 2))
    assert not process.is_alive(second)
    assert broker.port is not None
    assert ports.is_free(broker.port)


def test_given_port_in_use_names_port_and_owner(broker: Broker, java: JavaHome, kafka_jars: list[Path]) -> None:
    with socket.create_server((ports.HOST, 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(PortInUse, match=f"port=`{port}` pid=`{os.getpid()}`"):
            broker.start(java, kafka_jars, port=port)
    assert broker.port is None


def test_broker_that_cannot_start_shows_its_log(broker: Broker, java: JavaHome, tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match=r"(?s)kafka\.tools.StorageTool.*hint:"):
        broker.start(java, [tmp_path / "no.jar"])
    assert not broker.record.exists()


def test_server_of_another_kind_is_no_broker() -> None:
    with socket.create_server((ports.HOST, 0)) as server:
        server.settimeout(0)
        assert not answers(server.getsockname()[1])
    assert not answers(ports.free_port())
