"""One task against the real broker, without Spark: owned, written, snapshotted, killed, recovered."""

from __future__ import annotations

import shutil
import struct
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from statestore.batches import (
    DONE,
    DRIVER,
    PLANNED,
    POSITION,
    BatchesLog,
    Order,
    Planned,
    Position,
    Range,
    encode,
    encode_fields,
)
from statestore.config import KafkaConfig, ObjectsConfig, RocksConfig, SnapshotConfig, StoreSpec, TaskSpec
from statestore.kafka.admin import Admin, Topic
from statestore.kafka.producer import TransactionalProducer
from statestore.kafka.reader import Reader
from statestore.layouts.window import pack
from statestore.objects.base import ObjectStore
from statestore.partitioner import tasks_of
from statestore.placement import Placement
from statestore.snapshots.repository import Repository
from statestore.snapshots.restore import restore_snapshot
from statestore.snapshots.schedule import Snapshotter
from statestore.snapshots.service import Snapshots
from statestore.staging import EMIT_NOTHING, SCHEMA
from statestore.store import Isolation
from statestore.task import Opened, Task
from statestore.travel.cut import Cut, look_back
from statestore.travel.past import OutOfReach
from statestore.travel.rewrite import Rewrite, Rewritten
from statestore.version import ChangelogPosition, TaskDatabase

COMPACT = {"cleanup.policy": "compact", "message.timestamp.type": "CreateTime"}
# Small memtables, so that small tests have several table files.
ROCKS = RocksConfig(write_buffer_bytes=64 * 1024, block_cache_bytes=1024 * 1024)
PLAN = "plan"
_TIME = struct.Struct(">q")
Changes = Mapping[bytes, bytes | None]


def config_of(folder: Path, **changed: object) -> SnapshotConfig:
    """Snapshots in a folder, taken only when asked for and collected at once."""
    base = SnapshotConfig(
        ObjectsConfig(folder.absolute().as_uri()),
        interval_s=0,
        changelog_records=0,
        keep=1,
        retention_s=0,
        minimum_age_s=0.002,
        pin_life_s=0.001,
    )
    return replace(base, **changed)  # type: ignore[arg-type]


