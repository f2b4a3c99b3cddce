"""`make bench-recovery`: how long an empty disk takes to come back, beside a full replay and Kafka Streams.

    make bench-recovery                               1,000,000 keys
    make bench-recovery BENCH='--keys 10000000'
    make bench-recovery BENCH='--keys 1000000 --rounds 3'

One query with four tasks in two store servers, keys of 16 bytes and states of 100, on the broker and the S3 server of a
local stack of its own. Each round recovers the same stores on an empty disk from snapshots in a folder, from snapshots
in S3, and from the whole changelog; Kafka Streams restores the same changelog, with two threads. Times are from the
first task that begins to the last that ends, so that no process's start counts. Then one key in a hundred changes and a
second snapshot is taken, and a task commits beside a snapshot and without one. Figures go to docs/benchmarks.json.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from infra.stack import Stack
from ops.environment import cache_folder
from pipelines.engine.servers import StoreServers
from statestore.config import ObjectsConfig, RocksConfig, SnapshotConfig
from statestore.planning.plan import Way
from tests.benchmarks import document, report
from tests.benchmarks.__main__ import DOCS, shared_versions, tell
from tests.benchmarks.systems import SYSTEMS
from tests.benchmarks.systems.kafka_streams import HEAP
from tests.java import programs
from tests.support.task import TaskWorld, keys_of

TASKS, SERVERS = 4, 2
BATCH = 250_000
VALUE = 100
NAME = "bench"
UNITS = {"seconds": "s", "estimated_seconds": "s", "uploaded_percent": "%", "loss_percent": "%"}
Figures = dict[str, float]


def value() -> bytes:
    """Half of it compresses, as rows of counters and texts do."""
    return os.urandom(VALUE // 2) + b"x" * (VALUE // 2)


class Stores:
    """The four tasks: filled by this process, then owned by store servers."""

    def __init__(self, kafka: str, folder: Path, keys: int) -> None:
        self.folder = folder
        self.kafka = kafka
        self.worlds = [
            TaskWorld(kafka, NAME, folder / "state", None, number=n, tasks=TASKS, rocks=RocksConfig())
            for n in range(TASKS)
        ]
        self.keys = [keys_of(number, TASKS, keys // TASKS) for number in range(TASKS)]
        self.worlds[0].admin.create(f"{NAME}-in", partitions=TASKS, settings={})

    def fill(self) -> None:
        """Commit the keys in random order, as a stream meets them."""
        for world, keys in zip(self.worlds, self.keys, strict=True):
            self._commit(world, random.Random(1).sample(keys, len(keys)))

    def change(self, share: float) -> None:
        """Commit new values of so many of the keys."""
        for world, keys in zip(self.worlds, self.keys, strict=True):
            self._commit(world, random.Random(2).sample(keys, int(len(keys) * share)))

    def _commit(self, world: TaskWorld, keys: list[bytes]) -> None:
        world.open()
        for start in range(0, len(keys), BATCH):
            world.commit({key: value() for key in keys[start : start + BATCH]})
        world.close()

    @contextmanager
    def served(self, objects: ObjectsConfig | None) -> Iterator[tuple[StoreServers, list[dict[str, Any]]]]:
        """Servers that own all tasks, and how each was opened."""
        config = None if objects is None else SnapshotConfig(objects, interval_s=0, changelog_records=0)
        servers = StoreServers(
            NAME,
            SERVERS,
            self.folder / "state",
            self.worlds[0].kafka,
            transactions=True,
            log_file=self.folder / "servers.log",
            snapshots=config,
        )
        opened: list[dict[str, Any]] = []
        servers.on_opened = lambda _cause, one: opened.append({**one, "ended": time.monotonic()})
        # Servers that have nothing to own yet are up before the clock starts.
        servers.ensure("bench")
        servers.assign([world.spec for world in self.worlds], self.worlds[0].start_driver())
        servers.ensure("bench")
        try:
            yield servers, opened
        finally:
            servers.close()

    def recovered(self, objects: ObjectsConfig | None, way: Way) -> Figures:
        """Recover on an empty disk; every task must go the way."""
        for world in self.worlds:
            # The speeds that were measured stay: a machine knows them when it loses its stores.
            shutil.rmtree(world.spec.folder)
        with self.served(objects) as (_, opened):
            assert {one["way"] for one in opened} == {way.value}, opened
            seconds = max(o["ended"] for o in opened) - min(o["ended"] - o["seconds"] for o in opened)
            estimate = max(o["estimated_seconds"] for o in opened)
        return {"seconds": seconds, "estimated_seconds": estimate}

    def snapshot(self, objects: ObjectsConfig) -> tuple[float, float]:
        """Take one of every task; gives the bytes uploaded and the bytes named."""
        with self.served(objects) as (servers, _):
            taken = servers.snapshot()
        assert len(taken) == TASKS
        return sum(t["uploaded_bytes"] for t in taken), sum(t["referenced_bytes"] for t in taken)


def loss_percent(stores: Stores, folder: Path) -> float:
    """By how much slower a task commits while a snapshot of it is taken, of two servers' worth of cores."""
    objects = ObjectsConfig(folder.as_uri())
    config = SnapshotConfig(objects, interval_s=0, changelog_records=0)
    world = TaskWorld(stores.kafka, NAME, stores.folder / "state", config, number=0, tasks=TASKS, rocks=RocksConfig())
    world.open()
    keys, dice = stores.keys[0], random.Random(3)

    def commit() -> float:
        batch = {key: value() for key in dice.sample(keys, min(20_000, len(keys)))}
        began = time.monotonic()
        world.commit(batch)
        return time.monotonic() - began

    alone, beside = [], []
    for number in range(15):
        # An empty storage each time: all bytes are uploaded.
        shutil.rmtree(folder, ignore_errors=True)
        alone += [commit() for _ in range(4)]
        taking = threading.Thread(target=world.snapshot, name=f"snapshot-{number}")
        taking.start()
        while taking.is_alive():
            beside.append(commit())
        taking.join()
    world.close()
    return 100 * (1 - statistics.mean(alone) / statistics.mean(beside))


