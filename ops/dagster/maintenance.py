"""Work that is due by the clock: snapshots, collecting them, checkpoint and backup of the metastore.

Each job has a schedule. A tick is skipped while a run of the job is at work. After a downtime Dagster evaluates the
ticks that were missed, and the first of them starts a run that stands for all: the work is about now, not about the
hour that was missed. A run that a schedule starts waits some seconds, the same each time and another for each service,
so that services on one storage do not all begin at the full hour.
"""

# Annotations stay real here: Dagster reads an op's configuration from them.
import hashlib
import time
from collections.abc import Callable
from datetime import UTC
from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import Field

from ops.dagster.deployed import current, deployed
from ops.dagster.failure import told_to_dagster
from ops.dagster.findings import query_of
from ops.dagster.keys import pipeline_keys
from ops.dagster.runs import UNFINISHED
from ops.environment import settings_now
from pipelines.registry import PipelineDefinition, Registry
from pipelines.settings import Settings
from statestore.errors import RollforwardError

SNAPSHOT_OP, COLLECT_OP = "snapshot", "collect"
CHECKPOINT_OP, BACKUP_OP = "checkpoint", "backup"
BACKUPS_KEPT = 14
JITTER_S = 60.0
VERIFY_PERCENT = 5.0
# Dagster ends a run behind this: one whose process was killed would stay at work for ever, and keep the next ones away.
RUNTIME_MAX = {"dagster/max_runtime": "7200"}
TAGS = {"rollforward/managed": "true", "dagster/max_retries": "0", **RUNTIME_MAX}
# What a run by the clock carries, with its job's name.
SCHEDULED_TAG = "rollforward/scheduled"
Work = Callable[[dg.OpExecutionContext, Settings, Registry, PipelineDefinition], dict[str, Any]]


class WorkConfig(dg.Config):
    """What is worked on."""

    pipelines: list[str] = Field(default=[], description="names; empty: every pipeline that is deployed")
    reason: str = Field(default="", description="why, for the log")
    jitter_s: float = Field(default=0.0, description="wait up to so many seconds first")


class ClockConfig(dg.Config):
    """When the work of a whole service begins."""

    jitter_s: float = Field(default=0.0, description="wait up to so many seconds first")


def wait_s(jitter_s: float, what: str) -> float:
    """How long to wait: spread evenly over names, and the same at every run."""
    return jitter_s * int(hashlib.sha256(what.encode()).hexdigest()[:8], 16) / 0xFFFFFFFF


def _each(context: dg.OpExecutionContext, config: WorkConfig, work: Work) -> dict[str, Any]:
    """Do the work for each pipeline; one that fails fails the run after the others had their turn."""
    settings = settings_now()
    time.sleep(wait_s(config.jitter_s, settings.service + context.op.name))
    if config.reason:
        context.log.info(config.reason)
    done: dict[str, Any] = {}
    failed: list[RollforwardError] = []
    with told_to_dagster(), current(settings) as registry:
        for name in config.pipelines or registry.pipeline_names():
            try:
                done[name] = work(context, settings, registry, registry.pipeline(name))
                context.log.info(f"{name}: {done[name]}")
            except RollforwardError as error:
                context.log.error(f"{name}: {error}")
                failed.append(error)
        context.add_output_metadata({name: dg.MetadataValue.json(result) for name, result in done.items()})
        if failed:
            raise failed[0]
    return done


@dg.op(name=SNAPSHOT_OP, description="Snapshots every task of every pipeline that runs.")
def snapshot_op(context: dg.OpExecutionContext, config: WorkConfig) -> dict[str, Any]:
    """A pipeline that does not run has nobody to ask, and took its snapshot when it stopped."""
    from ops import control
    from ops.snapshots import take_all

    def work(
        context: dg.OpExecutionContext, _settings: Settings, registry: Registry, row: PipelineDefinition
    ) -> dict[str, Any]:
        if control.status(registry, row.name).state != "running":
            return {"skipped": "does not run"}
        taken = take_all(registry, row.name, lambda _task, _detail: None)
        _observe(context, row, taken)
        return {"tasks": len(taken), "uploaded bytes": sum(int(one.get("uploaded_bytes", 0)) for one in taken)}

    return _each(context, config, work)


def _observe(context: dg.OpExecutionContext, row: PipelineDefinition, taken: list[dict[str, Any]]) -> None:
    """Times and sizes on the stores' pages, where they are plotted."""
    queries = [query.name for query in deployed(row).queries]
    for query, key in pipeline_keys(row.name, queries).stores.items():
        mine = [one for one in taken if query_of(one) == query]
        if mine:
            figures = {
                "snapshot seconds": max(float(one.get("seconds", 0.0)) for one in mine),
                "snapshot bytes": sum(int(one.get("referenced_bytes", 0)) for one in mine),
                "snapshot uploaded bytes": sum(int(one.get("uploaded_bytes", 0)) for one in mine),
            }
            context.log_event(dg.AssetObservation(key, metadata=figures))


