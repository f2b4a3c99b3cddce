"""What `stores` measures: the kinds of work, done by a mechanism and by plain rocksdict, and the keys they are done with.

Keys are of 16 bytes, values of 100, batches of 10,000. No list of all keys is ever made, so that ten million of them fit
beside the databases; what making a batch takes is not counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt
import rocksdict as rd

from statestore.config import RocksConfig
from statestore.context import ChangelogRecord
from statestore.kinds.key_value import KeyValue
from statestore.kinds.session import Session
from statestore.kinds.window import Window
from statestore.layouts import session
from statestore.rocks.options import rocks_options
from statestore.store import Entry, TransactionalMechanism
from statestore.taskstores import TaskStores

BATCH = 10_000
VALUE = bytes(range(100))
MINUTE_MS = 60_000
PLAIN = "plain rocksdict"
SYSTEMS: dict[str, TransactionalMechanism | None] = {
    "not transactional": None,
    "INDEXED_BATCH": TransactionalMechanism.INDEXED_BATCH,
    "AUTO": TransactionalMechanism.AUTO,
    "SECONDARY_STORE": TransactionalMechanism.SECONDARY_STORE,
}
# One in so many keys is read, or has windows: a read costs more than a write, and its cost does not depend on how many.
GET_SHARE, WINDOW_SHARE, RESTORE_SHARE = 5, 10, 5
WINDOWS = 10
_DIGITS = 16
_TENS = 10 ** np.arange(_DIGITS - 1, -1, -1, dtype=np.int64)
T = TypeVar("T")


class Meter:
    """CPU and wall seconds of what is done inside, without what `apart` spends: RocksDB's threads count all the time."""

    def __enter__(self) -> Self:
        self._apart_cpu = self._apart_wall = 0.0
        self._cpu, self._wall = time.process_time(), time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self.spent = (
            time.process_time() - self._cpu - self._apart_cpu,
            time.monotonic() - self._wall - self._apart_wall,
        )

    def apart(self, made: Iterator[T]) -> Iterator[T]:
        """The same, made by this thread at nobody's cost."""
        while True:
            cpu, wall = time.thread_time(), time.monotonic()
            one = next(made, None)
            self._apart_cpu += time.thread_time() - cpu
            self._apart_wall += time.monotonic() - wall
            if one is None:
                return
            yield one


