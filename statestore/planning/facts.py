"""The facts that a recovery is planned from. Gathering them changes nothing.

The changelog's end is read as `read_uncommitted`: an open transaction would hide committed records behind it. The
position is read by the caller, after its `init_transactions` has finished every older transaction.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from statestore.batches import OFFSETS_A_COMMIT, BatchesLog, Position
from statestore.clock import Moment
from statestore.config import TaskSpec
from statestore.errors import FormatUnsupported, RollforwardError, TaskCorrupted, Unrecoverable
from statestore.folders import doubted, unfinished
from statestore.kafka.admin import Admin
from statestore.kafka.reader import Reader
from statestore.patience import within
from statestore.planning.rates import Rates, load_rates
from statestore.snapshots.manifest import Manifest
from statestore.snapshots.repository import Repository, Unreadable
from statestore.version import Checkpoint

# By what opening a local store says that another way is needed: the store is a cache, and what it may be made again from
# is asked next.
UNUSABLE = (TaskCorrupted, FormatUnsupported)
# The plan shows why older ones are refused; more than these help nobody.
SNAPSHOTS_MAX = 20
# How many commits that were given up are looked past for the local store's batch.
_GIVEN_UP = 50


@dataclass(frozen=True)
class SnapshotFound:
    """A snapshot that is offered, or the key of one with why it cannot be (`refused`)."""

    key: str
    scheme: str
    manifest: Manifest | None
    refused: str = ""


@dataclass(frozen=True)
class Found:
    """What was found. `checkpoint` is None for a missing or unusable store, `problem` says why.

    `changelog_first` and `changelog_end` are its first offset and the one after its last. `leftovers` are paths of
    work that was never finished. `snapshots` are newest first; `snapshots_problem` says why there are none to offer.
    `ahead` has the key of every snapshot of a batch after the committed one, by batch. `positions` are the task's that the batches
    topic still has, oldest first: those since the local store's batch, if that is behind, and all where snapshots are
    compared with them. `now_ms` is that of `asked`, before the position was read. `done` is the query's newest batch that is done,
    -1 where nobody has asked; `behind` is the offset of the first committed record that the changelog has after the position,
    looked for only where batches are done since.
    """

    checkpoint: Checkpoint | None
    problem: str
    position: Position | None
    changelog_topic_id: str
    changelog_first: int
    changelog_end: int
    delete_retention_ms: int
    now_ms: int
    batches_topic_id: str = ""
    leftovers: tuple[str, ...] = ()
    snapshots: tuple[SnapshotFound, ...] = ()
    snapshots_problem: str = ""
    ahead: Mapping[int, str] = field(default_factory=dict)
    positions: tuple[Position, ...] = ()
    done: int = -1
    behind: int | None = None
    rates: Rates = field(default_factory=Rates)
    asked: Moment = field(default_factory=Moment)

    @property
    def batch(self) -> int:
        """The newest that the task has committed; -1 if it has none."""
        return -1 if self.position is None else self.position.batch

    @property
    def may_lack_positions(self) -> bool:
        """Whether batches are done since the position: they had no row for the task, or Kafka has lost its newest positions."""
        return self.done > self.batch

    def without(self, key: str, reason: str) -> Found:
        """The same facts after one snapshot has turned out to be of no use."""
        changed = (replace(s, refused=reason) if s.key == key else s for s in self.snapshots)
        return replace(self, snapshots=tuple(changed))


def unusable(error: RollforwardError) -> str:
    """One of `UNUSABLE` as the `problem` of a local store."""
    if isinstance(error, FormatUnsupported):
        return f"local store has format {error.fields['found']}, this program reads {error.fields['supported']}"
    return f"local store is unusable: {error}"


def why_not_opened(folder: Path) -> str:
    """The `problem` of a local store that is not to be opened; empty if it may be."""
    return "local store was damaged, or never read after it had been restored" if doubted(folder).exists() else ""


def gather(
    spec: TaskSpec,
    reader: Reader,
    admin: Admin,
    position: Position | None,
    checkpoint: Checkpoint | None,
    problem: str,
    asked: Moment,
) -> Found:
    """What Kafka and the disk say; `with_done` and `with_snapshots` add to it. Raises `Unrecoverable` without a changelog.

    asked: made before the caller asked for the position.
    """
    topic = spec.store.changelog_topic
    topics = admin.describe([topic, spec.batches_topic])
    if topic not in topics:
        raise Unrecoverable("changelog topic is missing", task=spec.name, topic=topic)
    first, end = reader.begin_and_end(topic, spec.number)
    delete_retention_ms = int(admin.configs(topic).get("delete.retention.ms", "86400000"))
    batches = topics.get(spec.batches_topic)
    new = unfinished(spec.folder)
    return Found(
        checkpoint,
        problem,
        position,
        topics[topic].topic_id,
        first,
        end,
        delete_retention_ms,
        asked.at_ms,
        batches_topic_id="" if batches is None else batches.topic_id,
        leftovers=(str(new),) if new.exists() else (),
        positions=_positions_since(spec, reader, checkpoint, position),
        rates=load_rates(spec.folder.parent),
        asked=asked,
    )


def _positions_since(
    spec: TaskSpec, reader: Reader, checkpoint: Checkpoint | None, position: Position | None
) -> tuple[Position, ...]:
    """Those since the batch that a local store stands at, whose own tells whether it is the one that was committed."""
    if checkpoint is None or position is None or checkpoint.batch >= position.batch:
        return ()
    _, end = reader.begin_and_end(spec.batches_topic, spec.number)
    start = end - (position.batch - checkpoint.batch + _GIVEN_UP) * OFFSETS_A_COMMIT
    recorded = BatchesLog(reader, spec.batches_topic, tasks=spec.tasks).positions(spec.number, start=start)
    return tuple(one.position for one in recorded)


def with_done(found: Found, spec: TaskSpec, reader: Reader, done: int, *, transactions: bool) -> Found:
    """Add what is done, and what the changelog has behind a position that is older.

    Whoever judges by it asks for the position once more: a record behind one that still stands was not written meanwhile.
    """
    found = replace(found, done=done)
    # Without transactions a crash leaves records of a batch that has no position yet.
    if not transactions or not found.may_lack_positions:
        return found
    return replace(found, behind=_first_behind(found, spec, reader))


def _first_behind(found: Found, spec: TaskSpec, reader: Reader) -> int | None:
    start = found.changelog_first
    if found.position is not None:
        committed = found.position.stores[spec.store.name]
        if committed.topic_id != found.changelog_topic_id:
            return None
        start = max(start, committed.offset)
    # Of a transaction that is open nothing is committed, and nobody waits for it.
    end = reader.stable_end(spec.store.changelog_topic, spec.number)
    first = next(reader.read(spec.store.changelog_topic, spec.number, start=start, end=end), None)
    return first[0].offset if first else None


def with_snapshots(found: Found, repository: Repository, *, patience_s: float = math.inf) -> Found:
    """Add what object storage offers. Storage that does not answer, in that time, is a fact too: there may be another way."""
    scheme = repository.objects.url.partition(":")[0]
    committed = found.batch
    try:
        listed = partial(_listed, repository, committed)
        batches, read = listed() if patience_s == math.inf else within(patience_s, "a list of snapshots", listed)
    except (RollforwardError, TimeoutError) as error:
        return replace(found, snapshots_problem=f"snapshots cannot be read: {error}")
    # They are of no use whatever is in them, and must not take the places of those that are.
    ahead = {batch: repository.layout.manifest(batch) for batch in batches if batch > committed}
    snapshots = (
        *(_ahead(key, scheme, batch, committed) for batch, key in list(ahead.items())[:SNAPSHOTS_MAX]),
        *(_offered(repository, scheme, each) for each in read),
    )
    problem = "" if snapshots else "there is no snapshot"
    return replace(found, snapshots=snapshots, snapshots_problem=problem, ahead=ahead)


def _listed(repository: Repository, committed: int) -> tuple[list[int], list[Manifest | Unreadable]]:
    """The batches of all snapshots, newest first, and those of use."""
    batches = repository.batches()[::-1]
    return batches, repository.read_all([batch for batch in batches if batch <= committed][:SNAPSHOTS_MAX])


def _ahead(key: str, scheme: str, batch: int, committed: int) -> SnapshotFound:
    reason = f"snapshot is ahead: it stands at batch {batch}, batch {committed} is committed"
    return SnapshotFound(key, scheme, None, reason)


def _offered(repository: Repository, scheme: str, manifest: Manifest | Unreadable) -> SnapshotFound:
    if isinstance(manifest, Unreadable):
        return SnapshotFound(manifest.key, scheme, None, manifest.reason)
    return SnapshotFound(repository.layout.manifest(manifest.batch), scheme, manifest)
