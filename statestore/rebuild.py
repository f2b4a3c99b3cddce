"""A pipeline's task after a full replay: its one store loaded into an empty database (`load` has the steps)."""

from __future__ import annotations

from collections.abc import Mapping

from statestore.batches import Position
from statestore.columns import Columns, Entries
from statestore.config import RocksConfig, TaskSpec
from statestore.kafka.reader import Reader
from statestore.listener import RestoreListener, Restoring
from statestore.load import beside, load
from statestore.placement import Placement
from statestore.planning.plan import RecoveryPlan, Way
from statestore.planning.rates import LOAD_RECORDS_MIN
from statestore.version import checkpoint_entries


def is_worth_it(plan: RecoveryPlan) -> bool:
    """Whether the plan replays enough, from nothing, for the files to pay."""
    return plan.way is Way.FULL_REPLAY and plan.end - plan.start >= LOAD_RECORDS_MIN


def rebuild(
    plan: RecoveryPlan,
    spec: TaskSpec,
    reader: Reader,
    rocks: RocksConfig,
    position: Position,
    listener: RestoreListener,
    *,
    at_ms: int,
) -> int:
    """All but the rename, which is `folders.take_place`; gives the number of records applied.

    `at_ms` is before the position was read.
    """
    placement = Placement(spec.store)
    restoring = Restoring(spec.store.name, spec.store.changelog_topic, spec.number, plan.start, plan.end)

    def placed(records: Columns) -> Mapping[str, Entries]:
        return placement.placed_columns(stored_entries(records))

    with beside(spec.folder, rocks) as database:
        applied = load(database, reader, restoring, placed, listener, piece_bytes=rocks.write_buffer_bytes)
        space, entries = checkpoint_entries(position.checkpoint(spec.tasks, at_ms))
        database.write({space: entries}, sync=True)
    return applied


def stored_entries(records: Columns) -> Entries:
    """Changelog records as entries of a timestamped store, as `recovery.stored_entries` has them."""
    return Entries(records.keys.fill_null(b""), records.stamped())
