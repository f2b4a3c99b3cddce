"""Comparing a store with what was committed, with its changelog, or with a snapshot of it, without stopping anybody.

Every position has the digest of its version (`statestore.digest`): the store is read once and its digest compared.
Where they differ, or nobody knows the digest of the store's batch any more, store and changelog are compared key by key.

The changelog is replayed up to the offset at which the store stands into a store of its own, and both are walked side
by side in key order. Compaction may have dropped a record before that offset because a newer one of its key came
after it; such keys say nothing about the store as it stands, so keys of the tail are left out and counted.

A snapshot of the store's own batch has the digest of its version in its manifest: the store is read once, and nothing is
downloaded where that is the store's. An older snapshot is brought to the store's batch with the changelog's tail, which
takes less than the whole changelog, and both are compared key by key.
"""

from __future__ import annotations

import shutil
import time
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from statestore.batches import BatchesLog
from statestore.config import RocksConfig, TaskSpec
from statestore.digest import EMPTY, Digesting, digest_of
from statestore.errors import Unrecoverable
from statestore.folders import replaced, unfinished
from statestore.kafka.reader import Reader
from statestore.placement import Placement
from statestore.recovery import Progress, stored_entries
from statestore.store import Entry
from statestore.travel.past import Base, PastTask
from statestore.version import Checkpoint, TaskDatabase

# More names help nobody; the count is exact.
MISMATCHES_NAMED = 20
_BUCKETS = 10_000


@dataclass(frozen=True)
class Mismatch:
    """One key, in hexadecimal, that differs: `missing`, `unexpected` or `another value`, seen from the store."""

    key: str
    kind: str


@dataclass(frozen=True)
class Verified:
    """How a comparison went. `changed_since` counts keys left out because the changelog has newer records of them.

    `digest_differs` says that the store's digest is not the one that was committed, whatever the keys say.
    `against` is what the store was compared with: `digest`, `changelog`, or `snapshot <batch>`. The digests are those of
    what was compared, the store's and the other's.
    """

    task: str
    batch: int
    keys: int
    changed_since: int
    mismatch_count: int
    mismatches: tuple[Mismatch, ...]
    store_digest: str
    other_digest: str
    seconds: float
    against: str = "changelog"
    digest_differs: bool = False

    @property
    def differs(self) -> bool:
        """Whether anything is not as it has to be."""
        return self.digest_differs or self.mismatch_count > 0

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "seconds": round(self.seconds, 3)}


def is_sampled(key: bytes, percent: float) -> bool:
    """Whether a key is in the sample: the same keys every time, whatever order they come in."""
    return percent >= 100 or zlib.crc32(key) % _BUCKETS < percent * _BUCKETS / 100


def verify_digest(spec: TaskSpec, batches: BatchesLog, database: TaskDatabase) -> Verified | None:
    """Read the store of an open database once and compare its digest with the one that was committed with its batch.

    None where the batch's position is gone or has no digest. Where they differ, `verify` can name the keys.

    Raises `Unrecoverable` for a store without a version: there is nothing to compare.
    """
    started, batch = time.monotonic(), _checkpoint(spec, database).batch
    recorded = (one.position for one in batches.positions(spec.number))
    committed = EMPTY if batch < 0 else next((p.digest for p in recorded if p.batch == batch), None)
    if committed is None:
        return None
    found, keys = digest_of(Placement(spec.store).scan(database.database))
    seconds = time.monotonic() - started
    return Verified(spec.name, batch, keys, 0, 0, (), found, committed, seconds, "digest", found != committed)


def _checkpoint(spec: TaskSpec, database: TaskDatabase) -> Checkpoint:
    found = database.checkpoint()
    if found is None:
        raise Unrecoverable("store is not complete, so there is nothing to compare", task=spec.name)
    return found


def verify(
    spec: TaskSpec,
    reader: Reader,
    database: TaskDatabase,
    work: Path,
    *,
    percent: float = 100.0,
    on_progress: Progress = lambda _done, _total: None,
) -> Verified:
    """Compare the store of an open database, which may be read-only, with the changelog. `work` is ours to make.

    Raises `Unrecoverable` for a store without a version: there is nothing to compare.
    """
    started = time.monotonic()
    checkpoint = _checkpoint(spec, database)
    offset = checkpoint.stores[spec.store.name].offset
    shutil.rmtree(work, ignore_errors=True)
    expected = TaskDatabase(work, [spec.store.name], RocksConfig())
    try:
        changed = _replay(spec, reader, expected, offset, percent, on_progress)
        left, right = (_sampled(spec, each, percent, changed) for each in (database, expected))
        return _compare(spec, checkpoint.batch, left, right, len(changed), started)
    finally:
        expected.close()
        shutil.rmtree(work, ignore_errors=True)


