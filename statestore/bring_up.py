"""From the facts to an open database at the committed version: plan, go the way, plan again where a snapshot fails.

A snapshot that turns out to be of no use (collected meanwhile, a file of another content, storage that went away, a
version other than its manifest says, another timeline's) is refused with that reason, and the next cheapest way is
taken. The local store is given up only when its replacement is complete.

A snapshot is known to be of this timeline by its batch's position while the batches topic has that. Once compaction has
taken it, what snapshot and tail have given is read and its digest compared, where that costs next to nothing.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from statestore.batches import BatchesLog, Position, Standing
from statestore.config import RocksConfig, TaskSpec
from statestore.digest import digest_of
from statestore.errors import (
    DataCorrupted,
    Fenced,
    InvalidConfig,
    RollforwardError,
    TaskCorrupted,
    Unavailable,
    Unrecoverable,
)
from statestore.failpoints import reach
from statestore.folders import doubted, take_place, unfinished
from statestore.kafka.reader import Reader
from statestore.listener import RestoreListener
from statestore.objects.base import ObjectMissing
from statestore.placement import Placement
from statestore.planning import hazards
from statestore.planning.facts import Found
from statestore.planning.plan import RecoveryPlan, Way, every_way, plan_recovery
from statestore.planning.rates import save_rates
from statestore.rebuild import is_worth_it, rebuild
from statestore.recovery import replay, require_no_records
from statestore.snapshots.manifest import Manifest
from statestore.snapshots.repository import Repository
from statestore.snapshots.restore import restore_snapshot
from statestore.version import TaskDatabase, wipe

# Of a snapshot whose store is read for its digest: some 0.4 s of a core, with entries of 50 bytes.
READ_BYTES_MAX = 16 * 1024 * 1024

log = structlog.get_logger()
Open = Callable[[], TaskDatabase]


@dataclass(frozen=True)
class BroughtUp:
    """An open database at the committed version, and how it came there."""

    database: TaskDatabase
    plan: RecoveryPlan
    records: int


class BringUp:
    """One task's recovery. `repository` is None without snapshots; `pin_life_s` bounds a restore.

    `epoch` is the owner's; without it a newer owner is known by its commits alone.
    """

    def __init__(
        self,
        spec: TaskSpec,
        reader: Reader,
        repository: Repository | None,
        open_database: Open,
        rocks: RocksConfig,
        listener: RestoreListener,
        *,
        epoch: int | None = None,
    ) -> None:
        self._spec = spec
        self._batches = BatchesLog(reader, spec.batches_topic, tasks=spec.tasks)
        self._epoch = epoch
        self._reader = reader
        self._repository = repository
        self._open = open_database
        self._rocks = rocks
        self._listener = listener
        self.pin_life_s = 3_600.0
        self._database: TaskDatabase | None = None

    def run(self, found: Found, database: TaskDatabase | None) -> BroughtUp:
        """Go the cheapest correct way. `database` is the open local store, if it can be opened.

        Raises `Unrecoverable` when every way is refused, or where Kafka has lost what only a store or snapshot has; the local
        store is then as it was. Raises `Fenced` where a newer owner shows before anything that is ahead would be deleted,
        and `TaskCorrupted` where a tail meets damage of the local store.
        """
        brought = self._run(found, database)
        doubted(self._spec.folder).unlink(missing_ok=True)
        return brought

    def _run(self, found: Found, database: TaskDatabase | None) -> BroughtUp:
        self._database = database
        if found.position is None:
            require_no_records(self._spec, self._reader, found.changelog_first)
        self._drop_ahead(found)
        found = self._with_positions(found)
        while True:
            plan = self._planned(found)
            if is_worth_it(plan):
                return self._rebuild(plan, found)
            if plan.way is not Way.SNAPSHOT:
                self._keep_or_begin(plan)
                return self._catch_up(plan, found)
            try:
                found = self._restore(plan, found)
            except (ObjectMissing, DataCorrupted, Unavailable, InvalidConfig) as error:
                log.warning("snapshot failed", task=self._spec.name, key=plan.snapshot, error=str(error))
                found = self._without(found, plan.snapshot, error)
                continue
            try:
                brought = self._catch_up(plan, found)
                self._require_digest(_manifest(plan, found), found)
                return brought
            except (DataCorrupted, TaskCorrupted) as error:
                self._close()
                wipe(self._spec.folder)
                is_lost = isinstance(error, DataCorrupted)
                event = "snapshot is not of this timeline" if is_lost else "snapshot is damaged"
                log.error(event, task=self._spec.name, key=plan.snapshot, error=str(error))
                found = self._without(found, plan.snapshot, error)

    def _with_positions(self, found: Found) -> Found:
        """The facts with the task's positions, if a snapshot is there to be compared with them."""
        manifests = {offered.key: offered.manifest for offered in found.snapshots if offered.manifest is not None}
        if not manifests:
            return found
        recorded = self._batches.positions(self._spec.number)
        found = replace(found, positions=tuple(one.position for one in recorded))
        for key, manifest in manifests.items():
            if reason := hazards.why_of_another_timeline(self._spec, manifest, found):
                log.error("snapshot is not of this timeline", task=self._spec.name, key=key, error=reason)
        return found

    def _planned(self, found: Found) -> RecoveryPlan:
        """The plan; the log has every way before one is gone, also where there is none."""
        try:
            plan = plan_recovery(self._spec, found)
        except Unrecoverable as error:
            ways = [way.text() for way in every_way(self._spec, found)]
            log.error("task cannot be recovered", task=self._spec.name, error=error.message, ways=ways)
            raise
        ways = [way.text() for way in plan.ways]
        log.info("recovery planned", task=self._spec.name, way=plan.way.value, reason=plan.reason, ways=ways)
        return plan

    def _without(self, found: Found, key: str, error: RollforwardError) -> Found:
        found = found.without(key, f"it could not be restored: {error}")
        if self._database is None and found.checkpoint is not None:
            found = replace(found, checkpoint=None, problem="local store gave way to a snapshot")
        return found

    def _keep_or_begin(self, plan: RecoveryPlan) -> None:
        """The open local store, or an empty one in its place."""
        left = unfinished(self._spec.folder)
        if left.exists():
            reach("rollback.before-delete")
            shutil.rmtree(left)
        if self._database is None or plan.discard_local:
            self._close()
            wipe(self._spec.folder)
            self._database = self._open()

    def _catch_up(self, plan: RecoveryPlan, found: Found) -> BroughtUp:
        """Replay the tail, if there is one."""
        assert self._database is not None
        if found.position is None:
            return BroughtUp(self._database, plan, 0)
        stands = self._database.checkpoint()
        if stands is not None and stands.batch == found.position.batch:
            return BroughtUp(self._database, plan, 0)
        started = time.monotonic()
        records = replay(
            plan, self._spec, self._reader, self._database, found.position, self._listener, at_ms=found.now_ms
        )
        self._require_in_time(found, _version_at_ms(plan, found), self._spec.folder)
        save_rates(self._spec.folder.parent, found.rates.with_replay(records, time.monotonic() - started))
        return BroughtUp(self._database, plan, records)

    def _rebuild(self, plan: RecoveryPlan, found: Found) -> BroughtUp:
        """Replay everything into a new folder and put it in the place of the local store."""
        assert found.position is not None
        started = time.monotonic()
        records = rebuild(
            plan, self._spec, self._reader, self._rocks, found.position, self._listener, at_ms=found.now_ms
        )
        self._require_in_time(found, found.now_ms, unfinished(self._spec.folder))
        self._close()
        take_place(self._spec.folder, points="load")
        self._database = self._open()
        save_rates(self._spec.folder.parent, found.rates.with_rebuild(records, time.monotonic() - started))
        return BroughtUp(self._database, plan, records)

    def _require_in_time(self, found: Found, version_at_ms: int, folder: Path) -> None:
        """Raise `Unavailable` if a deletion since the version may have been dropped before it was read."""
        age_s = (found.now_ms - version_at_ms) / 1000 + found.asked.age_s()
        if age_s * 1000 >= found.delete_retention_ms:
            self._close()
            wipe(folder)
            raise Unavailable(
                "replay took longer than the changelog keeps deletions",
                task=self._spec.name,
                seconds=round(age_s),
                hint="raise delete.retention.ms of the changelog",
            )

    def _restore(self, plan: RecoveryPlan, found: Found) -> Found:
        """Put the snapshot in the place of the local store and open it; gives the facts with the speed measured."""
        assert self._repository is not None
        offered = next(s for s in found.snapshots if s.key == plan.snapshot)
        manifest = _manifest(plan, found)
        self._listener.on_snapshot_downloaded(done=0, total=manifest.total_bytes)
        restored = restore_snapshot(
            self._repository,
            manifest,
            self._spec.folder,
            pin_life_s=self.pin_life_s,
            on_progress=lambda done, total: self._listener.on_snapshot_downloaded(done=done, total=total),
            release=lambda: self._make_room(manifest, found),
        )
        try:
            self._database = self._open()
            self._require_version(manifest)
        except RollforwardError as error:
            self._close()
            wipe(self._spec.folder)
            raise DataCorrupted("restored store is not what its manifest says", error=error) from error
        rates = found.rates.with_restore(restored.bytes, restored.seconds, offered.scheme)
        save_rates(self._spec.folder.parent, rates)
        return replace(found, rates=rates)

    def _make_room(self, manifest: Manifest, found: Found) -> None:
        """Close the local store. What comes in its place and is to be read is doubted until then, also by a next opening."""
        self._close()
        if self._is_to_be_read(manifest, found):
            doubted(self._spec.folder).touch()

    def _require_version(self, manifest: Manifest) -> None:
        assert self._database is not None
        stands = self._database.checkpoint()
        if stands is None or (stands.batch, stands.stores) != (manifest.batch, manifest.stores):
            raise DataCorrupted("store stands elsewhere", batch=stands and stands.batch, manifest=manifest.batch)

    def _require_digest(self, manifest: Manifest, found: Found) -> None:
        """Raise `DataCorrupted` if snapshot and tail do not give the version that was committed, `TaskCorrupted` if damaged."""
        assert self._database is not None and found.position is not None
        if not self._is_to_be_read(manifest, found):
            return
        digest, _ = digest_of(Placement(self._spec.store).scan(self._database.database))
        committed = found.position.digest
        if self._is_comparable(found) and digest != committed:
            raise DataCorrupted("it does not lead to the committed version", digest=digest, committed=committed)

    def _is_to_be_read(self, manifest: Manifest, found: Found) -> bool:
        """Whether what a snapshot leads to is read: where nothing else tells that it is right, and it is small.

        However large it is where the store before it was damaged: the snapshot may have been taken of that.
        """
        if doubted(self._spec.folder).exists():
            return True
        is_small = manifest.total_bytes <= READ_BYTES_MAX
        return self._is_comparable(found) and is_small and not hazards.is_proven(self._spec, manifest, found)

    def _is_comparable(self, found: Found) -> bool:
        """Whether the digest of all entries is that of the version: a replay may leave windows that have expired by then."""
        return (
            found.position is not None and found.position.digest is not None and self._spec.store.retention_ms is None
        )

    def _drop_ahead(self, found: Found) -> None:
        """Delete snapshots of batches that Kafka has lost: batches of the same numbers will come and be others.

        Raises `Unrecoverable` where they will not come.
        """
        if not hazards.has_later(self._spec, found):
            return
        hazards.require_positions(self._spec, found, self._standing(found))
        if self._repository is None or not found.ahead:
            return
        keys = list(found.ahead.values())
        log.error("deleting snapshots that are ahead of what is committed", task=self._spec.name, keys=keys)
        self._repository.objects.delete(keys)

    def _standing(self, found: Found) -> Standing:
        """Where the task stands now. Raises `Fenced` if a newer owner has come since the facts: what is ahead may be its own."""
        reach("recover.before-drop")
        standing = self._batches.standing(self._spec.number)
        is_other = self._epoch is not None and standing.newest_epoch != self._epoch
        if is_other or _batch(standing.position) != found.batch:
            raise Fenced(
                "a newer owner has the task",
                task=self._spec.name,
                epoch=self._epoch,
                newest=standing.newest_epoch,
                batch=_batch(standing.position),
                planned_with=found.batch,
                hint="nothing to do: the newer owner goes on with the work",
            )
        return standing

    def _close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def close(self) -> None:
        """Release the database after `run` has raised."""
        self._close()


def _batch(position: Position | None) -> int:
    return -1 if position is None else position.batch


def _manifest(plan: RecoveryPlan, found: Found) -> Manifest:
    """The manifest of the snapshot that a plan begins with."""
    manifest = next(s for s in found.snapshots if s.key == plan.snapshot).manifest
    assert manifest is not None
    return manifest


def _version_at_ms(plan: RecoveryPlan, found: Found) -> int:
    """When the version that a tail is replayed on became the store's; now if there is none."""
    if plan.way is Way.SNAPSHOT:
        return _manifest(plan, found).version_at_ms
    if plan.way is Way.FULL_REPLAY or found.checkpoint is None:
        return found.now_ms
    return found.checkpoint.written_at_ms
