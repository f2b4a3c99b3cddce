"""Replaying the changelog into a store, from where a plan says up to the last committed version.

While a tail is replayed the checkpoint stays at the old version: dying in the middle means to replay the same tail
again, and since changelog values are absolute, that gives the same store. A full replay starts from a wiped folder
and writes its first checkpoint at the end, so an unfinished one has none and is wiped again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from statestore.batches import Position
from statestore.config import TaskSpec
from statestore.errors import Unrecoverable
from statestore.failpoints import reach
from statestore.kafka.reader import Reader, Record
from statestore.layouts.timestamped import pack
from statestore.listener import RestoreListener, Restoring, told
from statestore.placement import Placement
from statestore.planning.plan import RecoveryPlan
from statestore.spaces.base import Changes
from statestore.version import TaskDatabase

Progress = Callable[[int, int], None]


def replay(
    plan: RecoveryPlan,
    spec: TaskSpec,
    reader: Reader,
    database: TaskDatabase,
    position: Position,
    listener: RestoreListener,
    *,
    at_ms: int,
) -> int:
    """Bring the store to the plan's version; gives the number of records applied. `at_ms` is before the position was read."""
    placement = Placement(spec.store)
    reach("recover.before-replay")
    applied = 0
    topic, partition = spec.store.changelog_topic, spec.number
    with told(listener, Restoring(spec.store.name, topic, partition, plan.start, plan.end)) as on_batch:
        for chunk in reader.read(topic, partition, start=plan.start, end=plan.end):
            database.database.write(placement.placed(stored_entries(chunk)))
            applied += len(chunk)
            reach("recover.in-replay")
            on_batch(chunk[-1].offset + 1, len(chunk))
    reach("recover.after-replay")
    space, entries = database.entries(position.checkpoint(spec.tasks, at_ms))
    database.database.write({space: entries})
    return applied


def stored_entries(chunk: list[Record]) -> Changes:
    """Changelog records as entries of a timestamped store: 8-byte big-endian time, then the value; null deletes."""
    for record in chunk:
        value = None if record.value is None else pack(record.value, record.timestamp_ms)
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
