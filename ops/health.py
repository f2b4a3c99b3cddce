"""How well a pipeline's tables are, measured now: from the registry, from the source topics' ends and from the snapshots.

Used by Dagster's checks, and by nobody to decide anything.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from ops import control
from ops.snapshots import repositories
from pipelines.deploy import DeployedQuery, deployed_queries
from pipelines.plan import Query
from pipelines.registry import RUNNING, BatchRow, PipelineDefinition, Registry
from pipelines.settings import Settings
from statestore.batches import BatchesLog
from statestore.kafka.admin import Admin
from statestore.kafka.reader import Reader
from statestore.snapshots.manifest import Manifest

DAY_S = 86_400.0


@dataclass(frozen=True)
class Finding:
    """One check of one table; `figure` is what is plotted over time, `text` says it in words.

    A check that could not be made has failed with its `error`, and has no figure.
    """

    check: str
    passed: bool
    text: str
    figure: float | None
    error: Exception | None = None


def table_findings(settings: Settings, registry: Registry, admin: Admin, pipeline: str, query: Query) -> list[Finding]:
    """Every check of one table; one that cannot be made keeps no other from being made. Raises without the pipeline."""
    newest = next((row for row in registry.newest_batches(pipeline) if row.query == query.name), None)
    row = registry.pipeline(pipeline)
    desired = row.desired == RUNNING

    def waiting() -> list[Finding]:
        lag = _lag(admin, query, newest)
        return [_fresh(settings, newest, lag, desired=desired), _lag_finding(settings, lag, desired=desired)]

    return [
        *_made(waiting, "fresh", "lag"),
        *_made(lambda: [_driver(registry, pipeline, desired=desired)], "driver"),
        *_made(lambda: [_snapshots(settings, registry, row, query, desired=desired)], "snapshot_age"),
        *_made(lambda: [_dead_letters(settings, registry, pipeline, query)], "dead_letters"),
    ]


def _made(look: Callable[[], list[Finding]], *checks: str) -> list[Finding]:
    """What the look finds; if it raises, whatever it is, its checks have failed of it."""
    try:
        return look()
    except Exception as error:
        return [Finding(check, False, f"cannot be looked at: {error}", None, error) for check in checks]


def _lag(admin: Admin, query: Query, newest: BatchRow | None) -> int:
    topic = query.source.topic
    found = admin.describe([topic]).get(topic)
    if found is None:
        return 0
    ends = admin.ends(topic, partitions=found.partitions)
    done = {} if newest is None else {int(number): at[1] for number, at in newest.offsets.items()}
    begins = admin.begins(topic, partitions=found.partitions) if newest is None else {}
    return sum(max(0, end - done.get(partition, begins.get(partition, 0))) for partition, end in ends.items())


def _fresh(settings: Settings, newest: BatchRow | None, lag: int, *, desired: bool) -> Finding:
    if newest is None:
        return Finding("fresh", not (desired and lag), f"no batch was finished yet, {lag} records wait", 0.0)
    age = time.time() - newest.finished_at
    late = desired and lag > 0 and age > settings.check_output_age_s_max
    return Finding("fresh", not late, f"newest batch is {age:.0f} s old, {lag} records wait", round(age, 1))


def _lag_finding(settings: Settings, lag: int, *, desired: bool) -> Finding:
    bound = settings.check_lag_records_max
    return Finding("lag", not desired or lag <= bound, f"{lag} records behind, {bound} are allowed", float(lag))


def _driver(registry: Registry, pipeline: str, *, desired: bool) -> Finding:
    status = control.status(registry, pipeline)
    age = status.heartbeat_age_s or 0.0
    well = status.alive and status.state == "running" and not status.needs_recovery
    text = status.needs_recovery or f"{status.state}, desired {status.desired}, last heartbeat {age:.0f} s ago"
    return Finding("driver", well or not desired, text, age)


def _snapshots(
    settings: Settings, registry: Registry, row: PipelineDefinition, query: Query, *, desired: bool
) -> Finding:
    """As the metric has it: a task's age is 0 while its newest snapshot holds all that it has committed."""
    if settings.snapshot_config() is None:
        return Finding("snapshot_age", True, "snapshots are turned off", 0.0)
    (deployed,) = (one for one in deployed_queries(row) if one.query.name == query.name)
    log = BatchesLog(Reader(settings.kafka_config()), deployed.batches_topic, tasks=query.tasks)
    kept = repositories(row, settings)
    ages: list[float] = []
    for spec in deployed.task_specs(settings.states):
        position = log.position(spec.number)
        if position is None:
            continue
        snapshot = kept[spec.name].newest_readable()
        whole = snapshot is not None and snapshot.batch >= position.batch
        ages.append(0.0 if whole else time.time() - _lacking_since(registry, deployed, snapshot))
    if not ages:
        return Finding("snapshot_age", True, "nothing is committed that could be snapshotted", 0.0)
    age = round(max(ages), 1)
    text = f"{sum(map(bool, ages))} of {len(ages)} tasks have batches that are in no snapshot, for {age:.0f} s at most"
    # Of a pipeline that is to rest none is taken, so none is missed.
    return Finding("snapshot_age", not desired or age <= settings.check_snapshot_age_s_max, text, age)


def _lacking_since(registry: Registry, deployed: DeployedQuery, snapshot: Manifest | None) -> float:
    """When the first batch behind the snapshot was finished, but not before that was taken; now, if neither is known."""
    behind = registry.first_batch(
        deployed.pipeline, deployed.query.name, after=-1 if snapshot is None else snapshot.batch
    )
    times = [] if snapshot is None else [snapshot.taken_at_ms / 1000]
    if behind is not None:
        times.append(behind.finished_at)
    return max(times, default=time.time())


def _dead_letters(settings: Settings, registry: Registry, pipeline: str, query: Query) -> Finding:
    count = registry.dead_letters(pipeline, query.name, since=time.time() - DAY_S)
    bound = settings.check_dead_letters_max
    return Finding("dead_letters", count <= bound, f"{count} dead letters in a day, {bound} are allowed", float(count))
