"""Changelogs of a query's store, as its store server writes and reads them, in turns with Kafka Streams, byte by byte.

The server stands where its position says, so what another program wrote counts for it from the moment that a position
names it: `adopt` writes that one.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ops.environment import cache_folder
from statestore.batches import POSITION, Order, Position, encode
from statestore.kafka.producer import TransactionalProducer
from statestore.layouts.window import unpack
from statestore.planning.plan import Way
from statestore.store import Isolation
from statestore.version import ChangelogPosition
from tests.java import programs
from tests.support.task import PLAN, TaskWorld, stage_windows

WINDOW_MS, HOUR_MS = 1_000, 3_600_000
Input = list[tuple[bytes, bytes, int]]


class Peer:
    """The Kafka Streams application of a pipeline's name, whose store is the pipeline's."""

    def __init__(self, world: TaskWorld, folder: Path, kind: str) -> None:
        self._world, self._folder, self._kind = world, folder, kind
        self._topic = f"{world.spec.pipeline}-in"
        world.admin.create(self._topic, partitions=1, settings={})
        self._java = programs.command("RawPeer", *programs.SHORT, cache=cache_folder())

    def run(self, records: Input) -> list[str]:
        """Restore the store on an empty disk, put the records, and list all of it."""
        producer = TransactionalProducer(self._world.kafka, f"{self._topic}-test")
        producer.init()
        producer.begin()
        for key, value, at_ms in records:
            producer.produce(self._topic, key=key, value=value, timestamp_ms=at_ms, partition=0)
        producer.commit()
        producer.close()
        name, servers = self._world.spec.pipeline, self._world.kafka.bootstrap_servers
        command = [*self._java, servers, name, str(self._folder), str(len(records)), self._kind]
        done = subprocess.run(command, capture_output=True, text=True, timeout=250)
        assert 0 == done.returncode, done.stderr[-3000:]
        return sorted(done.stdout.splitlines())


def line(key: bytes, start: int | str, at_ms: int, value: bytes) -> str:
    """An entry as the peer prints it."""
    return f"{key.hex()} {start} {at_ms} ={value.hex()}"


def listed(world: TaskWorld, kind: str) -> list[str]:
    """All that the task's store has, of which the first eight bytes are the time."""
    lines = []
    for stored, state in world.running.entries(None, None, Isolation.READ_COMMITTED):
        key, start = unpack(stored)[:2] if kind == "windowed" else (stored, "-")
        lines.append(line(key, start, struct.unpack_from(">q", state)[0], state[8:]))
    return sorted(lines)


def adopt(world: TaskWorld, order: Order | None) -> None:
    """Commit a position behind all that the changelog holds now."""
    world.close()
    before = world.log.position(0)
    assert before is not None
    topic = world.spec.store.changelog_topic
    at = {"s": ChangelogPosition(world.spec.store.changelog_topic_id, world.reader.begin_and_end(topic, 0)[1])}
    position = Position(before.batch + 1, before.epoch, PLAN, at, {"0": before.batch + 2}, order)
    producer = TransactionalProducer(world.kafka, world.spec.transactional_id)
    producer.init()
    producer.begin()
    producer.produce(world.batches.name, key=POSITION, value=encode(position), partition=0)
    producer.commit()
    producer.close()


def take_turns(world: TaskWorld, peer: Peer, kind: str, base_ms: int) -> None:
    """Kafka Streams restores what the open task wrote and goes on; the task takes that, and goes on in its turn."""
    ours = listed(world, kind)
    assert len(ours) > 50
    world.close()
    new, old = b"new-\x00\xff", b"key-07"
    records = [(new, b"", base_ms), (old, b"theirs", base_ms), (b"key-08", b"-", base_ms), (new, b"\x00", base_ms)]
    start = base_ms if kind == "windowed" else "-"
    expected = {text.rsplit(" ", 2)[0]: text for text in ours}
    expected.pop(f"{b'key-08'.hex()} {start}")
    for key, value in ((new, b"\x00"), (old, b"theirs")):
        expected[f"{key.hex()} {start}"] = line(key, start, base_ms, value)
    assert f"{old.hex()} {start}" in {text.rsplit(" ", 2)[0] for text in ours}, "one is replaced"
    theirs = peer.run(records)
    assert sorted(expected.values()) == theirs

    order = Order(base_ms + WINDOW_MS) if kind == "windowed" else None
    adopt(world, order)
    assert Way.ROLL_FORWARD is world.open().plan.way
    assert theirs == listed(world, kind)
    world.close()
    shutil.rmtree(world.spec.folder)
    assert Way.FULL_REPLAY is world.open().plan.way
    assert theirs == listed(world, kind)


@pytest.mark.timeout(600)
def test_a_query_s_changelog_is_kafka_streams_s(kafka: str, unique: str, tmp_path: Path) -> None:
    world = TaskWorld(kafka, unique, tmp_path / "ours", None)
    peer = Peer(world, tmp_path / "theirs", "timed")
    world.open()
    world.commit({b"key-%02d" % number: b"%d" % number for number in range(60)})
    world.commit({b"key-01": b"", b"\x00\xff\xfe": b"\x00", b"gone": b"gone"})
    world.finish(1)
    # A deletion, as the server's own tombstone.
    world.commit({b"key-02": b"again"})
    world.finish(2)
    world.rewrite(0, tmp_path / "past")
    world.open()
    world.commit({b"key-03": b"newest", b"\xff": b""})
    take_turns(world, peer, "timed", time.time_ns() // 1_000_000)
    world.close()


@pytest.mark.timeout(600)
def test_a_windowed_query_s_changelog_is_kafka_streams_s(kafka: str, unique: str, tmp_path: Path) -> None:
    world = TaskWorld(kafka, unique, tmp_path / "ours", None)
    world.spec = replace(world.spec, store=replace(world.spec.store, retention_ms=HOUR_MS))
    peer = Peer(world, tmp_path / "theirs", "windowed")
    base_ms = (time.time_ns() // 1_000_000 - 100_000) // WINDOW_MS * WINDOW_MS
    world.open()
    for number in range(3):
        starts = [base_ms, base_ms + number * WINDOW_MS]
        windows = {(b"key-%02d" % key, start): b"%d" % (key * number) for key in range(20) for start in starts}
        windows[b"", base_ms] = b""
        batch = stage_windows(world.running, windows, Order(base_ms + number * WINDOW_MS))
        assert world.running.commit(batch=batch, attempt=1, plan=PLAN, ends={"0": batch + 1})
    take_turns(world, peer, "windowed", base_ms)
    world.close()
