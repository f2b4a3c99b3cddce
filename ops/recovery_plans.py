"""The recovery plan of every task, made from outside: nothing is owned, fenced, stopped or written.

The position is read without `init_transactions`, so a transaction that is open right now counts as not committed; a
task's server, which does own its id, may find one batch more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ops.environment import Progress
from pipelines.deploy import deployed_queries
from pipelines.registry import PipelineDefinition
from pipelines.settings import Settings
from statestore.batches import BatchesLog, Position
from statestore.clock import Moment
from statestore.config import RocksConfig, TaskSpec
from statestore.errors import Unrecoverable
from statestore.kafka.admin import Admin
from statestore.kafka.reader import Reader
from statestore.planning.facts import UNUSABLE, Found, gather, unusable, why_not_opened, with_done, with_snapshots
from statestore.planning.hazards import has_later, require_positions
from statestore.planning.plan import Option, every_way, none_because, plan_recovery
from statestore.recovery import require_no_records
from statestore.snapshots.service import Snapshots
from statestore.version import Checkpoint, TaskDatabase

# In the place of a way, where there is none.
UNRECOVERABLE = "unrecoverable"


def plans_of(row: PipelineDefinition, settings: Settings, tell: Progress) -> list[dict[str, Any]]:
    """One plan per task, with `local_batch`; where there is no way, `way` is `unrecoverable` and `reason` says why."""
    config = settings.kafka_config()
    admin, reader = Admin(config), Reader(config)
    admin.check()
    snapshot_config = settings.snapshot_config()
    snapshots = None if snapshot_config is None else Snapshots(snapshot_config)
    plans = []
    for deployed in deployed_queries(row):
        log = BatchesLog(reader, deployed.batches_topic, tasks=deployed.query.tasks)
        for spec in deployed.task_specs(settings.states):
            tell(spec.name, "reading its position, its local store and its snapshots")
            plans.append(_plan(spec, log, reader, admin, snapshots, transactions=settings.transactions))
    return plans


def _plan(
    spec: TaskSpec,
    log: BatchesLog,
    reader: Reader,
    admin: Admin,
    snapshots: Snapshots | None,
    *,
    transactions: bool,
) -> dict[str, Any]:
    checkpoint, problem = _local(spec)
    asked = Moment()
    local_batch = None if checkpoint is None else checkpoint.batch
    position = log.position(spec.number)
    try:
        found = gather(spec, reader, admin, position, checkpoint, problem, asked)
        # What the driver has left open tells where to look, and is not waited for.
        done = log.driver_log(uncommitted=True).done
        found = with_done(found, spec, reader, done, transactions=transactions)
        if snapshots is None:
            found = replace(found, snapshots_problem="snapshots are turned off")
        else:
            found = with_snapshots(found, snapshots.repository(spec, found.batches_topic_id))
        _require_positions(spec, log, found)
    except Unrecoverable as error:
        return _unrecoverable(spec, error, none_because(error), position, local_batch)
    try:
        if position is None:
            require_no_records(spec, reader, found.changelog_first)
        return {**plan_recovery(spec, found).to_json(), "local_batch": local_batch}
    except Unrecoverable as error:
        ways = every_way(spec, found) or none_because(error)
        return _unrecoverable(spec, error, ways, position, local_batch)


def _require_positions(spec: TaskSpec, log: BatchesLog, found: Found) -> None:
    if not has_later(spec, found):
        return
    standing = log.standing(spec.number)
    # Of a task that has gone on meanwhile what is later than the facts may be its newest.
    if standing.position == found.position:
        require_positions(spec, found, standing)


def _unrecoverable(
    spec: TaskSpec, error: Unrecoverable, ways: Iterable[Option], position: Position | None, local_batch: int | None
) -> dict[str, Any]:
    return {
        "task": spec.name,
        "way": UNRECOVERABLE,
        "reason": str(error),
        "batch": None if position is None else position.batch,
        "start": 0,
        "end": 0,
        "discard_local": False,
        "offsets": 0,
        "estimated_seconds": None,
        "ways": [way.to_json() for way in ways],
        "local_batch": local_batch,
    }


def _local(spec: TaskSpec) -> tuple[Checkpoint | None, str]:
    """The local store's checkpoint, or why there is none to use."""
    problem = why_not_opened(spec.folder)
    if problem or not spec.folder.exists():
        return None, problem
    try:
        database = TaskDatabase.beside(spec.folder, [spec.store.name], RocksConfig())
        try:
            checkpoint = database.checkpoint()
        finally:
            database.close()
    except UNUSABLE as error:
        return None, unusable(error)
    return checkpoint, "" if checkpoint is not None else "local store was not complete"
