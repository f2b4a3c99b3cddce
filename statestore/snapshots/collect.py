"""Garbage collection of one task's snapshots. The order is what makes it safe; `leases` says why.

    1 mark        so that nobody begins to reuse a file
    2 list        the files, with their ages by the storage's clock
    3 read        all manifests, after listing; one that cannot be read stops the collection before it deletes anything
    4 manifests   those beyond `keep` and older than `retention_s` are deleted
    5 pins        are read
    6 files       that no kept manifest and no living pin names, and that are older than `minimum_age_s`, are deleted
    7 uploads     in parts that were begun before the minimum age are aborted: a snapshot that still needed one has run out
                  of its pin's life long since

The minimum age is for what a paused or slow writer sends late: it is longer than any pin lives. A deletion without an
answer may still take place, and would then take a file that a snapshot has begun to reuse: so a mark stays for a while
after one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import structlog

from statestore.config import SnapshotConfig
from statestore.errors import DataCorrupted, RollforwardError, Unavailable
from statestore.failpoints import reach
from statestore.objects.base import ObjectInfo
from statestore.snapshots.leases import DatedLease, Lease, drop_lease, put_dated_lease, put_lease, read_leases
from statestore.snapshots.manifest import Manifest
from statestore.snapshots.repository import Repository, Unreadable

# Between two looks at the mark's life; also the most that S3 deletes with one request.
_CHUNK = 1000
# Longer than a request that nobody waits for any more is on its way.
_DOUBT_S = 900.0

log = structlog.get_logger()


class DeletionInDoubt(Unavailable):
    """A deletion was not answered."""


@dataclass(frozen=True)
class Collected:
    """What was, or with `dry_run` would be, deleted and kept."""

    prefix: str
    dry_run: bool
    snapshots_deleted: tuple[int, ...]
    snapshots_kept: tuple[int, ...]
    files_deleted: int
    bytes_freed: int
    uploads_aborted: int
    files_kept: int
    files_pinned: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "seconds": round(self.seconds, 3)}


def collect(
    repository: Repository, config: SnapshotConfig, *, dry_run: bool = False, dropped: bool = False
) -> Collected:
    """Delete what is not needed any more, or only say what that is.

    Of a task that was `dropped` no snapshot is needed: all go that are older than the minimum age.

    Raises `DataCorrupted` when a manifest cannot be read: then nothing is deleted.
    """
    started = time.monotonic()
    objects, layout = repository.objects, repository.layout
    with _marked(repository, config) as mark:
        reach("collect.marked")
        files = list(objects.list(layout.files))
        reach("collect.listed")
        manifests = _manifests(repository)
        present = {repository.layout.sha256_of(file.key) for file in files}
        kept, expired = _split(manifests, present, config, mark.now_s, dropped=dropped)
        if not dry_run:
            _delete(repository, mark, [layout.manifest(m.batch) for m in expired], "collect.in-manifests")
        reach("collect.manifests-deleted")
        pins = read_leases(objects, layout.pins, mark.now_s)
        reach("collect.pins-read")
        needed = {file.sha256 for manifest in kept for file in manifest.files}
        proposed = [f for f in files if _is_garbage(repository, f, needed | pins.files, config, mark.now_s)]
        garbage = [f for f in proposed if _is_still_old(repository, f, config, mark.now_s)]
        if not dry_run:
            ended = [*pins.ended, *read_leases(objects, layout.marks, mark.now_s).ended]
            _delete(repository, mark, [*(file.key for file in garbage), *ended], "collect.in-files")
        reach("collect.files-deleted")
        aborted = _abort_uploads(repository, config, mark, dry_run=dry_run)
        reach("collect.uploads-aborted")
    return Collected(
        prefix=layout.prefix,
        dry_run=dry_run,
        snapshots_deleted=tuple(manifest.batch for manifest in expired),
        snapshots_kept=tuple(manifest.batch for manifest in kept),
        files_deleted=len(garbage),
        bytes_freed=sum(file.bytes for file in garbage),
        uploads_aborted=aborted,
        files_kept=len(files) - len(garbage),
        files_pinned=len(pins.files),
        seconds=time.monotonic() - started,
    )


@contextmanager
def _marked(repository: Repository, config: SnapshotConfig) -> Iterator[DatedLease]:
    """Step 1. The mark goes at the end; while a deletion is in doubt a new one of a short life takes its place."""
    objects, marks = repository.objects, repository.layout.marks
    mark = put_dated_lease(objects, marks, "collection", (), config.pin_life_s)
    try:
        yield mark
    except DeletionInDoubt:
        try:
            put_lease(objects, marks, "collection", (), min(_DOUBT_S, config.pin_life_s))
        except RollforwardError as error:
            log.warning("collection's mark stays until it ends", lease=mark.key, error=str(error))
            raise
        drop_lease(objects, mark)
        raise
    except BaseException:
        drop_lease(objects, mark)
        raise
    drop_lease(objects, mark)


def _manifests(repository: Repository) -> list[Manifest]:
    found: list[Manifest] = []
    for manifest in repository.newest_first():
        if isinstance(manifest, Unreadable):
            raise DataCorrupted(
                "nothing is collected while a manifest cannot be read",
                key=manifest.key,
                error=manifest.reason,
                hint="look at the object; delete it if it is of no use",
            )
        found.append(manifest)
    return found


def _split(
    manifests: list[Manifest], present: set[str | None], config: SnapshotConfig, now_s: float, *, dropped: bool
) -> tuple[list[Manifest], list[Manifest]]:
    """(kept, expired); `manifests` are newest first. Only snapshots whose files are all there count as kept."""
    kept: list[Manifest] = []
    expired: list[Manifest] = []
    keep, retention_s = (0, config.minimum_age_s) if dropped else (config.keep, config.retention_s)
    whole = 0
    for manifest in manifests:
        age_s = now_s - manifest.taken_at_ms / 1000
        is_whole = all(file.sha256 in present for file in manifest.files)
        # Files of one that was being finished while we listed may not be in the listing.
        fresh = age_s < retention_s or (not is_whole and age_s < config.minimum_age_s)
        (kept if whole < keep or fresh else expired).append(manifest)
        whole += is_whole
    return kept, expired


def _is_garbage(
    repository: Repository, file: ObjectInfo, needed: set[str], config: SnapshotConfig, now_s: float
) -> bool:
    if now_s - file.modified_at_s < config.minimum_age_s:
        return False
    # A name that is no content's is what a server left of a put that was cut off.
    return repository.layout.sha256_of(file.key) not in needed


def _is_still_old(repository: Repository, file: ObjectInfo, config: SnapshotConfig, now_s: float) -> bool:
    """Look at the file itself: a snapshot may have made it young since the listing, or a listing may be old."""
    now = repository.objects.head(file.key)
    return now is not None and now_s - now.modified_at_s >= config.minimum_age_s


def _delete(repository: Repository, mark: Lease, keys: list[str], point: str) -> None:
    for start in range(0, len(keys), _CHUNK):
        mark.require_alive()
        try:
            repository.objects.delete(keys[start : start + _CHUNK])
        except Unavailable as error:
            raise DeletionInDoubt(error.message, hint=error.hint, **error.fields) from error
        reach(point)


def _abort_uploads(repository: Repository, config: SnapshotConfig, mark: DatedLease, *, dry_run: bool) -> int:
    """Free what killed uploaders have left; gives their number.

    Storage may not know how to list uploads, or not let us: that is no reason to collect nothing.
    """
    objects, aborted = repository.objects, 0
    try:
        for upload in list(objects.unfinished(repository.layout.prefix)):
            if mark.now_s - upload.begun_at_s < config.minimum_age_s:
                continue
            mark.require_alive()
            if not dry_run:
                objects.abort(upload)
            aborted += 1
    except RollforwardError as error:
        log.warning("unfinished uploads stay", prefix=repository.layout.prefix, error=str(error))
    return aborted
