"""When a server's tasks are snapshotted: by the clock, by growth of the changelog, or because somebody asks.

One thread a server takes them one after another, so that snapshots take no more than one core from the tasks. A
failed one is tried again later; nothing else waits for it. A snapshot lost is time lost at the next recovery, never
data.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from statestore.clock import now_ms
from statestore.config import SnapshotConfig
from statestore.errors import RollforwardError, Unavailable
from statestore.failpoints import reach
from statestore.snapshots.hashes import Hashes
from statestore.snapshots.repository import Repository
from statestore.snapshots.take import Taken, take_snapshot
from statestore.task import Task, TaskState

log = structlog.get_logger()
_LOOK_EVERY_S = 0.5
_AGAIN_S = 30.0


@dataclass
class _Known:
    """What is known of one task's snapshots. `at_s` is on the snapshotter's clock; `batch` is -1 for none."""

    batch: int
    offset: int
    at_s: float
    hashes: Hashes = field(default_factory=Hashes)
    last: dict[str, Any] = field(default_factory=dict)
    busy: threading.Lock = field(default_factory=threading.Lock)


def why_due(config: SnapshotConfig, *, batches: int, grown: int, since_s: float) -> str:
    """Why a task is to be snapshotted now, empty if it is not.

    batches: committed since its newest snapshot. grown: offsets of its changelog since then. since_s: seconds since then.
    """
    if batches <= 0:
        return ""
    if 0 < config.interval_s <= since_s:
        return "interval"
    return "growth" if 0 < config.changelog_records <= grown else ""


class Snapshotter:
    """Takes snapshots of the tasks that `tasks` gives. `close` ends its thread, waiting for none under way.

    `clock` gives seconds that only grow.
    """

    def __init__(
        self, config: SnapshotConfig, tasks: Callable[[], list[Task]], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._config = config
        self._tasks = tasks
        self._clock = clock
        self._known: dict[Task, _Known] = {}
        # When a running task with something committed was first seen, and until when one that failed is left alone.
        self._seen_s: dict[Task, float] = {}
        self._not_before_s: dict[Task, float] = {}
        self._looking = threading.Lock()
        # Of each folder of copies: a task that was opened anew has the folder of the one before it.
        self._folders: defaultdict[Path, threading.Lock] = defaultdict(threading.Lock)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="snapshots")

    def start(self) -> None:
        """Begin to watch the tasks."""
        self._thread.start()

    def close(self) -> None:
        """Begin no other snapshot."""
        self._end.set()

    def take(self, task: Task) -> dict[str, Any]:
        """Take a snapshot of the committed version now; gives how it went. A batch that has one is not taken again.

        Raises `Unavailable` when the task is not running, nothing is committed, or storage does not answer.
        """
        known = self._look_up(task)
        with known.busy:
            batch = task.committed_batch
            if batch >= 0 and known.batch == batch:
                return {**known.last, "task": task.spec.name, "batch": batch, "written": False}
            taken = self._take(task, known)
        return {"task": task.spec.name, **taken.to_json()}

    def figures(self, task: Task) -> dict[str, Any]:
        """Numbers of the task's newest snapshot, whoever took it; empty where nothing was committed yet.

        `age_s` is 0 while it holds all that is committed. Without a snapshot, or while storage does not say whether there
        is one, it counts from when this server first saw something committed.
        """
        known, seen_s = self._known.get(task), self._seen_s.get(task)
        if known is None:
            return {} if seen_s is None else {"age_s": self._age(seen_s)}
        return {**known.last, "age_s": 0.0 if task.committed_batch <= known.batch else self._age(known.at_s)}

    def _age(self, at_s: float) -> float:
        return round(max(0.0, self._clock() - at_s), 1)

    def _watch(self) -> None:
        while not self._end.wait(_LOOK_EVERY_S):
            self.take_due()

    def take_due(self) -> None:
        """Look at every task once, and take those snapshots that are due. One that fails is due again a little later."""
        tasks = self._tasks()
        for task in tasks:
            try:
                self._take_if_due(task)
            except RollforwardError as error:
                log.warning("snapshot failed, trying again later", task=task.spec.name, error=str(error))
                self._later(task)
            except Exception as error:
                # The thread must outlive whatever one snapshot meets: without it the tail only grows.
                log.exception("snapshot failed, trying again later", task=task.spec.name, error=str(error))
                self._later(task)
        for known in (self._known, self._seen_s, self._not_before_s):
            for gone in set(known) - set(tasks):
                known.pop(gone, None)

    def _later(self, task: Task) -> None:
        self._not_before_s[task] = self._clock() + _AGAIN_S

    def _take_if_due(self, task: Task) -> None:
        if task.state is not TaskState.RUNNING or task.committed_batch < 0:
            return
        now_s = self._clock()
        self._seen_s.setdefault(task, now_s)
        if now_s < self._not_before_s.get(task, now_s):
            return
        known = self._look_up(task)
        cause = why_due(
            self._config,
            batches=task.committed_batch - known.batch,
            grown=task.changelog_offset() - known.offset,
            since_s=now_s - known.at_s,
        )
        if not cause or self._end.is_set():
            return
        with known.busy:
            log.info("snapshot is due", task=task.spec.name, cause=cause)
            self._take(task, known)

    def _look_up(self, task: Task) -> _Known:
        """What is known, asked of object storage the first time: the clock goes on where another server left it."""
        with self._looking:
            return self._looked_up(task)

    def _looked_up(self, task: Task) -> _Known:
        if task not in self._known:
            if task.repository is None:
                raise Unavailable("task is not running", task=task.spec.name)
            layout = task.repository.layout
            known = self._stored(task, task.repository)
            self._clear_left(copy_folder(task))
            self._known[task] = known
            log.info("snapshots found", task=task.spec.name, newest=known.batch, prefix=layout.prefix)
        return self._known[task]

    def _stored(self, task: Task, repository: Repository) -> _Known:
        """The newest snapshot that reads back: one that does not must not keep others from being taken."""
        now_s = self._clock()
        newest = repository.newest_readable(at_most=task.committed_batch)
        if newest is None:
            return _Known(-1, task.changelog_offset(), self._seen_s.get(task, now_s))
        store = newest.stores.get(task.spec.store.name)
        last = {"batch": newest.batch, "referenced_bytes": newest.total_bytes, "files": len(newest.files)}
        at_s = now_s - max(0.0, time.time() - newest.taken_at_ms / 1000)
        return _Known(newest.batch, 0 if store is None else store.offset, at_s, last=last)

    def _clear_left(self, folder: Path) -> None:
        """Remove the copy of a snapshot that was killed, but none that is being uploaded."""
        if self._folders[folder].acquire(blocking=False):
            try:
                _clear_copies(folder)
            finally:
                self._folders[folder].release()

    def _take(self, task: Task, known: _Known) -> Taken:
        folder = copy_folder(task)
        with self._folders[folder]:
            return self._take_in(folder, task, known)

    def _take_in(self, folder: Path, task: Task, known: _Known) -> Taken:
        assert task.repository is not None
        _clear_copies(folder)
        started, began_at_ms = self._clock(), now_ms()
        reach("snapshot.before-copy")
        about = task.copy(folder)
        copied_s = self._clock() - started
        try:
            reach("snapshot.copied")
            taken = take_snapshot(task.repository, about, folder, known.hashes, self._config)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        task.steps.forget(about.batch)
        known.batch, known.at_s = about.batch, started
        known.offset = about.stores[task.spec.store.name].offset
        known.last = {
            **taken.to_json(),
            "copy_seconds": round(copied_s, 3),
            "began_at_ms": began_at_ms,
            "ended_at_ms": now_ms(),
        }
        log.info("snapshot taken", task=task.spec.name, **known.last)
        return taken


def copy_folder(task: Task) -> Path:
    """Where a task's copy lies while it is uploaded: beside its folder, so that links are possible."""
    return task.spec.folder.with_name(f"{task.spec.folder.name}.copy")


def _clear_copies(folder: Path) -> None:
    """Remove the copy of a snapshot that was killed."""
    shutil.rmtree(folder, ignore_errors=True)
