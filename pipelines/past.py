"""Reading a store as it was at a batch or a time of the past, beside the running pipeline.

The version is built in a folder of its own, from snapshots and the changelog, and deleted afterwards. Nothing is owned,
fenced or locked; the live stores are not touched. Folders of readers that were killed go with the next reader.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa

from pipelines.deploy import DeployedQuery
from pipelines.home import in_home
from pipelines.processes import remove_left
from pipelines.query import StoreReader, entries_of
from pipelines.settings import Settings
from statestore.config import RocksConfig, TaskSpec
from statestore.errors import InvalidInput
from statestore.kafka.admin import Admin
from statestore.kafka.reader import Reader
from statestore.placement import Placement
from statestore.snapshots.service import Snapshots
from statestore.store import Entry, Isolation
from statestore.travel.cut import Cut, look_back
from statestore.travel.past import OutOfReach
from statestore.version import TaskDatabase

Progress = Callable[[str, str], None]
_PIN_LIFE_S = 3_600.0


class PastVersion:
    """The stores of one query at one batch, task by task, built when they are first asked for."""

    def __init__(self, deployed: DeployedQuery, settings: Settings, folder: Path, cut: Cut, tell: Progress) -> None:
        self.deployed = deployed
        self.cut = cut
        self._folder = folder / deployed.query.name
        self._tell = tell
        config = settings.snapshot_config()
        self._pin_life_s = _PIN_LIFE_S if config is None else config.pin_life_s
        self._open: dict[str, TaskDatabase] = {}

    def task(self, spec: TaskSpec) -> TaskDatabase:
        """The task's store. Raises `OutOfReach` with the nearest batches that can be had."""
        if spec.name not in self._open:
            past = self.cut.tasks[spec.number]

            def progressed(done: int, total: int) -> None:
                self._tell(spec.name, f"{done:,} of {total:,}")

            folder = self._folder / str(spec.number)
            try:
                _, self._open[spec.name] = past.build(
                    self.cut.batch, folder, RocksConfig(), pin_life_s=self._pin_life_s, on_progress=progressed
                )
            except OutOfReach as error:
                raise self.cut.out_of_reach(error) from error
        return self._open[spec.name]

    def entries(self, spec: TaskSpec) -> Iterator[Entry]:
        """All that the task's store had, in the order of its keys; of a windowed one also windows out of retention."""
        return Placement(spec.store).scan(self.task(spec).database)

    def stream_time_ms(self, spec: TaskSpec) -> int:
        """How far the task's records had come; -1 where that is of no importance to what could be read."""
        order = self.cut.order(spec.number)
        return -1 if order is None else order.stream_time_ms

    def check(self) -> None:
        """Raises `OutOfReach` unless every task's version can be had, without building any."""
        for past in self.cut.tasks:
            try:
                past.check(self.cut.batch)
            except OutOfReach as error:
                raise self.cut.out_of_reach(error) from error

    def close(self) -> None:
        """Release the folders."""
        for database in self._open.values():
            database.close()
        self._open.clear()


@contextmanager
def past_version(
    deployed: DeployedQuery,
    settings: Settings,
    *,
    batch: int | None = None,
    at_ms: int | None = None,
    store: bool = True,
    tell: Progress = lambda _step, _detail: None,
) -> Iterator[PastVersion]:
    """The query's stores at a batch, at a time, or at the newest finished batch; gone when the block ends.

    A stateless query has only the place of its input, for whoever does not want a `store`.
    """
    require_travel(deployed, settings, store=store)
    kafka = settings.kafka_config()
    admin = Admin(kafka)
    admin.check()
    snapshots = settings.snapshot_config()
    cut = look_back(
        deployed.task_specs(settings.states),
        Reader(kafka),
        admin,
        None if snapshots is None else Snapshots(snapshots),
        batch=batch,
        at_ms=at_ms,
    )
    with _own_folder(settings) as folder:
        version = PastVersion(deployed, settings, folder, cut, tell)
        try:
            yield version
        finally:
            version.close()


def require_travel(deployed: DeployedQuery, settings: Settings, *, store: bool = True) -> None:
    """Raises `InvalidInput` for a query whose past is not kept exactly, or that has no store where one is asked for."""
    why = ""
    if store and deployed.query.stateless:
        why = "a stateless query has no store"
    elif not settings.transactions:
        why = "without transactions no batch has an exact version"
    if why:
        raise InvalidInput("query has no versions of the past", query=deployed.query.name, reason=why)


@contextmanager
def _own_folder(settings: Settings) -> Iterator[Path]:
    parent = in_home(settings.home, "past")
    remove_left(parent)
    with TemporaryDirectory(dir=parent, suffix=f"-{os.getpid()}") as name:
        yield Path(name)


class PastReader(StoreReader):
    """Reads a version of the past as the present one is read."""

    def __init__(self, version: PastVersion, settings: Settings) -> None:
        super().__init__(version.deployed, settings, None)
        self._version = version

    def _entries(self, spec: TaskSpec, isolation: Isolation, **bounds: str | None) -> Iterator[pa.RecordBatch]:
        """Whatever the isolation: the past is committed."""
        yield from entries_of(self._version.task(spec), spec.store, self._version.stream_time_ms(spec), **bounds)