@dg.op(name=COLLECT_OP, description="Deletes snapshots and files that nothing needs any more.")
def collect_op(context: dg.OpExecutionContext, config: WorkConfig) -> dict[str, Any]:
    """Safe beside running pipelines, recoveries and other collections."""
    from ops.snapshots import collect_all

    def work(
        _context: dg.OpExecutionContext, settings: Settings, _registry: Registry, row: PipelineDefinition
    ) -> dict[str, Any]:
        found = collect_all(row, settings, lambda _task, _detail: None, dry_run=False)
        return {
            "snapshots deleted": sum(len(one.snapshots_deleted) for one in found),
            "bytes freed": sum(one.bytes_freed for one in found),
            "uploads aborted": sum(one.uploads_aborted for one in found),
        }

    return _each(context, config, work)


@dg.op(name=CHECKPOINT_OP, description="Makes the metastore's command log short.")
def checkpoint_op(context: dg.OpExecutionContext, config: ClockConfig) -> None:
    """A checkpoint is one command; what it replaces is deleted."""
    from pipelines.metastore.embedded import metastore

    settings = settings_now()
    time.sleep(wait_s(config.jitter_s, settings.service + context.op.name))
    with told_to_dagster(), metastore(settings) as opened:
        context.log.info(f"checkpoint: {opened.checkpoint()}")


@dg.op(name=BACKUP_OP, description=f"Writes the metastore to a file in <home>/backups; the newest {BACKUPS_KEPT} stay.")
def backup_op(context: dg.OpExecutionContext, config: ClockConfig) -> str:
    """The file is what `rollforward metastore restore` takes. A damaged log fails the run, and no backup goes for it."""
    from ops.backups import back_up

    settings = settings_now()
    time.sleep(wait_s(config.jitter_s, settings.service + context.op.name))
    with told_to_dagster():
        path: Path = back_up(settings, keep=BACKUPS_KEPT)
    context.add_output_metadata({"file": dg.MetadataValue.path(path)})
    return str(path)


@dg.job(executor_def=dg.in_process_executor, tags=TAGS, description="Snapshot pipelines.")
def snapshot_pipelines() -> None:
    """One step."""
    snapshot_op()


@dg.job(executor_def=dg.in_process_executor, tags=TAGS, description="Collect snapshots.")
def collect_snapshots() -> None:
    """One step."""
    collect_op()


@dg.job(executor_def=dg.in_process_executor, tags=TAGS, description="Checkpoint of the metastore's log.")
def checkpoint_metastore() -> None:
    """One step."""
    checkpoint_op()


@dg.job(executor_def=dg.in_process_executor, tags=TAGS, description="Backup of the metastore.")
def backup_metastore() -> None:
    """One step."""
    backup_op()


WORK_JOBS = [snapshot_pipelines, collect_snapshots, checkpoint_metastore, backup_metastore]


def scheduled(
    job: dg.JobDefinition | Any, cron: str, text: str, config: dict[str, Any] | None = None
) -> dg.ScheduleDefinition:
    """A schedule with the head's rules, for a job or what becomes one when the definitions load."""

    def tick(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        busy = context.instance.get_runs(dg.RunsFilter(job_name=job.name, statuses=UNFINISHED), limit=1)
        if busy:
            return dg.SkipReason(f"run {busy[0].run_id[:8]} is still at it")
        late = _later_run(context, job.name)
        if late is not None:
            return dg.SkipReason(f"run {late[:8]} did the work after this tick was due")
        return dg.RunRequest(run_config=config or {}, tags={SCHEDULED_TAG: job.name, **RUNTIME_MAX})

    return dg.ScheduleDefinition(
        name=f"{job.name}_by_the_clock",
        job=job,
        cron_schedule=cron,
        execution_fn=tick,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description=f"{text} Skipped while one runs; a downtime is made up for once.",
    )


def _later_run(context: dg.ScheduleEvaluationContext, job: str) -> str | None:
    """A run of the job that began after the tick was due: then the tick is one of a downtime, and made up for."""
    due = context.scheduled_execution_time.replace(tzinfo=context.scheduled_execution_time.tzinfo or UTC)
    newest = context.instance.get_run_records(dg.RunsFilter(job_name=job), limit=1)
    if newest and newest[0].create_timestamp.astimezone(UTC) > due.astimezone(UTC):
        return newest[0].dagster_run.run_id
    return None


def clocked(job: dg.JobDefinition, cron: str, op: str) -> dg.ScheduleDefinition:
    """A schedule with the head's rules for a job of this one op, which waits a little."""
    return scheduled(job, cron, job.description or "", {"ops": {op: {"config": {"jitter_s": JITTER_S}}}})


SCHEDULES = [
    clocked(snapshot_pipelines, "0 * * * *", SNAPSHOT_OP),
    clocked(collect_snapshots, "20 3 * * *", COLLECT_OP),
    clocked(checkpoint_metastore, "10 2 * * *", CHECKPOINT_OP),
    clocked(backup_metastore, "50 1 * * *", BACKUP_OP),
]
