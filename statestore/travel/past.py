"""One task's version at a batch of the past: whether it can be reached, and building it in a folder of its own.

A version is a snapshot of that batch, or an older snapshot and the changelog from there up to the batch. The changelog
is compacted: a record before the batch may be gone because a newer one of its key came after it, and then the version
cannot be had. So every offset of the tail must be accounted for: a record that was read; the marker of a commit, which
stands where a step ends; a record of an aborted transaction, or the marker right behind one. One writer at a time
appends to a changelog, so nothing else can be there. Anything else that is missing refuses the version. With the whole
tail there, how old the snapshot is does not matter: no deletion is missing either.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import TypeVar

from statestore.config import RocksConfig, TaskSpec
from statestore.errors import DataCorrupted, InvalidInput, Unavailable
from statestore.failpoints import reach
from statestore.kafka.reader import OffsetsGone, Reader, Record
from statestore.objects.base import ObjectMissing
from statestore.placement import Placement
from statestore.planning.facts import Found
from statestore.planning.hazards import why_not_snapshot
from statestore.recovery import Progress, stored_entries
from statestore.snapshots.manifest import Manifest, Step
from statestore.snapshots.repository import Repository
from statestore.snapshots.restore import restore_snapshot
from statestore.travel.known import BEGIN, Known
from statestore.version import ChangelogPosition, Checkpoint, TaskDatabase

T = TypeVar("T")
_FOREVER_MS = 1 << 62


class OutOfReach(InvalidInput):
    """A version of the past cannot be had any more; the fields say why, and which batches can."""


class TailIncomplete(Exception):
    """The changelog has lost records before the batch. `reached` is the newest batch that can be had."""

    def __init__(self, reached: int) -> None:
        super().__init__(reached)
        self.reached = reached


@dataclass(frozen=True)
class Base:
    """Where building begins: a snapshot, or the empty store for None. `chain` is its step and all up to the wanted one."""

    manifest: Manifest | None
    chain: tuple[Step, ...]


class PastTask:
    """One task's past. `repository` is None without snapshots. Nothing is owned, locked or written in Kafka."""

    def __init__(
        self, spec: TaskSpec, reader: Reader, repository: Repository | None, found: Found, known: Known
    ) -> None:
        self.spec = spec
        self.known = known
        self._reader = reader
        self._repository = repository
        self._found = found

    def bases(self, batch: int) -> tuple[list[Base], str]:
        """Where the version at `batch` can be built from, the nearest first, and why not from the others."""
        step = self.known.at(batch)
        if step is None:
            return [], "which of the task's batches came before is not known any more"
        if unreadable := self._why_unreadable(step):
            return [], unreadable
        found, refusals = [], []
        for offered in self._found.snapshots:
            manifest = offered.manifest
            if manifest is None or manifest.batch > step.batch or self._found.position is None:
                continue
            chain = self.known.chain(manifest.batch, step.batch)
            refused = self._why_not(manifest, step)
            if chain is None:
                refused = refused or "the batches since the snapshot are not all known any more"
            elif manifest.batch < step.batch:
                refused = refused or self._why_no_tail()
            if refused or chain is None:
                refusals.append(f"snapshot of batch {manifest.batch}: {refused}")
            else:
                found.append(Base(manifest, tuple(chain)))
        begin = self.known.chain(BEGIN, step.batch)
        refused = self._why_no_tail()
        if begin is None or self._found.changelog_first > 0:
            refused = refused or "it or the first batches are not known any more"
        if refused or begin is None:
            refusals.append(f"beginning of the changelog: {refused}")
        else:
            found.append(Base(None, tuple(begin)))
        return found, "; ".join(refusals)

    def _why_not(self, manifest: Manifest, step: Step) -> str:
        """The planner's hazards, for the version of then. The tail itself tells what compaction has taken."""
        assert self._found.position is not None
        stores = {
            name: replace(at, offset=step.offsets.get(name, at.offset))
            for name, at in self._found.position.stores.items()
        }
        then = replace(self._found.position, batch=step.batch, stores=stores)
        found = replace(self._found, position=then, delete_retention_ms=_FOREVER_MS)
        return why_not_snapshot(self.spec, manifest, found, stores[self.spec.store.name])

    def _why_unreadable(self, step: Step) -> str:
        """Why nobody could tell which of the stored windows could be read then."""
        if self.spec.store.retention_ms is None or step.order is not None:
            return ""
        return "how far the records' time had come was not recorded, so which windows could be read is not known"

    def _why_no_tail(self) -> str:
        """Why no record of the changelog may be taken for one of then."""
        position = self._found.position
        if position is None or position.stores[self.spec.store.name].topic_id == self._found.changelog_topic_id:
            return ""
        return "changelog topic was deleted and created again"

    # Building.

    def build(
        self,
        batch: int,
        folder: Path,
        rocks: RocksConfig,
        *,
        pin_life_s: float,
        on_progress: Progress = lambda _done, _total: None,
    ) -> tuple[Base, TaskDatabase]:
        """Make `folder` the version at `batch` and open it. Raises `OutOfReach` if that version cannot be had.

        The base is what the version was built from: not the nearest one where that could not be used.
        """
        return self._first_of(batch, lambda base: (base, self._build_on(base, folder, rocks, pin_life_s, on_progress)))

    def check(self, batch: int) -> Base:
        """Where the version at `batch` would be built from, its tail read. Raises `OutOfReach`."""

        def whole(base: Base) -> Base:
            reached = self._read_tail(base.chain, lambda _chunk, _done: None)
            if reached < base.chain[-1].batch:
                raise TailIncomplete(reached)
            return base

        return self._first_of(batch, whole)

    def _first_of(self, batch: int, use: Callable[[Base], T]) -> T:
        bases, refused = self.bases(batch)
        for base in bases:
            try:
                return use(base)
            except TailIncomplete as gap:
                # An older base needs this tail as well.
                refused = f"the changelog is compacted past it: what can be had is batch {gap.reached}"
                break
            except (ObjectMissing, DataCorrupted, Unavailable, OffsetsGone) as error:
                refused = f"{refused}; {error}"
        raise OutOfReach("version cannot be had any more", task=self.spec.name, batch=batch, reason=refused)

    def _build_on(
        self, base: Base, folder: Path, rocks: RocksConfig, pin_life_s: float, on_progress: Progress
    ) -> TaskDatabase:
        if base.manifest is None:
            # What an attempt before has left is no empty store.
            if folder.exists():
                shutil.rmtree(folder)
        else:
            assert self._repository is not None
            restore_snapshot(self._repository, base.manifest, folder, pin_life_s=pin_life_s, on_progress=on_progress)
        database = TaskDatabase(folder, [self.spec.store.name], rocks)
        try:
            self._require_version(base, database)
            self._write_tail(base, database, on_progress)
        except BaseException:
            database.close()
            raise
        return database

    def _require_version(self, base: Base, database: TaskDatabase) -> None:
        stands = database.checkpoint()
        expected = None if base.manifest is None else (base.manifest.batch, base.manifest.stores)
        if expected != (None if stands is None else (stands.batch, stands.stores)):
            raise DataCorrupted("restored store is not what its manifest says", task=self.spec.name)

    def _write_tail(self, base: Base, database: TaskDatabase, on_progress: Progress) -> None:
        store, last = self.spec.store.name, base.chain[-1]
        begin, placement = base.chain[0].offsets[store], Placement(self.spec.store)

        def write(chunk: list[Record], done: int) -> None:
            database.database.write(placement.placed(stored_entries(chunk)))
            reach("past.in-tail")
            on_progress(done - begin, last.offsets[store] - begin)

        reached = self._read_tail(base.chain, write)
        if reached < last.batch:
            raise TailIncomplete(reached)
        topic_id = self.spec.store.changelog_topic_id
        at = {store: ChangelogPosition(topic_id, last.offsets[store])}
        space, entries = database.entries(Checkpoint(last.batch, at))
        database.database.write({space: entries})
        reach("past.built")

    def _read_tail(self, chain: Sequence[Step], take: Callable[[list[Record], int], None]) -> int:
        """Read the records between a chain's first and last step; gives the last batch that is whole."""
        store = self.spec.store.name
        ends = sorted({step.offsets[store] for step in chain})
        # No commit ends before the first record.
        markers, at = set(ends) - {0}, ends[0]

        def lost_before(offset: int) -> int | None:
            lost = _first_lost(at, offset, markers)
            return lost if lost is None else _first_lost(lost, offset, markers | self._aborted(lost, offset))

        chunks = self._reader.read(self.spec.store.changelog_topic, self.spec.number, start=at, end=ends[-1])
        for chunk in chunks:
            for record in chunk:
                if record.offset != at and (lost := lost_before(record.offset)) is not None:
                    return _whole(chain, store, lost)
                at = record.offset + 1
            take(chunk, at)
        lost = lost_before(ends[-1])
        return chain[-1].batch if lost is None else _whole(chain, store, lost)

    def _aborted(self, start: int, end: int) -> set[int]:
        """Offsets of aborted records, and of the markers behind them, where no committed record is."""
        chunks = self._reader.read(
            self.spec.store.changelog_topic, self.spec.number, start=start, end=end, uncommitted=True
        )
        offsets = {record.offset for chunk in chunks for record in chunk}
        return offsets | {offset + 1 for offset in offsets}

    # Looking.

    def is_whole(self, manifest: Manifest) -> bool:
        """Whether storage has every file of a snapshot, by name and size."""
        return self._repository is not None and self._repository.is_whole(manifest)

    def reachable(self, near: int) -> list[tuple[int, int]]:
        """Ranges of batches, both ends included, whose versions can be had: from the bases before and behind `near`."""
        found = []
        for manifest in self._manifests():
            step = self.known.steps.get(manifest.batch) or Step(
                manifest.batch, {name: at.offset for name, at in manifest.stores.items()}, manifest.version_at_ms
            )
            if not (self._why_not(manifest, step) or self._why_unreadable(step)):
                found.append((manifest.batch, self.known.last_certain(manifest.batch)))
        bases, _ = self.bases(near)
        start = bases[0].chain[0] if bases else self._nearest_before(near)
        if start is not None and not self._why_no_tail():
            chain = [start, *self.known.after(start.batch)]
            try:
                reached = self._read_tail(chain, lambda _chunk, _done: None)
            except OffsetsGone:
                return found
            found += self._readable(step for step in chain if step.batch <= reached)
        return found

    def _readable(self, chain: Iterable[Step]) -> Iterator[tuple[int, int]]:
        """The ranges of batches, both ends included, in which every step of a chain can be read."""
        for unreadable, steps in groupby(chain, key=self._why_unreadable):
            if not unreadable:
                first, *others = steps
                yield first.batch, self.known.last_certain(others[-1].batch if others else first.batch)

    def _manifests(self) -> list[Manifest]:
        return [offered.manifest for offered in self._found.snapshots if offered.manifest is not None]

    def _nearest_before(self, near: int) -> Step | None:
        """The step to begin with where none leads to `near`: of the newest snapshot before it, or the beginning."""
        batches = [m.batch for m in self._manifests() if m.batch <= near and m.batch in self.known.steps]
        if batches:
            return self.known.steps[max(batches)]
        return self.known.steps.get(BEGIN) if self._found.changelog_first == 0 else None


def _first_lost(start: int, end: int, markers: set[int]) -> int | None:
    """The first offset from `start` up to `end`, excluded, that no commit's marker stands at."""
    return next((offset for offset in range(start, end) if offset not in markers), None)


def _whole(chain: Sequence[Step], store: str, lost: int) -> int:
    """The last batch that ends before the lost record."""
    return max(step.batch for step in chain if step.offsets[store] <= lost)
