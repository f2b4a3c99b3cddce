"""Object storage as one process uses it for snapshots: opened at first need, shared by its tasks."""

from __future__ import annotations

from contextlib import suppress
from threading import Lock

from statestore.config import SnapshotConfig, TaskSpec
from statestore.errors import RollforwardError
from statestore.objects.base import ObjectStore
from statestore.objects.open import open_objects
from statestore.snapshots.layout import layout_of
from statestore.snapshots.repository import Repository


class Snapshots:
    """Gives each task its repository. `objects` may be given, by tests that inject faults."""

    def __init__(self, config: SnapshotConfig, objects: ObjectStore | None = None) -> None:
        self.config = config
        self._objects = objects
        self._lock = Lock()

    @property
    def objects(self) -> ObjectStore:
        """The object store. Raises `InvalidConfig` for a URL that is none."""
        with self._lock:
            if self._objects is None:
                self._objects = open_objects(self.config.objects)
            return self._objects

    def connect(self) -> None:
        """Open and ask the store now, so that nobody waits for it later. Whoever needs it is told what is wrong with it."""
        with suppress(RollforwardError):
            self.objects.head("connect")

    def repository(self, spec: TaskSpec, batches_topic_id: str) -> Repository:
        """The task's snapshots."""
        return Repository(self.objects, layout_of(spec, batches_topic_id))

    def close(self) -> None:
        """Release connections."""
        with self._lock:
            if self._objects is not None:
                self._objects.close()
                self._objects = None
