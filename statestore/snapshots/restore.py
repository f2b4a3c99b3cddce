"""Restoring a snapshot: every file downloaded and verified in a folder beside the task's, which then takes its place.

    1 download   in parallel, straight into the new folder; each file's content is compared with its name, and synced
    2 pin        meanwhile, the manifest's files; then the manifest is read again
    3 rename     the old folder is deleted, the new one renamed: only a whole version is ever under the task's name

Killed anywhere, what is left is a folder that the next recovery deletes, and a pin that ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from statestore.errors import DataCorrupted
from statestore.failpoints import reach
from statestore.folders import begun, sync, take_place
from statestore.objects.base import ObjectMissing
from statestore.snapshots.hashes import sha256_of
from statestore.snapshots.leases import Lease, drop_lease, put_lease
from statestore.snapshots.manifest import Manifest, SnapshotFile
from statestore.snapshots.repository import Repository

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Restored:
    """How a restore went."""

    bytes: int
    seconds: float


def restore_snapshot(
    repository: Repository,
    manifest: Manifest,
    folder: Path,
    *,
    pin_life_s: float,
    on_progress: Progress = lambda _done, _total: None,
    release: Callable[[], None] = lambda: None,
) -> Restored:
    """Make `folder` the manifest's version; what is there is replaced. `on_progress` gets (bytes done, bytes in all).

    `release` is called before the folder of before is deleted, to close what is open in it.

    Raises `ObjectMissing` when the snapshot was collected or is incomplete, `DataCorrupted` for a file of another
    content: the folder of before is then untouched.
    """
    started = time.monotonic()
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="pin") as beside:
        pinned = beside.submit(_pin, repository, manifest, pin_life_s)
        try:
            _download(repository, manifest, begun(folder), on_progress)
            reach("restore.downloaded")
        finally:
            drop_lease(repository.objects, pinned.result())
    release()
    take_place(folder, points="restore")
    return Restored(manifest.total_bytes, time.monotonic() - started)


def _pin(repository: Repository, manifest: Manifest, life_s: float) -> Lease:
    """A collection that is under way may still take files until then: what is missing or cut is found by downloading."""
    layout = repository.layout
    files = (file.sha256 for file in manifest.files)
    pin = put_lease(repository.objects, layout.pins, "restore", files, life_s)
    reach("restore.pinned")
    try:
        if repository.read(manifest.batch).write_id != manifest.write_id:
            raise ObjectMissing("snapshot was replaced", key=layout.manifest(manifest.batch))
    except BaseException:
        drop_lease(repository.objects, pin)
        raise
    return pin


def _download(repository: Repository, manifest: Manifest, new: Path, on_progress: Progress) -> None:
    by_path: dict[Path, SnapshotFile] = {new / file.name: file for file in manifest.files}
    done, lock = [0], Lock()

    def arrived(path: Path, key: str) -> None:
        file = by_path[path]
        if path.stat().st_size != file.bytes or sha256_of(path) != file.sha256:
            raise DataCorrupted("file of a snapshot has another content", key=key, name=file.name)
        # RocksDB syncs what it writes itself and takes what it finds for synced.
        sync(path)
        with lock:
            done[0] += file.bytes
            on_progress(done[0], manifest.total_bytes)
        reach("restore.in-download")

    # The largest first: the last one to end decides how long it takes.
    wanted = sorted(by_path.items(), key=lambda item: -item[1].bytes)
    files = [(path, repository.layout.file(file.sha256), file.bytes) for path, file in wanted]
    repository.objects.download_all(files, arrived)
    sync(new)
