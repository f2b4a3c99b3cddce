"""Runs of our own schedules that are some days old go: Dagster keeps every run for ever, and these are hundreds a day.

They are known by the tag of a run by the clock. Runs by hand and of alerts, and those that start, recover, reset, backfill or archive are somebody's history, and stay.
"""

# Annotations stay real here: Dagster reads an op's configuration from them.
import shutil
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
from dagster._core.storage.event_log import SqlEventLogStorage, SqliteEventLogStorage
from dagster._core.storage.event_log.schema import AssetCheckExecutionsTable

from ops.dagster import drift, health
from ops.dagster.maintenance import SCHEDULED_TAG, TAGS, WORK_JOBS, ClockConfig, clocked, wait_s
from ops.environment import settings_now

DELETE_OP, DELETE_JOB = "delete_runs", "delete_old_runs"
KEPT_DAYS = 7
# Of one run, which takes a quarter of an hour for so many: the backlog of years goes in some nights.
DELETED_MAX = 10_000
_AT_ONCE = 100
_FINISHED = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]
JOBS = (health.LOOK_JOB, health.VERIFY_JOB, drift.JOB, DELETE_JOB, *(job.name for job in WORK_JOBS))


def delete_runs(instance: dg.DagsterInstance, *, before: datetime) -> int:
    """Delete our schedules' finished runs that were made before this moment, DELETED_MAX at most; gives how many."""
    count = 0
    old = dg.RunsFilter(tags={SCHEDULED_TAG: [*JOBS]}, statuses=_FINISHED, created_before=before)
    while count < DELETED_MAX and (runs := instance.get_runs(old, limit=_AT_ONCE)):
        _delete(instance, [run.run_id for run in runs])
        count += len(runs)
    return count


def _delete(instance: dg.DagsterInstance, run_ids: Sequence[str]) -> None:
    """With what Dagster itself leaves of a deleted run: its checks' results, its folder, with SQLite its database."""
    events = instance.event_log_storage
    if isinstance(events, SqlEventLogStorage):
        with events.index_connection() as connection:
            table = AssetCheckExecutionsTable
            connection.execute(table.delete().where(table.c.run_id.in_(run_ids)))
    for run_id in run_ids:
        shutil.rmtree(Path(instance.storage_directory()) / run_id, ignore_errors=True)
        instance.delete_run(run_id)
        if isinstance(events, SqliteEventLogStorage):
            for end in ("", "-wal", "-shm"):
                Path(f"{events.path_for_shard(run_id)}{end}").unlink(missing_ok=True)


@dg.op(name=DELETE_OP, description=f"Deletes finished runs of our schedules that are older than {KEPT_DAYS} days.")
def delete_op(context: dg.OpExecutionContext, config: ClockConfig) -> int:
    """What is left is deleted at the next time."""
    time.sleep(wait_s(config.jitter_s, settings_now().service + context.op.name))
    count = delete_runs(context.instance, before=datetime.now(UTC) - timedelta(days=KEPT_DAYS))
    context.log.info(f"{count} runs deleted")
    return count


@dg.job(
    name=DELETE_JOB,
    executor_def=dg.in_process_executor,
    tags=TAGS,
    description=f"Delete our schedules' runs of more than {KEPT_DAYS} days ago.",
)
def delete_old_runs() -> None:
    """One step."""
    delete_op()


SCHEDULE = clocked(delete_old_runs, "30 2 * * *", DELETE_OP)
