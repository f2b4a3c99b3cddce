"""A server that outlives drivers serves the newest one alone, whatever an older one still asks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from statestore.client import StoreClient
from statestore.config import RocksConfig, ServerConfig
from statestore.errors import Fenced, InvalidConfig, Unavailable
from statestore.server import StoreServer
from statestore.staging import EMIT_NOTHING, SCHEMA
from statestore.task import Task
from tests.support.task import COMPACT, TaskWorld, keys_of

KEY = keys_of(0, 1, 1)[0]


@pytest.fixture
def world(new_world: TaskWorld) -> TaskWorld:
    return new_world


@pytest.fixture
def client(world: TaskWorld, tmp_path: Path) -> Iterator[StoreClient]:
    """Of a server that no driver has started."""
    address = tmp_path / "s.sock"
    config = ServerConfig("s", str(address), world.kafka, RocksConfig(), states=tmp_path / "states")
    server = StoreServer(config)
    with StoreClient(address, timeout_s=30) as client:
        yield client
    server.close_tasks()
    server.shutdown()


def rows(value: bytes) -> pa.RecordBatch:
    columns = [[KEY], [bytes(8) + value], [0], [EMIT_NOTHING], [None], [None]]
    return pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def stage(client: StoreClient, epoch: int, value: bytes) -> None:
    """Attempt 1 of batch 0, complete."""
    reading = client.read("q-0", epoch=epoch, batch=0)
    _, token = reading.states(pa.array([KEY]))
    reading.close()
    writing = client.write("q-0", epoch=epoch, batch=0, attempt=1, token=token)
    writing.add(rows(value))
    assert writing.close() == 1


def commit(client: StoreClient, epoch: int) -> bool:
    return client.commit("q-0", epoch=epoch, batch=0, attempt=1, plan="p", ends={})["committed_now"]


def stored(client: StoreClient, epoch: int) -> bytes | None:
    states, _ = client.read("q-0", epoch=epoch, batch=1).states(pa.array([KEY]))
    return states[0].as_py()


def test_an_older_driver_cannot_commit_an_attempt_of_the_newer(world: TaskWorld, client: StoreClient) -> None:
    older = world.start_driver()
    client.open_task(world.spec, older)
    stage(client, older, b"older")
    newer = world.start_driver()
    client.open_task(world.spec, newer)
    # Of the same number as the older one's, since every driver counts its attempts from 0.
    stage(client, newer, b"newer")
    for request in (
        lambda: commit(client, older),
        lambda: stage(client, older, b"older"),
        lambda: client.open_task(world.spec, older),
    ):
        with pytest.raises(Fenced, match="a newer driver"):
            request()
    assert commit(client, newer) is True
    assert stored(client, newer) == bytes(8) + b"newer"


def test_a_task_waits_for_the_driver_that_opens_it(world: TaskWorld, client: StoreClient) -> None:
    older = world.start_driver()
    client.open_task(world.spec, older)
    with pytest.raises(Unavailable, match="still an older driver's"):
        stage(client, older + 1, b"newer")


def test_a_pipeline_that_was_dropped_and_deployed_again_begins_with_small_epochs(
    world: TaskWorld, client: StoreClient, kafka: str, tmp_path: Path
) -> None:
    world.start_driver()
    newest = world.start_driver()
    client.open_task(world.spec, newest)
    again = TaskWorld(kafka, f"{world.spec.pipeline}-again", tmp_path / "again", None)
    epoch = again.start_driver()
    assert epoch < newest and again.spec.name == world.spec.name
    # Its batches topic is another one: who was first there says nothing here.
    client.open_task(replace(again.spec, pipeline=world.spec.pipeline), epoch)
    stage(client, epoch, b"again")
    assert commit(client, epoch)
    assert stored(client, epoch) == bytes(8) + b"again"
    again.close()


def test_a_task_of_another_pipeline_is_not_taken_for_one_s_own(
    world: TaskWorld, client: StoreClient, kafka: str, tmp_path: Path
) -> None:
    epoch = world.start_driver()
    client.open_task(world.spec, epoch)
    other = TaskWorld(kafka, f"{world.spec.pipeline}-other", tmp_path / "other", None)
    assert (epoch, world.spec.name) == (other.start_driver(), other.spec.name)
    with pytest.raises(InvalidConfig, match="of another pipeline"):
        client.open_task(other.spec, epoch)
    assert not client.close_task(other.spec, epoch)
    with StoreClient(tmp_path / "s.sock", pipeline=other.spec.pipeline, timeout_s=30) as others:
        for request in (
            lambda: commit(others, epoch),
            lambda: stage(others, epoch, b"other"),
            lambda: others.snapshot("q-0"),
        ):
            with pytest.raises(Unavailable, match="not on this server"):
                request()
        with pytest.raises(Unavailable, match="not on this server"):
            list(others.entries("q-0", isolation="read_committed"))
    stage(client, epoch, b"own")
    assert commit(client, epoch)
    assert client.close_task(world.spec, epoch)
    client.open_task(other.spec, epoch)
    other.close()


def test_a_task_is_let_go_for_its_driver_and_newer_ones(world: TaskWorld, client: StoreClient) -> None:
    older = world.start_driver()
    newer = world.start_driver()
    client.open_task(world.spec, newer)
    assert not client.close_task(world.spec, older)
    assert client.close_task(world.spec, newer)
    assert not client.close_task(world.spec, newer)
    with pytest.raises(Unavailable, match="not on this server"):
        commit(client, newer)
    client.open_task(world.spec, newer)
    stage(client, newer, b"again")
    assert commit(client, newer)


def test_where_kafka_was_put_back_the_newest_driver_may_have_the_smaller_epoch(
    world: TaskWorld, client: StoreClient
) -> None:
    _, _, lost = (world.start_driver() for _ in range(3))
    client.open_task(world.spec, lost)
    stage(client, lost, b"lost")
    world.admin.delete([world.batches.name])
    world.admin.await_gone(world.batches.name)
    world.admin.create(world.batches.name, partitions=world.spec.tasks + 1, settings=COMPACT)
    older, newest = world.start_driver(), world.start_driver()
    assert newest < lost
    with pytest.raises(Fenced, match="a newer driver"):
        client.open_task(world.spec, older)
    client.open_task(world.spec, newest)
    stage(client, newest, b"newest")
    with pytest.raises(Unavailable):
        commit(client, lost)
    # It opens the task then, and must not take it from its owner, here or on a server where nobody has it.
    with pytest.raises(Fenced, match="kafka has lost this driver's start"):
        client.open_task(world.spec, lost)
    with pytest.raises(Fenced, match="kafka has lost this driver's start"):
        Task(world.spec, lost, world.kafka, RocksConfig(), transactions=True).open()
    assert commit(client, newest)
    assert stored(client, newest) == bytes(8) + b"newest"
