"""The three jobs, for the sensor and for people (Dagster's launchpad): start, stop, recover a pipeline.

Each is one step in the run's own process, which starts within two seconds. Drivers are detached: ending a run never
ends a driver, and to run a job again is harmless.
"""

# Annotations stay real here: Dagster reads an op's configuration from them.
from typing import Any

import dagster as dg
from pydantic import Field

from ops import control
from ops.dagster.deployed import current
from ops.dagster.failure import told_to_dagster
from ops.dagster.recovery import Watcher, recover, spark_page
from ops.dagster.runs import take_run
from ops.environment import settings_now
from pipelines.metastore.embedded import want
from pipelines.registry import RUNNING, STOPPED

LAUNCH_OP, STOP_OP, RECOVER_OP = "launch", "stop", "recover"
_TAGS = {"rollforward/managed": "true", "dagster/max_retries": "0", "dagster/max_runtime": "3600"}


class PipelineConfig(dg.Config):
    """What every job is told."""

    pipeline: str = Field(description="name of a deployed pipeline")
    reason: str = Field(default="", description="why, for the log")
    only_if_desired: bool = Field(
        default=False, description="do nothing if people no longer want it; what runs that the sensor starts say"
    )


class LaunchConfig(PipelineConfig):
    """Start."""

    timeout_s: float = Field(default=900.0, description="how long to wait until the driver runs, its recovery included")


class StopConfig(PipelineConfig):
    """Stop."""

    timeout_s: float = Field(
        default=60.0, description="how long to wait for the running batch; then the driver is killed"
    )


class RecoverConfig(PipelineConfig):
    """Recover."""

    dry_run: bool = Field(default=False, description="only show what is found and what would be done")
    timeout_s: float = Field(default=900.0, description="how long to wait until the driver runs, its recovery included")
    restart_if_older_than: float = Field(
        default=0.0,
        description="end a driver that looks well too, if it began before this time (seconds since 1970); 0: never",
    )
    detected_at: float = Field(default=0.0, description="when the incident was detected, in seconds since 1970; 0: now")


@dg.op(name=LAUNCH_OP, description="Starts the pipeline's detached driver and waits until it runs.")
def launch(context: dg.OpExecutionContext, config: LaunchConfig) -> dict[str, Any]:
    """A driver that runs already is left alone. Makes `running` the desired state."""
    take_run(context, config.pipeline)
    with told_to_dagster(), current(settings_now()) as registry:
        desired = registry.pipeline(config.pipeline).desired
        if config.only_if_desired and desired != RUNNING:
            context.log.info(f"nothing done: {config.pipeline} is not desired to run any more")
            return {"pipeline": config.pipeline, "skipped": True}
        context.log.info(f"starting {config.pipeline}: {config.reason or 'asked for by a person'}")
        if not config.only_if_desired:
            want(config.pipeline, RUNNING, settings_now(), registry)
        watcher = Watcher(context.log.info, registry, config.pipeline)
        pid = control.launch(settings_now(), registry, config.pipeline, timeout_s=config.timeout_s, on_progress=watcher)
        watcher.poll()
        context.log.info(f"driver {pid} runs")
        context.add_output_metadata({"driver pid": pid, **spark_page(registry, config.pipeline)})
        return {"pipeline": config.pipeline, "pid": pid}


@dg.op(name=STOP_OP, description="Stops the pipeline's driver between two batches.")
def stop(context: dg.OpExecutionContext, config: StopConfig) -> dict[str, Any]:
    """Makes `stopped` the desired state. A driver that does not end in time is killed, which loses nothing."""
    take_run(context, config.pipeline)
    with told_to_dagster(), current(settings_now()) as registry:
        desired = registry.pipeline(config.pipeline).desired
        if config.only_if_desired and desired != STOPPED:
            context.log.info(f"nothing done: {config.pipeline} is desired to run again")
            return {"pipeline": config.pipeline, "skipped": True}
        context.log.info(f"stopping {config.pipeline}: {config.reason or 'asked for by a person'}")
        if not config.only_if_desired:
            want(config.pipeline, STOPPED, settings_now(), registry)
        was_running = control.end_running(settings_now(), registry, config.pipeline, timeout_s=config.timeout_s)
        context.log.info("stopped" if was_running else "no driver was running")
        return {"pipeline": config.pipeline, "was_running": was_running}


@dg.op(
    name=RECOVER_OP, description="Finds what is left of a driver, starts it anew, and tells how every task recovered."
)
def recover_op(context: dg.OpExecutionContext, config: RecoverConfig) -> dict[str, Any]:
    """See `ops.dagster.recovery`."""
    take_run(context, config.pipeline)
    with told_to_dagster():
        return recover(
            context,
            config.pipeline,
            reason=config.reason,
            detected_at=config.detected_at,
            timeout_s=config.timeout_s,
            only_if_desired=config.only_if_desired,
            dry_run=config.dry_run,
            restart_if_older_than=config.restart_if_older_than,
        )


@dg.job(executor_def=dg.in_process_executor, tags=_TAGS, description="Start a pipeline.")
def launch_pipeline() -> None:
    """One step."""
    launch()


@dg.job(executor_def=dg.in_process_executor, tags=_TAGS, description="Stop a pipeline.")
def stop_pipeline() -> None:
    """One step."""
    stop()


@dg.job(executor_def=dg.in_process_executor, tags=_TAGS, description="Recover a pipeline; dry_run only shows.")
def recover_pipeline() -> None:
    """One step."""
    recover_op()


JOBS = [launch_pipeline, stop_pipeline, recover_pipeline]
