"""Taking a snapshot: from a hard-link copy of a committed version to a manifest in object storage.

    1 copy      the task's own step, under its lock: flush and hard links; the task goes on at once
    2 hash      every file's content names its object
    3 pin       the coming manifest's files, then look for collections
    4 upload    the files that are not there yet; those that are and are old are made young again
    5 manifest  put if absent, read back on doubt; from here on the snapshot exists. One that is there and is of another
                version is of a timeline that Kafka has lost, and gives way
    6 unpin     unless the manifest may still be on its way; and the copy is deleted

A file that is reused is younger than half the minimum age when the manifest is put, and a collection looks at a
file's age once more before it deletes it. So even a listing that is hours old harms nothing: what it hides is too
young to be deleted, and what it shows although it is gone is old enough to be found missing here.

Killed anywhere, nothing but unreferenced files, a pin that ends and a local copy is left, and all of them are swept.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import structlog

from statestore.config import SnapshotConfig
from statestore.errors import DataCorrupted, FormatUnsupported, Unavailable
from statestore.failpoints import reach
from statestore.objects.base import ObjectInfo, ObjectMissing
from statestore.snapshots.hashes import Hashes
from statestore.snapshots.leases import DatedLease, drop_lease, put_dated_lease, read_leases
from statestore.snapshots.manifest import Manifest, SnapshotFile, is_same
from statestore.snapshots.repository import Repository

log = structlog.get_logger()


@dataclass(frozen=True)
class Taken:
    """How a snapshot went. `uploaded_bytes` is what travelled, `referenced_bytes` what the manifest names.

    `written` is False when the batch had a snapshot of this version already.
    """

    batch: int
    written: bool
    files: int
    uploaded_files: int
    referenced_bytes: int
    uploaded_bytes: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "seconds": round(self.seconds, 3)}


def take_snapshot(repository: Repository, about: Manifest, copy: Path, hashes: Hashes, config: SnapshotConfig) -> Taken:
    """Upload the copy in `copy` as the version that `about` describes; its files and write id are filled in here.

    Raises `Unavailable` when it has to be tried again: storage away, a collection under way, the pin's life over.
    """
    started = time.monotonic()
    objects, layout = repository.objects, repository.layout
    found = hashes.of_folder(copy)
    files = tuple(SnapshotFile(name, sha256, size) for name, (sha256, size) in found.items())
    reach("snapshot.hashed")
    pin = put_dated_lease(objects, layout.pins, "snapshot", (file.sha256 for file in files), config.pin_life_s)
    try:
        reach("snapshot.pinned")
        _require_no_collection(repository, pin)
        uploaded = _upload(repository, files, copy, pin, config)
        reach("snapshot.uploaded")
        # What a paused writer sends late must still find its files.
        pin.require_alive()
    except BaseException:
        drop_lease(objects, pin)
        raise
    manifest = Manifest(**{**vars(about), "files": files, "write_id": secrets.token_hex(16)})
    # An error leaves the pin: a manifest that is still on its way may arrive when nobody waits for it any more.
    written = objects.put_if_absent(layout.manifest(manifest.batch), manifest.encode())
    if not written and (other := _of_another_timeline(repository, manifest)):
        log.warning("replacing a snapshot of a lost timeline", batch=manifest.batch, prefix=layout.prefix, found=other)
        pin.require_alive()
        objects.put(layout.manifest(manifest.batch), manifest.encode())
        written = True
    reach("snapshot.manifest-put")
    drop_lease(objects, pin)
    reach("snapshot.unpinned")
    return Taken(
        batch=about.batch,
        written=written,
        files=len(files),
        uploaded_files=len(uploaded),
        referenced_bytes=sum(file.bytes for file in files),
        uploaded_bytes=sum(uploaded.values()),
        seconds=time.monotonic() - started,
    )


def _of_another_timeline(repository: Repository, ours: Manifest) -> str:
    """What the manifest in our manifest's place is of, if that is another version; one that is of no use says why."""
    try:
        found = repository.read(ours.batch)
    except FormatUnsupported:
        # A newer program's: it knows better.
        return ""
    except (ObjectMissing, DataCorrupted) as error:
        return str(error)
    if (found.epoch, found.stores) == (ours.epoch, ours.stores) and is_same(found.digest, ours.digest):
        return ""
    return f"epoch {found.epoch}, digest {found.digest}, stores {found.stores}"


def _require_no_collection(repository: Repository, pin: DatedLease) -> None:
    if read_leases(repository.objects, repository.layout.marks, pin.now_s).living:
        raise Unavailable(
            "files are being collected", prefix=repository.layout.prefix, hint="the snapshot is taken afterwards"
        )


def _upload(
    repository: Repository, files: tuple[SnapshotFile, ...], copy: Path, pin: DatedLease, config: SnapshotConfig
) -> dict[str, int]:
    """Upload what is missing; gives bytes by sha256."""
    present = repository.files()
    missing = {
        file.sha256: file for file in files if not _is_reusable(repository, present.get(file.sha256), file, pin, config)
    }

    def arrived(_path: Path, _key: str) -> None:
        reach("snapshot.in-upload")
        pin.require_alive()

    wanted = [(copy / file.name, repository.layout.file(sha256)) for sha256, file in missing.items()]
    repository.objects.upload_all(wanted, arrived)
    return {sha256: file.bytes for sha256, file in missing.items()}


def _is_reusable(
    repository: Repository, found: ObjectInfo | None, file: SnapshotFile, pin: DatedLease, config: SnapshotConfig
) -> bool:
    """Whether storage has the file, and young. One of another size was cut off."""
    if found is None or found.bytes != file.bytes:
        return False
    if pin.now_s - found.modified_at_s < config.minimum_age_s / 2:
        return True
    return repository.objects.refresh(found.key)
