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

from statestore.config import SnapshotConfig
from statestore.errors import RollforwardError, Unavailable
from statestore.failpoints import reach
from statestore.snapshots.hashes import Hashes
from statestore.snapshots.take import Taken, take_snapshot
from statestore.task import Task, TaskState

log = structlog.get_logger()
_LOOK_EVERY_S = 0.5
_AGAIN_S = 30.0


@dataclass
class _Known:
    """What is known of one task's snapshots. `at_s` is on the monotonic clock; `batch` is -1 for none."""

    batch: int
    offset: int
    at_s: float
    hashes: Hashes = field(default_factory=Hashes)
    not_before_s: float = 0.0
    last: dict[str, Any] = field(default_factory=dict)
    busy: threading.Lock = field(default_factory=threading.Lock)


class Snapshotter:
    """Takes snapshots of the tasks that `tasks` gives. `close` ends its thread, waiting for none under way."""

    def __init__(self, config: SnapshotConfig, tasks: Callable[[], list[Task]]) -> None:
        self._config = config
        self._tasks = tasks
        self._known: dict[Task, _Known] = {}
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
        """Numbers of the task's newest snapshot by this server; empty if it has taken none."""
        known = self._known.get(task)
        if known is None or not known.last:
            return {}
        return {**known.last, "age_s": round(time.monotonic() - known.at_s, 1)}

    def _watch(self) -> None:
        while not self._end.wait(_LOOK_EVERY_S):
            for task in self._tasks():
                try:
                    self._take_if_due(task)
                except RollforwardError as error:
                    log.warning("snapshot failed, trying again later", task=task.spec.name, error=str(error))
                    self._later(task)
                except Exception:
                    # The thread must outlive whatever one snapshot meets: without it the tail only grows.
                    log.exception("snapshot failed, trying again later", task=task.spec.name)
                    self._later(task)
            for gone in set(self._known) - set(self._tasks()):
                self._known.pop(gone, None)

    def _later(self, task: Task) -> None:
        if task in self._known:
            self._known[task].not_before_s = time.monotonic() + _AGAIN_S

    def _take_if_due(self, task: Task) -> None:
        if task.state is not TaskState.RUNNING or task.committed_batch < 0:
            return
        known = self._look_up(task)
        if self._end.is_set() or time.monotonic() < known.not_before_s or not self._is_due(task, known):
            return
        with known.busy:
            self._take(task, known)

    def _is_due(self, task: Task, known: _Known) -> bool:
        if task.committed_batch <= known.batch:
            return False
        config = self._config
        by_clock = config.interval_s > 0 and time.monotonic() - known.at_s >= config.interval_s
        grown = task.changelog_offset() - known.offset
        return by_clock or 0 < config.changelog_records <= grown

    def _look_up(self, task: Task) -> _Known:
        """What is known, asked of object storage the first time: the clock goes on where another server left it."""
        with self._looking:
            return self._looked_up(task)

    def _looked_up(self, task: Task) -> _Known:
        if task not in self._known:
            if task.repository is None:
                raise Unavailable("task is not running", task=task.spec.name)
            layout = task.repository.layout
            batch, at_s, offset = -1, time.monotonic(), task.changelog_offset()
            batches = task.repository.batches()
            if batches:
                batch = batches[-1]
                manifest = task.repository.read(batch)
                offset = manifest.stores[task.spec.store.name].offset
                at_s -= max(0.0, time.time() - manifest.taken_at_ms / 1000)
            self._clear_left(copy_folder(task))
            self._known[task] = _Known(batch, offset, at_s)
            log.info("snapshots found", task=task.spec.name, newest=batch, prefix=layout.prefix)
        return self._known[task]

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
        started = time.monotonic()
        reach("snapshot.before-copy")
        about = task.copy(folder)
        copied_s = time.monotonic() - started
        try:
            reach("snapshot.copied")
            taken = take_snapshot(task.repository, about, folder, known.hashes, self._config)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        task.steps.forget(about.batch)
        known.batch, known.at_s = about.batch, started
        known.offset = about.stores[task.spec.store.name].offset
        known.last = {**taken.to_json(), "copy_seconds": round(copied_s, 3)}
        log.info("snapshot taken", task=task.spec.name, **known.last)
        return taken


def copy_folder(task: Task) -> Path:
    """Where a task's copy lies while it is uploaded: beside its folder, so that links are possible."""
    return task.spec.folder.with_name(f"{task.spec.folder.name}.copy")


def _clear_copies(folder: Path) -> None:
    """Remove the copy of a snapshot that was killed."""
    shutil.rmtree(folder, ignore_errors=True)
