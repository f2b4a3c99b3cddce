"""The snapshots of one task as they are found in object storage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import structlog

from statestore.errors import DataCorrupted, FormatUnsupported
from statestore.objects.base import ObjectInfo, ObjectMissing, ObjectStore
from statestore.snapshots.layout import TaskLayout
from statestore.snapshots.manifest import Manifest, parse

log = structlog.get_logger()


@dataclass(frozen=True)
class Unreadable:
    """A manifest's key with why it cannot be used."""

    key: str
    reason: str


class Repository:
    """Reads the manifests of a task. A listing proposes; a manifest counts when it reads back."""

    def __init__(self, objects: ObjectStore, layout: TaskLayout) -> None:
        self.objects = objects
        self.layout = layout

    def batches(self) -> list[int]:
        """Batches that have a manifest, oldest first."""
        found = (self.layout.batch_of(info.key) for info in self.objects.list(self.layout.manifests))
        return sorted(batch for batch in found if batch is not None)

    def read(self, batch: int) -> Manifest:
        """One manifest. Raises `ObjectMissing`, `DataCorrupted`, `FormatUnsupported`."""
        key = self.layout.manifest(batch)
        manifest = parse(self.objects.get(key), key)
        if manifest.batch != batch:
            raise DataCorrupted("snapshot's manifest is of another batch", key=key, found=manifest.batch)
        return manifest

    def newest_first(self, *, at_most: int | None = None) -> Iterator[Manifest | Unreadable]:
        """Manifests from the newest on, of batches up to `at_most`; those that do not read back say why."""
        for batch in reversed(self.batches()):
            if at_most is None or batch <= at_most:
                yield self._read_or_say(batch)

    def newest_readable(self, *, at_most: int | None = None) -> Manifest | None:
        """The first of `newest_first` that reads back, if one does."""
        return next((m for m in self.newest_first(at_most=at_most) if isinstance(m, Manifest)), None)

    def read_all(self, batches: Sequence[int]) -> list[Manifest | Unreadable]:
        """The manifests of these batches in their order, read at the same time."""
        if len(batches) <= 1:
            return [self._read_or_say(batch) for batch in batches]
        with ThreadPoolExecutor(self.objects.parallel, thread_name_prefix="manifests") as workers:
            return list(workers.map(self._read_or_say, batches))

    def _read_or_say(self, batch: int) -> Manifest | Unreadable:
        try:
            return self.read(batch)
        except (ObjectMissing, DataCorrupted, FormatUnsupported) as error:
            log.warning("snapshot is not usable", batch=batch, error=str(error))
            return Unreadable(self.layout.manifest(batch), str(error))

    def is_whole(self, manifest: Manifest) -> bool:
        """Whether every file that it names is listed with its size. What is in them is not read."""
        present = self.files()
        found = ((present.get(file.sha256), file) for file in manifest.files)
        return all(info is not None and info.bytes == file.bytes for info, file in found)

    def files(self) -> dict[str, ObjectInfo]:
        """Every stored file, by its sha256."""
        found = ((self.layout.sha256_of(info.key), info) for info in self.objects.list(self.layout.files))
        return {sha256: info for sha256, info in found if sha256 is not None}
