"""A task with a store of every kind that is loaded from files, and neighbours that are not; as a module, its child.

`python -m tests.support.loading <bootstrap> <application> <folder> <mechanism>` opens the task and closes it.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from statestore import restore
from statestore.config import KafkaConfig, RocksConfig, StreamConfig
from statestore.context import RecordContext, StoreVersion
from statestore.kafka import blocks
from statestore.kafka.admin import Admin
from statestore.kinds.base import Kind
from statestore.kinds.key_value import KeyValue
from statestore.kinds.list_value import ListValue
from statestore.kinds.session import Session
from statestore.kinds.timestamped import TimestampedKeyValue
from statestore.kinds.timestamped_window import TimestampedWindow
from statestore.kinds.versioned import Versioned
from statestore.kinds.window import Window
from statestore.layouts.timestamped import pack
from statestore.store import TransactionalMechanism
from statestore.streamtask import StreamTask
from statestore.windows import Windowed

RECORDS = 2_000
# So many are loaded already, and are read in blocks of so many.
MANY, BLOCK = 1_000, 100
STEP_MS = 50
# Many segments expire on the way, and some records come too late.
RETENTION_MS, SEGMENT_MS, LATEST_MS = 30_000, 10_000, 60_000
# Small memtables, and blocks, so that each store is loaded from several files.
ROCKS = RocksConfig(write_buffer_bytes=16 * 1024, block_cache_bytes=1024 * 1024)
MECHANISMS = ["direct", *(mechanism.value for mechanism in TransactionalMechanism)]
LOADED = ("plain", "timestamped", "lists", "windows", "duplicates", "timed", "sessions")
State = dict[str, list[tuple[Any, bytes]]]


def config_for(bootstrap: str, application: str, folder: Path) -> StreamConfig:
    """Positions are in the changelogs, so that a restored one can be compared."""
    return StreamConfig(
        application,
        KafkaConfig(bootstrap),
        (f"{application}-in",),
        0,
        folder,
        commit_interval_ms=3_600_000,
        rocks=ROCKS,
        positions_in_changelog=True,
    )


class Loading:
    """The task. What it writes depends on the number of the record alone."""

    def __init__(self, config: StreamConfig, mechanism: str, *, begin_ms: int = 0) -> None:
        self.config, self.begin_ms = config, begin_ms
        self.stores: dict[str, Kind] = {store.name: store for store in _stores(mechanism)}
        self.task = StreamTask(config, list(self.stores.values()))

    def write(self, count: int) -> None:
        """So many records more, and a commit."""
        first = self.task.next_offset(self.config.inputs[0])
        for number in range(first, first + count):
            self._record(number)
            if number % 500 == 0:
                self.task.commit()
        self.task.commit()

    def _record(self, number: int) -> None:
        choose = random.Random(number)
        now_ms = self.begin_ms + number * STEP_MS
        self.task.take(RecordContext(self.config.inputs[0], 0, number, now_ms))
        key = b"%d" % choose.randrange(400)
        value = None if choose.random() < 0.1 else b"%d:" % number + choose.randbytes(choose.randrange(40))
        at_ms = now_ms - (choose.randrange(LATEST_MS) if choose.random() < 0.2 else 0)
        of: Any = self.stores
        of["plain"].put(key, value)
        of["timestamped"].put(key, value and pack(value, at_ms))
        of["lists"].put(key, value and value[:6])
        of["windows"].put(key, value, at_ms - at_ms % 1_000)
        of["duplicates"].put(key[:1], value, at_ms - at_ms % 1_000)
        of["timed"].put(key, value and pack(value, at_ms), at_ms - at_ms % 1_000)
        of["sessions"].put(Windowed(key, at_ms - choose.randrange(2_000), at_ms), value)
        if number < 300:
            of["unlogged"].put(b"%d" % number, b"kept")
            of["versioned"].put(key, value, now_ms)

    def state(self) -> State:
        """Everything in every store."""
        return {name: list(_entries(store)) for name, store in self.stores.items()}

    def versions(self) -> dict[str, tuple[object, ...]]:
        """What each store that is loaded stands at."""
        return {name: _comparable(self.stores[name].committed_version) for name in LOADED}


def _comparable(version: StoreVersion) -> tuple[object, ...]:
    return version.layout, version.offset, version.topic_id, version.stream_time_ms, version.position


def _entries(store: Any) -> Iterator[tuple[Any, bytes]]:
    if isinstance(store, Versioned):
        return ((b"%d" % number, repr(store.get(b"%d" % number)).encode()) for number in range(400))
    return iter(store.fetch_range(None, None) if isinstance(store, Session) else store.all())


def _stores(named: str) -> list[Kind]:
    mechanism = None if named == "direct" else TransactionalMechanism(named)
    lengths: Any = {"retention_ms": RETENTION_MS, "segment_interval_ms": SEGMENT_MS, "mechanism": mechanism}
    return [
        KeyValue("plain", mechanism=mechanism),
        TimestampedKeyValue("timestamped", mechanism=mechanism),
        ListValue("lists", mechanism=mechanism),
        Window("windows", window_size_ms=1_000, **lengths),
        Window("duplicates", window_size_ms=1_000, retain_duplicates=True, **lengths),
        TimestampedWindow("timed", window_size_ms=1_000, **lengths),
        Session("sessions", **lengths),
        Versioned("versioned", history_retention_ms=3_600_000, mechanism=mechanism),
        KeyValue("unlogged", mechanism=mechanism, logged=False),
    ]


def create_input(config: StreamConfig) -> None:
    """The topic must exist; its records are made up."""
    Admin(config.kafka).create(config.inputs[0], partitions=1, settings={})


def main() -> None:
    bootstrap, application, folder, mechanism = sys.argv[1:]
    restore.LOAD_RECORDS_MIN = MANY  # type: ignore[attr-defined]
    blocks.BLOCK_RECORDS = BLOCK
    loading = Loading(config_for(bootstrap, application, Path(folder)), mechanism)
    loading.task.open()
    loading.task.close()


if __name__ == "__main__":
    main()
