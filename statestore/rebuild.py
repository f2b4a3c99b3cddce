"""A full replay into a new folder: sorted files instead of single writes, and one rename at the end.

    1 build    the changelog in pieces of a memtable's size, each sorted into a file of a database beside the task's
    2 finish   the checkpoint is written; everything goes to files and to the disk; the database is closed
    3 rename   the old folder is deleted, the new one renamed: only a whole version is ever under the task's name

A later piece wins over an earlier one, deletions too, as a later write does. Killed anywhere, what is left is a folder
that the next recovery deletes. Offset and files need not go in at one step, since nobody opens the folder before 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import add

from statestore.batches import Position
from statestore.config import RocksConfig, TaskSpec
from statestore.failpoints import reach
from statestore.folders import begun, sync
from statestore.kafka import Columns, Reader
from statestore.layouts.timestamped import packed_times
from statestore.listener import RestoreListener, Restoring, told
from statestore.placement import Placement
from statestore.planning.plan import RecoveryPlan, Way
from statestore.planning.rates import REBUILD_RECORDS_MIN
from statestore.version import Checkpoint, TaskDatabase


def is_worth_it(plan: RecoveryPlan) -> bool:
    """Whether the plan replays enough, from nothing, for the files to pay."""
    return plan.way is Way.FULL_REPLAY and plan.end - plan.start >= REBUILD_RECORDS_MIN


def rebuild(
    plan: RecoveryPlan,
    spec: TaskSpec,
    reader: Reader,
    rocks: RocksConfig,
    position: Position,
    listener: RestoreListener,
) -> int:
    """Steps 1 and 2; gives the number of records applied. `folders.take_place` is step 3."""
    new = begun(spec.folder)
    database = TaskDatabase(new, [spec.store.name], rocks)
    try:
        applied = _build(plan, spec, reader, database, rocks.write_buffer_bytes, listener)
        reach("rebuild.loaded")
        space, entries = database.entries(Checkpoint(position.batch, position.stores))
        database.database.write({space: entries}, sync=True)
        database.database.flush()
    finally:
        database.close()
    sync(new)
    reach("rebuild.built")
    return applied


def _build(
    plan: RecoveryPlan,
    spec: TaskSpec,
    reader: Reader,
    database: TaskDatabase,
    bytes_max: int,
    listener: RestoreListener,
) -> int:
    placement, applied = Placement(spec.store), 0
    topic, partition = spec.store.changelog_topic, spec.number
    with told(listener, Restoring(spec.store.name, topic, partition, plan.start, plan.end)) as on_batch:
        chunks = reader.columns(topic, partition, start=plan.start, end=plan.end)
        for piece in gathered(chunks, bytes_max):
            keys, values = stored_columns(piece)
            for space, columns in placement.placed_columns(keys, values).items():
                database.database.load(space, *columns)
            applied += len(keys)
            reach("rebuild.in-build")
            on_batch(piece.end, len(keys))
    return applied


def gathered(chunks: Iterable[Columns], bytes_max: int) -> Iterator[Columns]:
    """The same records in pieces that hold little more than so many bytes of keys and values."""
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    times_ms: list[int] = []
    end = size = 0
    for chunk in chunks:
        keys += chunk.keys
        values += chunk.values
        times_ms += chunk.times_ms
        end, size = chunk.end, size + _size(chunk.keys) + _size(chunk.values)
        if size >= bytes_max:
            yield Columns(keys, values, times_ms, end)
            keys, values, times_ms, size = [], [], [], 0
    if keys:
        yield Columns(keys, values, times_ms, end)


def _size(column: list[bytes | None]) -> int:
    return sum(map(len, filter(None, column)))


def stored_columns(records: Columns) -> tuple[list[bytes], list[bytes | None]]:
    """Changelog records as keys and values of a timestamped store, as `recovery.stored_entries` has them."""
    keys = [key or b"" for key in records.keys]
    times = packed_times(records.times_ms)
    if None not in records.values:
        return keys, list(map(add, times, records.values))
    pairs = zip(times, records.values, strict=True)
    return keys, [None if value is None else time + value for time, value in pairs]
