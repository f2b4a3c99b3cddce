"""Finding the cheapest correct way from what is on disk to the last committed version, and going it.

`plan_recovery` only decides, from facts gathered before, so that it can be shown without being done; `replay` does
the work. The position record says what is committed; the store is a cache that is trusted only where it agrees.

While a tail is replayed the checkpoint stays at the old version: dying in the middle means to replay the same tail
again, and since changelog values are absolute, that gives the same store. A full replay starts from a wiped folder
and writes its first checkpoint at the end, so an unfinished one has none and is wiped again.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from statestore.batches import Position
from statestore.config import TaskSpec
from statestore.errors import Unrecoverable
from statestore.failpoints import reach
from statestore.kafka import Reader, Record
from statestore.spaces.base import Changes
from statestore.version import ChangelogPosition, Checkpoint, TaskDatabase

Progress = Callable[[int, int], None]
_TIME = struct.Struct(">q")


class Way(Enum):
    """How a task gets to its committed version, cheapest first."""

    NOTHING = "nothing"
    ROLL_FORWARD = "roll forward"
    FULL_REPLAY = "full replay"


@dataclass(frozen=True)
class Found:
    """The facts a plan is made from. `checkpoint` is None for a missing or unusable store, `problem` says why.

    `changelog_first` and `changelog_end` are its first offset and the one after its last.
    """

    checkpoint: Checkpoint | None
    problem: str
    position: Position | None
    changelog_topic_id: str
    changelog_first: int
    changelog_end: int
    delete_retention_ms: int
    now_ms: int


@dataclass(frozen=True)
class RecoveryPlan:
    """What to do for one task and why. Offsets of the changelog: `start` included, `end` not."""

    task: str
    way: Way
    reason: str
    batch: int
    start: int
    end: int
    discard_local: bool

    def to_json(self) -> dict[str, Any]:
        """Plain values for people and machines."""
        return {**asdict(self), "way": self.way.value, "offsets": self.end - self.start}


def plan_recovery(spec: TaskSpec, found: Found) -> RecoveryPlan:
    """The cheapest correct way. Raises `Unrecoverable` if there is none."""
    store = spec.store.name
    if found.position is None:
        discard = found.checkpoint is not None or bool(found.problem)
        reason = "store belongs to no committed batch" if discard else "no batch was committed yet"
        return RecoveryPlan(spec.name, Way.NOTHING, reason, -1, 0, 0, discard)
    committed = found.position.stores[store]
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
        )
    batch, end = found.position.batch, committed.offset
    refused = _why_not_local(store, found, committed)
    if refused:
        return RecoveryPlan(spec.name, Way.FULL_REPLAY, refused, batch, found.changelog_first, end, True)
    assert found.checkpoint is not None
    local = found.checkpoint.stores[store]
    if found.checkpoint.batch == batch:
        return RecoveryPlan(spec.name, Way.NOTHING, "store stands at the committed batch", batch, end, end, False)
    reason = f"store stands at batch {found.checkpoint.batch}, batch {batch} is committed"
    return RecoveryPlan(spec.name, Way.ROLL_FORWARD, reason, batch, local.offset, end, False)


def _why_not_local(store: str, found: Found, committed: ChangelogPosition) -> str:
    """Why the local store must not be used; empty if it may be."""
    checkpoint = found.checkpoint
    if checkpoint is None or store not in checkpoint.stores:
        return found.problem or "no local store"
    local = checkpoint.stores[store]
    assert found.position is not None
    if local.topic_id != committed.topic_id:
        return "local store belongs to another changelog topic"
    if checkpoint.batch > found.position.batch or local.offset > committed.offset:
        return f"local store is ahead: it stands at batch {checkpoint.batch}, batch {found.position.batch} is committed"
    if checkpoint.batch == found.position.batch:
        return ""
    if local.offset < found.changelog_first:
        return "changelog begins after the local store's offset"
    if found.now_ms - checkpoint.written_at_ms >= found.delete_retention_ms:
        # Compaction drops a deletion's record after that time: a key deleted since would come back.
        return "local store is older than the changelog keeps deletions"
    return ""


def replay(
    plan: RecoveryPlan,
    spec: TaskSpec,
    reader: Reader,
    database: TaskDatabase,
    position: Position,
    on_progress: Progress,
) -> int:
    """Bring the store to the plan's version; gives the number of records applied. `on_progress` gets (done, total)."""
    store = spec.store.name
    reach("recover.before-replay")
    applied = 0
    chunks = reader.read(spec.store.changelog_topic, spec.number, start=plan.start, end=plan.end)
    for chunk in chunks:
        database.database.write({store: _stored(chunk)})
        applied += len(chunk)
        reach("recover.in-replay")
        on_progress(chunk[-1].offset + 1 - plan.start, plan.end - plan.start)
    reach("recover.after-replay")
    space, entries = database.entries(Checkpoint(position.batch, position.stores))
    database.database.write({space: entries})
    return applied


def _stored(chunk: list[Record]) -> Changes:
    """Changelog records as entries of a timestamped store: 8-byte big-endian time, then the value; null deletes."""
    pack = _TIME.pack
    for record in chunk:
        value = None if record.value is None else pack(record.timestamp_ms) + record.value
        yield record.key or b"", value


def require_no_records(spec: TaskSpec, reader: Reader, first: int) -> None:
    """Refuse a changelog with committed records beside a task without position: its history was lost."""
    chunks: Iterator[list[Record]] = reader.read(spec.store.changelog_topic, spec.number, start=first)
    if next(chunks, None):
        raise Unrecoverable(
            "changelog has records, but the batches topic knows of no committed batch",
            task=spec.name,
            changelog=spec.store.changelog_topic,
            batches=spec.batches_topic,
            hint="the batches topic was deleted or emptied: restore it, or start the query anew under another name",
        )


def now_ms() -> int:
    """Wall time in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