class TaskWorld:
    """Topics of one task, and whoever owns it. `objects` stands in for the configured object store."""

    def __init__(
        self,
        kafka: str,
        name: str,
        folder: Path,
        snapshots: SnapshotConfig | None,
        *,
        objects: ObjectStore | None = None,
        changelog: Mapping[str, str] = COMPACT,
        number: int = 0,
        tasks: int = 1,
        rocks: RocksConfig = ROCKS,
    ) -> None:
        self.rocks = rocks
        self.kafka = KafkaConfig(kafka, request_timeout_s=20)
        self.admin = Admin(self.kafka)
        self.reader = Reader(self.kafka)
        self.batches = self._topic(f"{name}-q-batches", tasks + 1, COMPACT)
        changes = self._topic(f"{name}-s-changelog", tasks, changelog)
        self._topic(f"{name}-out", 1, COMPACT)
        store = StoreSpec("s", changes.name, changes.topic_id)
        self.spec = TaskSpec(
            name, "q", number, tasks, self.batches.name, f"{name}-out", f"{name}-out", store, folder / str(number)
        )
        self.config = snapshots
        self.snapshots = None if snapshots is None else Snapshots(snapshots, objects)
        self.log = BatchesLog(self.reader, self.batches.name, tasks=tasks)
        self.task: Task | None = None
        self.snapshotter: Snapshotter | None = None
        if snapshots is not None:
            self.snapshotter = Snapshotter(snapshots, lambda: [] if self.task is None else [self.task])

    def _topic(self, name: str, partitions: int, settings: Mapping[str, str]) -> Topic:
        return self.admin.create(name, partitions=partitions, settings=settings)

    # Owning.

    def start_driver(self) -> int:
        """Become the newest driver; gives the epoch."""
        producer = TransactionalProducer(self.kafka, f"{self.spec.pipeline}-q-driver")
        producer.init()
        offsets: list[int] = []
        producer.begin()
        producer.produce(
            self.batches.name,
            key=DRIVER,
            value=encode_fields(started_at=time.time()),
            partition=self.spec.tasks,
            on_offset=offsets.append,
        )
        producer.flush()
        producer.commit()
        producer.close()
        return offsets[0]

    def open(self) -> Opened:
        """A new driver's server owns the task; gives how its recovery went."""
        self.close()
        self.task = Task(
            self.spec, self.start_driver(), self.kafka, self.rocks, transactions=True, snapshots=self.snapshots
        )
        return self.task.open()

    def close(self) -> None:
        """Release the task."""
        if self.task is not None:
            self.task.close()
            self.task = None

    @property
    def running(self) -> Task:
        """The open task."""
        assert self.task is not None
        return self.task

    # Writing.

    def commit(self, changes: Mapping[bytes, bytes]) -> int:
        """Stage and commit the next batch; gives its number."""
        batch = self.running.committed_batch + 1
        commit_batch(self.running, batch, changes, plan=PLAN, ends={"0": batch + 1})
        return batch

    def commit_elsewhere(self, changes: Changes, *, epoch: int = 0) -> int:
        """Commit the next batch in Kafka alone, as an owner whose disk is gone did. None deletes a key."""
        self.close()
        producer = TransactionalProducer(self.kafka, self.spec.transactional_id)
        producer.init()
        before = self.log.position(self.spec.number)
        batch = 0 if before is None else before.batch + 1
        offsets = [0 if before is None else before.stores["s"].offset]
        producer.begin()
        now = time.time_ns() // 1_000_000
        for key, value in changes.items():
            producer.produce(
                self.spec.store.changelog_topic,
                key=key,
                value=value,
                partition=self.spec.number,
                timestamp_ms=now,
                on_offset=lambda offset: offsets.append(offset + 1),
            )
        producer.flush()
        at = {"s": ChangelogPosition(self.spec.store.changelog_topic_id, max(offsets))}
        producer.produce(
            self.batches.name,
            key=POSITION,
            value=encode(Position(batch, epoch, PLAN, at, {"0": batch + 1})),
            partition=self.spec.number,
        )
        producer.commit()
        producer.close()
        return batch

    def finish(self, batch: int, ends: Mapping[str, int] | None = None) -> None:
        """Say that a batch is planned and done, as the driver does."""
        producer = TransactionalProducer(self.kafka, f"{self.spec.pipeline}-q-driver")
        producer.init()
        producer.begin()
        planned = encode(Planned(batch, PLAN, self._ranges(ends or {"0": batch + 1})))
        for key, value in ((PLANNED, planned), (DONE, encode_fields(batch=batch))):
            producer.produce(self.batches.name, key=key, value=value, partition=self.spec.tasks)
        producer.commit()
        producer.close()

    def _ranges(self, ends: Mapping[str, int]) -> tuple[Range, ...]:
        """Any topic that exists is good enough as the source."""
        return tuple(Range(self.spec.output_topic, "id", int(p), end, end) for p, end in ends.items())

    # The past.

    def rewrite(self, batch: int, folder: Path) -> Rewritten:
        """Make the version at `batch` the committed one."""
        self.close()
        rewrite = Rewrite(
            self.kafka, f"{self.spec.pipeline}-q-driver", [self.spec], plan=PLAN, snapshots=self.snapshots
        )
        rewrite.take()
        cut = self.look_back(batch=batch)
        _, database = cut.tasks[0].build(batch, folder, self.rocks, pin_life_s=600)
        try:
            before = rewrite.own({}).planned
            assert before is not None
            planned = Planned(before.batch + 1, PLAN, self._ranges(cut.ends()))
            entries = {self.spec.number: Placement(self.spec.store).scan(database.database)}
            orders = None if self.spec.store.retention_ms is None else cut.orders()
            return rewrite.commit(entries, planned, {}, f"{self.spec.pipeline}-q", orders=orders)[0]
        finally:
            rewrite.close()
            database.close()
            shutil.rmtree(folder)

    def look_back(self, *, batch: int | None = None, at_ms: int | None = None, any_timeline: bool = False) -> Cut:
        """What is known of a batch or a time."""
        about = (self.reader, self.admin, self.snapshots)
        return look_back([self.spec], *about, batch=batch, at_ms=at_ms, any_timeline=any_timeline)

    def past(self, folder: Path, *, batch: int | None = None, at_ms: int | None = None) -> dict[bytes, bytes]:
        """What could be read of the store at a batch or a time, built in `folder`, without times."""
        cut = self.look_back(batch=batch, at_ms=at_ms)
        try:
            _, database = cut.tasks[0].build(cut.batch, folder, self.rocks, pin_life_s=600)
        except OutOfReach as error:
            raise cut.out_of_reach(error) from error
        order = cut.order(self.spec.number)
        now = -1 if order is None else order.stream_time_ms
        try:
            return dict(self._plain(Placement(self.spec.store).scan(database.database, stream_time_ms=now)))
        finally:
            database.close()
            shutil.rmtree(folder)

    # Snapshots.

    def snapshot(self) -> dict[str, object]:
        """Take one now."""
        assert self.snapshotter is not None
        return self.snapshotter.take(self.running)

    @property
    def repository(self) -> Repository:
        """The task's snapshots, whoever owns it."""
        assert self.snapshots is not None
        return self.snapshots.repository(self.spec, self.batches.topic_id)

    # Looking.

    def entries(self) -> dict[bytes, bytes]:
        """What can be read of the store, without times."""
        return dict(self._plain(self.running.entries(None, None, Isolation.READ_COMMITTED)))

    @staticmethod
    def _plain(entries: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        return ((key, value[8:]) for key, value in entries)

    def restored(self, batch: int, folder: Path) -> dict[bytes, bytes]:
        """What the snapshot of a batch holds, restored for real."""
        manifest = self.repository.read(batch)
        restore_snapshot(self.repository, manifest, folder, pin_life_s=3600)
        database = TaskDatabase(folder, ["s"], self.rocks)
        try:
            checkpoint = database.checkpoint()
            assert checkpoint is not None
            assert (manifest.batch, manifest.stores) == (checkpoint.batch, checkpoint.stores)
            return dict(self._plain(database.database.scan("s")))
        finally:
            database.close()


def commit_batch(
    task: Task,
    batch: int,
    changes: Mapping[bytes, bytes],
    *,
    plan: str,
    ends: Mapping[str, int],
    order: Order | None = None,
) -> None:
    """Stage and commit a batch of a running task, as the engine does."""
    staged = task.begin_stage(batch=batch, attempt=1, token=task.token, order=order)
    now = time.time_ns() // 1_000_000
    keys, count = list(changes), len(changes)
    columns = [
        pa.array(keys, pa.binary()),
        pa.array([_TIME.pack(now) + changes[key] for key in keys], pa.binary()),
        pa.array([now] * count, pa.int64()),
        pa.array([EMIT_NOTHING] * count, pa.int8()),
        pa.nulls(count, pa.binary()),
        pa.nulls(count, pa.string()),
    ]
    rows = pa.record_batch(columns, schema=SCHEMA)
    task.check_stage(rows)
    staged.add(rows)
    task.close_stage(staged)
    assert task.commit(batch=batch, attempt=1, plan=plan, ends=ends)


def stage_windows(task: Task, windows: Mapping[tuple[bytes, int], bytes], order: Order | None) -> int:
    """Stage the next batch of a task with windows: state and result of each key and start. Gives the batch's number."""
    batch = task.committed_batch + 1
    staged = task.begin_stage(batch=batch, attempt=1, token=task.token, order=order)
    rows = window_rows(windows)
    task.check_stage(rows)
    staged.add(rows)
    task.close_stage(staged)
    return batch


def window_rows(windows: Mapping[tuple[bytes, int], bytes]) -> pa.RecordBatch:
    """Rows that set state and result of each key and start."""
    count = len(windows)
    columns = [
        pa.array([pack(key, start) for key, start in windows], pa.binary()),
        pa.array([start.to_bytes(8, "big") + value for (_, start), value in windows.items()], pa.binary()),
        pa.array([start for _, start in windows], pa.int64()),
        pa.array([1] * count, pa.int8()),
        pa.array(list(windows.values()), pa.binary()),
        pa.nulls(count, pa.string()),
    ]
    return pa.record_batch(columns, schema=SCHEMA)


def keys_of(number: int, tasks: int, count: int, prefix: bytes = b"key") -> list[bytes]:
    """The first `count` keys of the form prefix-and-number that belong to a task."""
    found: list[bytes] = []
    at = 0
    while len(found) < count:
        keys = [b"%s-%08d" % (prefix, n) for n in range(at, at + 10_000)]
        mine = tasks_of(pa.array(keys, pa.binary()), tasks) == number
        found += [key for key, is_mine in zip(keys, mine, strict=True) if is_mine]
        at += 10_000
    return found[:count]
