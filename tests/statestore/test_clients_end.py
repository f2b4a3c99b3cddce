"""Clients of Kafka end, with their threads, connections and queues, when they are closed or let go: not at some collection."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from statestore.allocator import give_back
from statestore.columns import records_of
from statestore.config import KafkaConfig
from statestore.errors import Fenced, Unavailable
from statestore.kafka.admin import Admin
from statestore.kafka.producer import ProducerFatal, ProducerFenced, TransactionalProducer
from statestore.kafka.reader import Reader
from statestore.ownership import own
from tests.statestore.conftest import ONE
from tests.support.task import TaskWorld
from tests.support.waiting import await_

TIMES = 10
QUEUED = records_of([(b"k", bytes(100_000), 1)] * 200)
MB = 1_000_000


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def memory() -> int:
    give_back()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def before() -> Iterator[int]:
    """How many threads there are, and nothing is collected any more."""
    gc.collect()
    gc.disable()
    yield threads()
    gc.enable()


def await_threads(before: int) -> None:
    await_("threads have ended", lambda: threads() <= before, timeout_s=5, tail=lambda: f"{threads()}, not {before}")


@pytest.mark.usefixtures("before")
def test_a_closed_producer_takes_its_threads_and_its_queue_along() -> None:
    def close_one() -> None:
        producer = TransactionalProducer(KafkaConfig("127.0.0.1:1"), "id", transactions=False)
        producer.produce("topic", key=b"k", value=b"v", partition=0, on_offset=lambda _: None)
        producer.produce_many("topic", QUEUED, partition=0)
        producer.close()
        producer.close()

    # The first of a process takes what all others use: Arrow's threads, heaps.
    close_one()
    first, held = threads(), memory()
    for _ in range(TIMES):
        close_one()
    await_threads(first)
    assert memory() - held < TIMES * QUEUED.nbytes // 4


@pytest.mark.parametrize("transactions", [True, False])
def test_a_closed_producer_is_of_no_more_use(transactions: bool) -> None:
    producer = TransactionalProducer(KafkaConfig("127.0.0.1:1"), "id", transactions=transactions)
    producer.close()
    calls: list[Callable[[], object]] = [
        lambda: producer.produce("topic", key=b"k", value=b"v"),
        lambda: producer.produce_many("topic", QUEUED, partition=0),
        producer.flush,
        producer.commit,
        producer.abort,
    ]
    if transactions:
        member = object()
        calls += [producer.init, producer.begin, lambda: producer.send_offsets("g", {("t", 0): 1}, member=member)]
    for call in calls:
        with pytest.raises(ProducerFatal, match="producer is closed"):
            call()
    producer.close()


def test_a_producer_that_failed_goes_as_it_is_closed(kafka: str, unique: str, before: int) -> None:
    config = KafkaConfig(kafka, request_timeout_s=20)
    for _ in range(3):
        old, new = TransactionalProducer(config, unique), TransactionalProducer(config, unique)
        old.init()
        old.begin()
        new.init()
        with pytest.raises(ProducerFenced):
            old.send_offsets(unique, {(unique, 0): 1})
        old.close()
        new.close()
    await_threads(before)


def test_who_asks_kafka_goes_with_the_last_answer(kafka: str, unique: str, before: int) -> None:
    config = KafkaConfig(kafka, request_timeout_s=20)
    Admin(config).create(unique, partitions=1, settings={})
    for _ in range(3):
        assert (0, 0) == Reader(config).begin_and_end(unique, 0)
        with pytest.raises(Unavailable, match="no broker leads"):
            Reader(replace(config, request_timeout_s=0.1)).begin_and_end(f"{unique}-missing", 0)
    await_threads(before)


def test_who_may_not_own_a_task_leaves_no_producer(kafka: str, unique: str, tmp_path: Path, before: int) -> None:
    world = TaskWorld(kafka, unique, tmp_path / "state", None)
    epoch = world.start_driver()
    world.start_driver()
    world.reader.connect()
    had = threads()
    for _ in range(3):
        with pytest.raises(Fenced):
            own(world.kafka, world.spec, world.log, epoch)
    await_threads(had)


def test_a_task_that_is_closed_is_gone(world: TaskWorld, before: int) -> None:
    world.open()
    task = weakref.ref(world.running)
    world.commit({ONE: b"2"})
    world.close()
    assert task() is None