def kafka_streams(stores: Stores, command: list[str]) -> Figures:
    """Kafka Streams restores the same changelog."""
    state = stores.folder / "streams"
    shutil.rmtree(state, ignore_errors=True)
    done = subprocess.run([*command, stores.kafka, NAME, str(state)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"kafka streams did not restore\n{done.stderr[-3000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["records"] >= sum(map(len, stores.keys)), found
    return {"seconds": found["seconds"]}


def measure(keys: int, rounds: int, folder: Path, stack: Stack) -> dict[str, dict[str, list[Figures]]]:
    """All figures, by workload and system."""
    status = stack.status()
    s3 = ObjectsConfig(
        "s3://rollforward/bench",
        endpoint_url=status.s3_endpoint or "",
        region="us-east-1",
        addressing="path",
        credentials_file=str(stack.s3.credentials_file),
    )
    places = {"local": ObjectsConfig((folder / "objects").as_uri()), "s3": s3}
    stores = Stores(status.bootstrap_servers or "", folder, keys)
    # The same heap as in the other benchmarks.
    command = programs.command("KafkaStreamsRestore", f"-Xmx{HEAP}", cache=cache_folder())
    tell(f"filling {keys:,} keys")
    stores.fill()
    for objects in places.values():
        stores.snapshot(objects)
    found: dict[str, dict[str, list[Figures]]] = {
        f"recover-empty-disk-{keys}-{name}": {"rollforward": [], "full-replay": [], "kafka-streams": []}
        for name in places
    }
    # One more than is counted: the first measures the speeds that later estimates use.
    for number in range(rounds + 1):
        tell(f"round {number} of {rounds}")
        both = {"full-replay": stores.recovered(None, Way.FULL_REPLAY), "kafka-streams": kafka_streams(stores, command)}
        for name, objects in places.items():
            round_of = {**both, "rollforward": stores.recovered(objects, Way.SNAPSHOT)}
            tell(f"{name}: " + ", ".join(f"{system} {f['seconds']:.2f} s" for system, f in round_of.items()))
            if number > 0:
                for system, figures in round_of.items():
                    found[f"recover-empty-disk-{keys}-{name}"][system].append(figures)
    stores.change(0.01)
    for name, objects in places.items():
        uploaded, referenced = stores.snapshot(objects)
        found[f"recover-empty-disk-{keys}-{name}"]["rollforward"][0]["uploaded_percent"] = 100 * uploaded / referenced
    loss = loss_percent(stores, folder / "loss")
    found[f"recover-empty-disk-{keys}-local"]["rollforward"][0]["loss_percent"] = loss
    return found


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        prog="make bench-recovery", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--docs", type=Path, default=DOCS, help="folder of benchmarks.json and benchmarks.md")
    arguments = parser.parse_args()
    command = f"make bench-recovery BENCH='{shlex.join(sys.argv[1:])}'"
    with tempfile.TemporaryDirectory(prefix="bench-recovery-") as name:
        stack = Stack(Path(name) / "stack")
        stack.up(components=["kafka", "s3"])
        try:
            found = measure(arguments.keys, arguments.rounds, Path(name), stack)
        finally:
            stack.down(wipe=True)
    path = arguments.docs / "benchmarks.json"
    streams = {"kafka-streams": SYSTEMS["kafka-streams"].version(), **shared_versions()}
    versions = {"rollforward": shared_versions(), "full-replay": shared_versions(), "kafka-streams": streams}
    for workload, systems in found.items():
        rows = report.rows_of(workload, systems, units=UNITS, command=command, versions=versions)
        report.write(path, report.merged(report.read(path), rows))
    document.update(arguments.docs)


if __name__ == "__main__":
    main()
