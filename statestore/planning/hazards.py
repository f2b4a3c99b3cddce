"""Why a version must not be used: every hazard of recovery, with its own message.

A version is what a local store or a snapshot holds. Where it stands at the committed batch there is no tail to
replay, and what Kafka may have forgotten since does not matter.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from statestore.batches import Position, Standing
from statestore.config import TaskSpec
from statestore.errors import Unrecoverable
from statestore.planning.facts import Found
from statestore.snapshots.manifest import Manifest, is_same
from statestore.version import FORMAT, ChangelogPosition

# How far the clocks of those who write versions and of those who read them may differ.
CLOCKS_DIFFER_MS = 600_000


@dataclass(frozen=True)
class Version:
    """`what` is `local store` or `snapshot`, for messages; `written_at_ms` is when it became the store's version.

    `digest` is None where the version has none.
    """

    what: str
    batch: int
    at: ChangelogPosition
    written_at_ms: int
    digest: str | None


@dataclass(frozen=True)
class Tail:
    """What a version has to catch up with: a changelog, the first offset present in it, and how long it keeps deletions."""

    topic_id: str
    first: int
    delete_retention_ms: int
    now_ms: int


def why_not_from(what: str, at: ChangelogPosition, written_at_ms: int, tail: Tail, *, ahead: str, level: bool) -> str:
    """Why a version must not be used with the tail behind it; empty if it may be.

    `ahead` says how it is ahead of what is committed, if it is; one that is `level` with it needs no tail.
    """
    if at.topic_id != tail.topic_id:
        return f"{what} belongs to another changelog topic"
    if ahead or level:
        return ahead
    if at.offset < tail.first:
        return f"changelog begins after the {what}'s offset"
    if written_at_ms > tail.now_ms + CLOCKS_DIFFER_MS:
        # A clock that was ahead would make an old version young.
        return f"{what}'s age is not known: it was written later than now"
    if tail.now_ms - written_at_ms >= tail.delete_retention_ms:
        # Compaction drops a deletion's record after that time: a key deleted since would come back.
        return f"{what} is older than the changelog keeps deletions"
    return ""


def require_changelog(spec: TaskSpec, found: Found, committed: ChangelogPosition) -> None:
    """Raise `Unrecoverable` where no version helps, because Kafka's side of the truth is not what was committed."""
    if found.changelog_topic_id != committed.topic_id:
        raise Unrecoverable(
            "changelog topic was deleted and created again",
            task=spec.name,
            topic=spec.store.changelog_topic,
            recorded_topic_id=committed.topic_id,
            topic_id=found.changelog_topic_id,
            hint="restore the topic from a backup, or start the query anew under another name",
        )
    if found.changelog_end < committed.offset:
        raise Unrecoverable(
            "changelog ends before the committed position: kafka has lost its tail",
            task=spec.name,
            topic=spec.store.changelog_topic,
            position=committed.offset,
            end=found.changelog_end,
            hint="restore the topic from a backup, or start the query anew under another name",
        )


def has_later(spec: TaskSpec, found: Found) -> bool:
    """Whether anything is there of after the position: store, snapshots, or records of the changelog."""
    return bool(_ahead_of(spec, found)) or found.behind is not None


def _ahead_of(spec: TaskSpec, found: Found) -> list[int]:
    """The batches after the committed one that the local store and snapshots stand at, of this changelog."""
    local = _local_ahead(spec, found)
    return [*found.ahead] if local is None else [*found.ahead, local]


def _local_ahead(spec: TaskSpec, found: Found) -> int | None:
    if found.checkpoint is None or found.checkpoint.batch <= found.batch:
        return None
    local = found.checkpoint.stores.get(spec.store.name)
    is_of_this = local is not None and local.topic_id == found.changelog_topic_id
    return found.checkpoint.batch if is_of_this else None


def require_positions(spec: TaskSpec, found: Found, standing: Standing) -> None:
    """Raise `Unrecoverable` where Kafka has lost the end of the task's positions, as far as anything shows it.

    What is ahead of the position was committed once, when the batch before it was done. Where Kafka was put back as a whole,
    "done" went back as well: those batches come again, and what is ahead is of no use. Where "done" is as it was then, the
    positions alone were lost, and nobody runs a batch again that is done. A record behind the position tells that, too: each is
    committed together with a position behind it. There is no way on then: the next batch would come behind those records,
    and whoever replays it would apply them, which no store has that goes on from the position.
    """
    lost = [batch for batch in _ahead_of(spec, found) if batch <= standing.done + 1]
    if found.batch >= standing.done or (not lost and found.behind is None):
        return
    hint = "restore the batches topic from a backup, or start the query anew under another name"
    if found.behind is None:
        hint += "; to go on without those batches, move away what `local` and `snapshots` name"
    raise Unrecoverable(
        "kafka has lost committed batches of this task",
        task=spec.name,
        topic=spec.batches_topic,
        partition=spec.number,
        committed=found.batch,
        done=standing.done,
        **_what_shows_it(spec, found, lost),
        hint=hint,
    )


def _what_shows_it(spec: TaskSpec, found: Found, lost: list[int]) -> dict[str, Any]:
    """That batches were lost; nothing that has no part in it is named."""
    shows = {
        "ahead": max(lost, default=None),
        "local": spec.folder if _local_ahead(spec, found) in lost else None,
        "snapshots": [found.ahead[batch] for batch in lost if batch in found.ahead] or None,
        "record_behind": found.behind,
    }
    return {name: shown for name, shown in shows.items() if shown is not None}


