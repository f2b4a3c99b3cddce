"""The hazard of lost deletions, shown with a real broker that compacts: a key is deleted, its deletion is compacted
away, and an older snapshot is offered. It must be refused, and the deleted key must not come back."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from statestore.planning.plan import Way
from tests.support.task import COMPACT, TaskWorld, config_of

# Longer than an opening takes, which counts from before it asks who owns the task.
RETENTION_MS = 5_000
EAGER = {
    **COMPACT,
    "delete.retention.ms": str(RETENTION_MS),
    "min.cleanable.dirty.ratio": "0.001",
    "segment.ms": "100",
    "max.compaction.lag.ms": "100",
    "file.delete.delay.ms": "0",
}


@pytest.fixture
def eager(kafka: str) -> Iterator[None]:
    """The broker's cleaner looks after half a second for what it can clean; by default it waits for fifteen."""
    admin = AdminClient({"bootstrap.servers": kafka})
    (broker,) = admin.list_topics(timeout=20).brokers

    def wait(milliseconds: str, operation: AlterConfigOpType) -> None:
        entry = ConfigEntry("log.cleaner.backoff.ms", milliseconds, incremental_operation=operation)
        resource = ConfigResource(ConfigResource.Type.BROKER, str(broker), incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(20)

    wait("500", AlterConfigOpType.SET)
    yield
    wait("500", AlterConfigOpType.DELETE)


@pytest.fixture
def world(kafka: str, eager: None, unique: str, tmp_path: Path) -> Iterator[TaskWorld]:
    config = config_of(tmp_path / "objects", pin_life_s=600, minimum_age_s=1200)
    world = TaskWorld(kafka, unique, tmp_path / "state", config, changelog=EAGER)
    yield world
    world.close()


def records(world: TaskWorld) -> list[tuple[bytes | None, bytes | None]]:
    """What is left of the changelog."""
    topic, number = world.spec.store.changelog_topic, world.spec.number
    first, _ = world.reader.begin_and_end(topic, number)
    return [(r.key, r.value) for chunk in world.reader.read(topic, number, start=first) for r in chunk]


@pytest.mark.timeout(240)
def test_a_deletion_that_was_compacted_away_does_not_bring_its_key_back(world: TaskWorld) -> None:
    world.open()
    world.commit({b"kept": b"1", b"deleted": b"1"})
    world.snapshot()
    world.commit_elsewhere({b"deleted": None, b"kept": b"2"})
    batch = 1
    deadline = time.monotonic() + 180
    # The cleaner keeps a deletion for its retention after it first sees it, and never cleans the newest segment: other
    # keys make new ones.
    while any(key == b"deleted" for key, _ in records(world)):
        assert time.monotonic() < deadline, records(world)
        time.sleep(0.5)
        batch = world.commit_elsewhere({b"other": b"%d" % batch})
    # The disk is lost; what is left is the old snapshot, which has the key, and a changelog that forgot it.
    shutil.rmtree(world.spec.folder)
    opened = world.open()
    assert Way.FULL_REPLAY is opened.plan.way
    refused = next(option.refused for option in opened.plan.ways if option.way is Way.SNAPSHOT)
    assert "snapshot is older than the changelog keeps deletions" == refused
    assert {b"kept", b"other"} == set(world.entries())
    assert b"2" == world.entries()[b"kept"]


def test_an_open_transaction_never_hides_committed_records(world: TaskWorld) -> None:
    """The changelog's end is read with open transactions in it, and reading up to it waits for them."""
    from statestore.errors import Unavailable
    from statestore.kafka.producer import TransactionalProducer
    from statestore.kafka.reader import Reader

    world.open()
    world.commit({b"a": b"1"})
    topic, number = world.spec.store.changelog_topic, world.spec.number
    # The broker ends a transaction after it has answered: its end is there when its records can be read.
    assert [b"a"] == [record.key for chunk in world.reader.read(topic, number, start=0) for record in chunk]
    _, before = world.reader.begin_and_end(topic, number)
    other = TransactionalProducer(world.kafka, f"{world.spec.pipeline}-other")
    other.init()
    other.begin()
    other.produce(topic, key=b"b", value=b"1", partition=number)
    other.flush()
    _, end = world.reader.begin_and_end(topic, number)
    assert before + 1 == end
    impatient = Reader(type(world.kafka)(world.kafka.bootstrap_servers, request_timeout_s=2))
    with pytest.raises(Unavailable, match="read to the end"):
        list(impatient.read(topic, number, start=0))
    other.abort()
    assert [b"a"] == [record.key for chunk in world.reader.read(topic, number, start=0) for record in chunk]