@dataclass(frozen=True)
class Keys:
    """`count` distinct keys. `share` of n gives every n-th of them, taken at random."""

    count: int
    numbers: npt.NDArray[np.int32] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "numbers", np.random.default_rng(1).permutation(np.int32(self.count)))

    def shuffled(self, share: int = 1) -> Iterator[list[bytes]]:
        """Batches in random order."""
        return self._batches(self.numbers[: self.count // share])

    def ascending(self, share: int = 1) -> Iterator[list[bytes]]:
        """Batches in key order."""
        return self._batches(np.sort(self.numbers[: self.count // share]))

    def _batches(self, numbers: npt.NDArray[np.int32]) -> Iterator[list[bytes]]:
        for start in range(0, len(numbers), BATCH):
            digits = numbers[start : start + BATCH].astype(np.int64)[:, None] // _TENS % 10 + ord("0")
            made: list[bytes] = digits.astype(np.uint8).view(f"S{_DIGITS}").ravel().tolist()
            yield made


Work = dict[str, Callable[[Meter], None]]


@dataclass(frozen=True)
class Made:
    """A system with its work, in the order in which it is done; `leave_open` writes a batch and does not commit it."""

    work: Work
    leave_open: Callable[[], None]
    close: Callable[[], None]


def done_by(count: int) -> dict[str, int]:
    """Kind of work -> how many entries, keys, windows or records it is, of so many keys."""
    return {
        "put and commit": count,
        "sorted get": count // GET_SHARE,
        "sorted get of many": count // GET_SHARE,
        "range": count,
        "window put and commit": count // WINDOW_SHARE * WINDOWS,
        "window fetch": count // WINDOW_SHARE,
        "restore": count // RESTORE_SHARE,
        "restore of windows": count // RESTORE_SHARE,
        "restore of sessions": count // RESTORE_SHARE,
    }


def entries(batches: Iterator[list[bytes]]) -> Iterator[list[Entry]]:
    """The keys with their values."""
    return ([(key, VALUE) for key in batch] for batch in batches)


def stored_window(key: bytes, start_ms: int) -> bytes:
    """A window's key as the stores have it."""
    return key + start_ms.to_bytes(8, "big") + bytes(4)


def _count(found: Iterator[object], expected: int) -> None:
    assert sum(1 for _ in found) == expected


def plain(folder: Path, keys: Keys) -> Made:
    """The same work by hand, with the options of our stores."""
    config = RocksConfig()
    options = rocks_options(config, rd.Cache(config.block_cache_bytes))
    # RocksDB bounds the log of a database only where it has several families, as every one of ours has.
    second = {"second": rocks_options(config, rd.Cache(config.block_cache_bytes))}
    # Its types let a key be a number, too.
    databases: list[Any] = [
        rd.Rdict(str(folder / name), options, column_families=second) for name in ("values", "windows")
    ]
    values, windows = databases

    def write(database: rd.Rdict, changes: list[Entry]) -> None:
        batch = rd.WriteBatch(raw_mode=True)
        for key, value in changes:
            batch.put(key, value)
        database.write(batch)

    def put(meter: Meter) -> None:
        for piece in meter.apart(entries(keys.shuffled())):
            write(values, piece)

    def get(meter: Meter) -> None:
        for batch in meter.apart(keys.ascending(GET_SHARE)):
            for key in batch:
                assert values.get(key)

    def get_many(meter: Meter) -> None:
        for batch in meter.apart(keys.ascending(GET_SHARE)):
            values.get(batch)

    def put_windows(meter: Meter) -> None:
        for minute in range(WINDOWS):
            for batch in meter.apart(keys.shuffled(WINDOW_SHARE)):
                write(windows, [(stored_window(key, minute * MINUTE_MS), VALUE) for key in batch])

    def fetch_windows(meter: Meter) -> None:
        for batch in meter.apart(keys.ascending(WINDOW_SHARE)):
            for key in batch:
                last, found = stored_window(key, (WINDOWS - 1) * MINUTE_MS), []
                for stored, value in windows.items(from_key=stored_window(key, 0)):
                    if stored > last:
                        break
                    found.append((int.from_bytes(stored[-12:-4], "big"), value))
                assert len(found) == WINDOWS

    def close() -> None:
        values.close()
        windows.close()

    work: Work = {
        "put and commit": put,
        "sorted get": get,
        "sorted get of many": get_many,
        "range": lambda _: _count(values.items(), keys.count),
        "window put and commit": put_windows,
        "window fetch": fetch_windows,
    }
    return Made(work, lambda: None, close)


def ours(folder: Path, keys: Keys, mechanism: TransactionalMechanism | None) -> Made:
    """A key-value store and a window store of one task, and three that are restored."""
    task = TaskStores(folder, exactly_once=False)
    lengths: dict[str, Any] = {"retention_ms": 60 * MINUTE_MS, "window_size_ms": MINUTE_MS}
    values = KeyValue("values", mechanism=mechanism, logged=False)
    windows = Window("windows", **lengths, mechanism=mechanism, logged=False)
    restored = KeyValue("restored", mechanism=mechanism)
    restored_windows = Window("restored-windows", **lengths, mechanism=mechanism)
    restored_sessions = Session("restored-sessions", retention_ms=60 * MINUTE_MS, mechanism=mechanism)
    for store in (values, windows, restored, restored_windows, restored_sessions):
        store.init(task)

    def put(meter: Meter) -> None:
        for number, piece in enumerate(meter.apart(entries(keys.shuffled()))):
            values.put_all(piece)
            values.commit(number)

    def get(meter: Meter) -> None:
        for batch in meter.apart(keys.ascending(GET_SHARE)):
            for key in batch:
                assert values.get(key)

    def get_many(meter: Meter) -> None:
        for batch in meter.apart(keys.ascending(GET_SHARE)):
            values.get_many(batch)

    def put_windows(meter: Meter) -> None:
        for minute in range(WINDOWS):
            for batch in meter.apart(keys.shuffled(WINDOW_SHARE)):
                windows.put_all((key, VALUE, minute * MINUTE_MS) for key in batch)
                windows.commit(minute)

    def fetch_windows(meter: Meter) -> None:
        for batch in meter.apart(keys.ascending(WINDOW_SHARE)):
            for key in batch:
                _count(windows.fetch(key, 0, (WINDOWS - 1) * MINUTE_MS), WINDOWS)

    def restore(store: KeyValue | Window | Session, stored: Callable[[bytes], bytes]) -> Callable[[Meter], None]:
        def run(meter: Meter) -> None:
            for number, batch in enumerate(meter.apart(keys.shuffled(RESTORE_SHARE))):
                store.restore([ChangelogRecord(store.name, stored(key), VALUE, 0) for key in batch], offset=number)

        return run

    def leave_open() -> None:
        values.put_all((key, b"uncommitted") for key in next(keys.shuffled()))

    work: Work = {
        "put and commit": put,
        "sorted get": get,
        "sorted get of many": get_many,
        "range": lambda _: _count(values.all(), keys.count),
        "window put and commit": put_windows,
        "window fetch": fetch_windows,
        "restore": restore(restored, bytes),
        "restore of windows": restore(restored_windows, lambda key: stored_window(key, MINUTE_MS)),
        "restore of sessions": restore(restored_sessions, lambda key: session.pack(key, 0, MINUTE_MS)),
    }
    return Made(work, leave_open, task.close)


def make(system: str, folder: Path, keys: Keys) -> Made:
    """A system by its name."""
    return plain(folder, keys) if system == PLAIN else ours(folder, keys, SYSTEMS[system])