def verify_against(
    spec: TaskSpec,
    database: TaskDatabase,
    past: PastTask,
    work: Path,
    *,
    pin_life_s: float,
    percent: float = 100.0,
    full: bool = False,
) -> Verified:
    """Compare the store of an open database with the newest snapshot, brought to the same batch.

    Where the snapshot is of that batch and has its digest, and nothing but whole stores is asked for, an equal digest
    is enough and the snapshot is only listed; `full` compares the keys all the same.

    Raises `Unrecoverable` for a store without a version, and `OutOfReach` where no snapshot leads to its batch.
    """
    started = time.monotonic()
    checkpoint = _checkpoint(spec, database)
    shutil.rmtree(work, ignore_errors=True)
    try:
        by_digest = None if full or percent < 100 else _by_digest(spec, database, past, checkpoint.batch)
        if by_digest is not None and not by_digest.differs:
            return by_digest
        base, expected = past.build(checkpoint.batch, work, RocksConfig(), pin_life_s=pin_life_s)
        try:
            left, right = (_sampled(spec, each, percent, set()) for each in (database, expected))
            compared = _compare(spec, checkpoint.batch, left, right, 0, started)
        finally:
            expected.close()
    finally:
        for folder in (work, unfinished(work), replaced(work)):
            shutil.rmtree(folder, ignore_errors=True)
    return replace(compared, against=_name_of(base), digest_differs=by_digest is not None)


def _name_of(base: Base) -> str:
    return "changelog" if base.manifest is None else f"snapshot {base.manifest.batch}"


def _by_digest(spec: TaskSpec, database: TaskDatabase, past: PastTask, batch: int) -> Verified | None:
    """Read the store once and compare its digest with the snapshot's; None where that says nothing of the snapshot."""
    bases, _ = past.bases(batch)
    manifest = bases[0].manifest if bases else None
    if manifest is None or manifest.digest is None or len(bases[0].chain) > 1 or not past.is_whole(manifest):
        return None
    started = time.monotonic()
    found, keys = digest_of(Placement(spec.store).scan(database.database))
    seconds = time.monotonic() - started
    differs = found != manifest.digest
    return Verified(spec.name, batch, keys, 0, 0, (), found, manifest.digest, seconds, _name_of(bases[0]), differs)


def _replay(
    spec: TaskSpec, reader: Reader, expected: TaskDatabase, offset: int, percent: float, on_progress: Progress
) -> set[bytes]:
    """Write the changelog up to `offset` into `expected`; gives the sampled keys that have newer records."""
    topic, changed, placement = spec.store.changelog_topic, set[bytes](), Placement(spec.store)
    first, end = reader.begin_and_end(topic, spec.number)
    for chunk in reader.read(topic, spec.number, start=first, end=end):
        sampled = [record for record in chunk if is_sampled(record.key or b"", percent)]
        expected.database.write(placement.placed(stored_entries([r for r in sampled if r.offset < offset])))
        changed.update(record.key or b"" for record in sampled if record.offset >= offset)
        on_progress(chunk[-1].offset + 1 - first, end - first)
    return changed


def _sampled(spec: TaskSpec, database: TaskDatabase, percent: float, changed: set[bytes]) -> Iterator[Entry]:
    for key, value in Placement(spec.store).scan(database.database):
        if key not in changed and is_sampled(key, percent):
            yield key, value


def _compare(
    spec: TaskSpec, batch: int, left: Iterator[Entry], right: Iterator[Entry], changed: int, started: float
) -> Verified:
    """Walk the store (left) and the changelog (right) in key order."""
    stored, compared = Digesting(left), Digesting(right)
    left, right = iter(stored), iter(compared)
    found: list[Mismatch] = []
    keys = count = 0
    ours, theirs = next(left, None), next(right, None)
    while ours is not None or theirs is not None:
        keys += 1
        here = ours is not None and (theirs is None or ours[0] <= theirs[0])
        there = theirs is not None and (ours is None or theirs[0] <= ours[0])
        kind = "unexpected" if not there else "missing" if not here else "another value" if ours != theirs else ""
        key = b""
        if here and ours is not None:
            key = ours[0]
            ours = next(left, None)
        if there and theirs is not None:
            key = theirs[0]
            theirs = next(right, None)
        if kind:
            count += 1
            if len(found) < MISMATCHES_NAMED:
                found.append(Mismatch(key.hex(), kind))
    seconds = time.monotonic() - started
    return Verified(spec.name, batch, keys, changed, count, tuple(found), stored.digest, compared.digest, seconds)
