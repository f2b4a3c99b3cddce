"""How much CPU a full replay takes: a changelog on a real broker, read and built into a new database."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from infra.stack import Stack
from statestore.config import KafkaConfig, RocksConfig
from statestore.kafka.admin import Admin
from statestore.kafka.reader import Reader
from statestore.listener import RestoreListener, Restoring
from statestore.load import beside, load
from statestore.rebuild import stored_entries
from tests.benchmarks.storework import Keys
from tests.benchmarks.topics import in_batches, produce

TOPIC = "changelog"


def replayed(keys: Keys, rounds: int) -> tuple[float, float]:
    """CPU and wall seconds of this process for one record a key, with values of 100 bytes, half of which compress."""
    with tempfile.TemporaryDirectory(prefix="rollforward-bench-") as name:
        stack = Stack(Path(name) / "stack")
        servers = stack.up(components=["kafka"]).bootstrap_servers or ""
        try:
            _fill(servers, keys)
            found = [_replay(servers, Path(name) / str(number), keys.count) for number in range(rounds)]
        finally:
            stack.down(wipe=True)
    return min(found)


def _fill(servers: str, keys: Keys) -> None:
    Admin(KafkaConfig(servers)).create(TOPIC, partitions=1, settings={})
    now_ms = time.time_ns() // 1_000_000
    records = ((key, os.urandom(50) + bytes(50), now_ms) for batch in keys.shuffled() for key in batch)
    produce(servers, TOPIC, in_batches(records))


def _replay(servers: str, folder: Path, count: int) -> tuple[float, float]:
    rocks = RocksConfig()
    cpu, wall = time.process_time(), time.monotonic()
    with beside(folder, rocks) as database:
        records = load(
            database,
            Reader(KafkaConfig(servers)),
            Restoring("store", TOPIC, 0, 0, count),
            lambda piece: {"store": stored_entries(piece)},
            RestoreListener(),
            piece_bytes=rocks.write_buffer_bytes,
        )
    spent = time.process_time() - cpu, time.monotonic() - wall
    assert records == count
    return spent