def why_not(version: Version, found: Found, committed: ChangelogPosition) -> str:
    """Why the version must not be used; empty if it may be."""
    assert found.position is not None
    position = found.position
    ahead = ""
    if version.batch > position.batch or version.at.offset > committed.offset:
        ahead = f"{version.what} is ahead: it stands at batch {version.batch}, batch {position.batch} is committed"
    tail = Tail(committed.topic_id, found.changelog_first, found.delete_retention_ms, found.now_ms)
    level = version.batch == position.batch
    return why_not_from(version.what, version.at, version.written_at_ms, tail, ahead=ahead, level=level)


def why_not_local(spec: TaskSpec, found: Found, committed: ChangelogPosition) -> str:
    """Why the local store must not be used."""
    checkpoint = found.checkpoint
    if checkpoint is None or spec.store.name not in checkpoint.stores:
        return found.problem or "no local store"
    if checkpoint.tasks not in (0, spec.tasks):
        return f"local store was written with {checkpoint.tasks} state partitions, the query has {spec.tasks}"
    assert found.position is not None
    known = (*found.positions, found.position)
    if checkpoint.plan not in ("", found.position.plan):
        return "local store was written under another plan: its states may have another schema"
    local = checkpoint.stores[spec.store.name]
    version = Version("local store", checkpoint.batch, local, checkpoint.written_at_ms, checkpoint.digest)
    return why_not(version, found, committed) or _why_lost(version, spec, known)


def why_not_snapshot(spec: TaskSpec, manifest: Manifest, found: Found, committed: ChangelogPosition) -> str:
    """Why a snapshot must not be used."""
    assert found.position is not None
    if manifest.store_format != FORMAT:
        return f"snapshot's store has format {manifest.store_format}, this program reads {FORMAT}"
    if (manifest.pipeline, manifest.query, manifest.task) != (spec.pipeline, spec.query, spec.number):
        return f"snapshot is of task {manifest.query}-{manifest.task} of {manifest.pipeline}"
    if manifest.tasks != spec.tasks:
        return f"snapshot was taken with {manifest.tasks} state partitions, the query has {spec.tasks}"
    if manifest.batches_topic_id != found.batches_topic_id:
        return "snapshot belongs to another batches topic"
    if manifest.plan != found.position.plan:
        return "snapshot was taken under another plan: its states may have another schema"
    if spec.store.name not in manifest.stores:
        return f"snapshot has no store {spec.store.name}"
    version = _version_of(spec, manifest)
    return why_not(version, found, committed) or _why_lost(version, spec, found.positions)


def why_of_another_timeline(spec: TaskSpec, manifest: Manifest, found: Found) -> str:
    """Why the snapshot's batch is not the one that was committed; empty if it is, or where no position tells."""
    if spec.store.name not in manifest.stores:
        return ""
    return _why_lost(_version_of(spec, manifest), spec, found.positions)


def _version_of(spec: TaskSpec, manifest: Manifest) -> Version:
    at = manifest.stores[spec.store.name]
    return Version("snapshot", manifest.batch, at, manifest.version_at_ms, manifest.digest)


def _why_lost(version: Version, spec: TaskSpec, known: Iterable[Position]) -> str:
    """Why the version is of a lost timeline, by positions that were committed; empty if it is not, or where none tells.

    Where Kafka was put back to an earlier state, or has lost its end, batches of the same numbers come again and are
    others. Of one timeline, later batches never end at smaller offsets.
    """
    batch, stands, store = version.batch, version.at, spec.store.name
    beside = [(one, one.stores[store]) for one in known if store in one.stores]
    comparable = [(one, at.offset) for one, at in beside if at.topic_id == stands.topic_id]
    same = [is_same(version.digest, one.digest) and at == stands.offset for one, at in comparable if one.batch == batch]
    if same and not any(same):
        return f"{version.what} is of a lost timeline: another batch {batch} was committed"
    for one, at in comparable:
        if (one.batch < batch and at > stands.offset) or (one.batch > batch and at < stands.offset):
            return f"{version.what} is of a lost timeline: batch {one.batch} was committed up to offset {at}"
    return ""


def is_proven(spec: TaskSpec, manifest: Manifest, found: Found) -> bool:
    """Whether a position says that the snapshot's very content was committed with its batch: nobody has to read it."""
    same = (one for one in found.positions if one.batch == manifest.batch)
    at = manifest.stores[spec.store.name]
    return manifest.digest is not None and any(
        (one.digest, one.stores.get(spec.store.name)) == (manifest.digest, at) for one in same
    )


def why_beheaded(first: int, cleanup_policy: str = "compact") -> str:
    """Why a changelog that begins at this offset lacks records that nothing made obsolete; empty if it does not.

    `cleanup_policy` is what it is meant to be cleaned by: one with `delete` is meant to lose what is old.
    """
    # Compaction never moves a log's beginning; only deleting records does.
    if first > 0 and "delete" not in cleanup_policy:
        return f"changelog's records before offset {first} were deleted"
    return ""


def why_not_full(found: Found) -> str:
    """Why the changelog alone does not give the store."""
    # Unlike a program's, a pipeline's is never meant to lose its beginning, whatever somebody has made its policy since.
    return why_beheaded(found.changelog_first)
