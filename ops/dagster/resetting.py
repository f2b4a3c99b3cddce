"""Jobs that make a pipeline begin elsewhere: reset, and bootstrap with all history. For people, from the launchpad.

Both want the pipeline stopped and its name typed a second time; without it they only show what they would do. What they
write is one transaction for each query, so a run that is killed may be run again.
"""

# Annotations stay real here: Dagster reads an op's configuration from them.
from typing import TYPE_CHECKING, Any, Literal

import dagster as dg
from pydantic import Field

from ops import control
from ops.dagster.deployed import current
from ops.dagster.failure import told_to_dagster
from ops.dagster.runs import take_run
from ops.environment import settings_now
from pipelines.metastore.embedded import want
from pipelines.registry import RUNNING
from statestore.errors import InvalidInput

if TYPE_CHECKING:
    from pipelines.reset import Target

RESET_OP, BOOTSTRAP_OP = "reset", "bootstrap"
_TAGS = {"rollforward/managed": "true", "dagster/max_retries": "0", "dagster/max_runtime": "7200"}
_CONFIRM = "the pipeline's name again; with anything else it is only shown what would be done"


class BootstrapConfig(dg.Config):
    """Begin with all history."""

    pipeline: str = Field(description="name of a deployed pipeline that never ran")
    confirm: str = Field(default="", description=_CONFIRM)


class ResetConfig(dg.Config):
    """Where to begin."""

    pipeline: str = Field(description="name of a stopped pipeline")
    to: Literal["earliest", "latest", "history", "time", "offsets"] = Field(
        description="an end of the topic, the archive's beginning, or the time `at_ms` or the `offsets`, which are to be given then"
    )
    at_ms: int = Field(default=0, description="with to=time: in ms since 1970")
    offsets: dict[str, int] = Field(default={}, description="with to=offsets: by partition; others at the earliest")
    query: str = Field(default="", description="only this query; empty: all")
    confirm: str = Field(default="", description=_CONFIRM)


@dg.op(name=RESET_OP, description="Empties a stopped pipeline's stores and lets its input begin elsewhere.")
def reset_op(context: dg.OpExecutionContext, config: ResetConfig) -> list[dict[str, Any]]:
    """See `pipelines/reset.py`."""
    # Kafka's and RocksDB's libraries are needed by this run alone.
    from ops.reset import reset_all

    take_run(context, config.pipeline)
    dry_run = config.confirm != config.pipeline
    settings = settings_now()
    with told_to_dagster(), current(settings) as registry:
        target = _target(config)
        done = reset_all(registry, settings, config.pipeline, config.query or None, target, dry_run=dry_run)
    return _told(context, config.pipeline, [one.to_json() for one in done], dry_run=dry_run)


def _target(config: ResetConfig) -> "Target":
    """Raises `InvalidInput` where the field that `to` names was forgotten: nothing of it would mean all that there is."""
    from pipelines.reset import Target

    if config.to == "time":
        if config.at_ms <= 0:
            raise InvalidInput("no time is given", to=config.to, hint="give at_ms, in ms since 1970; or to=earliest")
        return Target(at_ms=config.at_ms)
    if config.to == "offsets":
        if not config.offsets:
            raise InvalidInput("no offset is given", to=config.to, hint='give offsets, as {"0": 1200}; or to=earliest')
        return Target(offsets={int(partition): offset for partition, offset in config.offsets.items()})
    return Target(config.to)


@dg.op(name=BOOTSTRAP_OP, description="Starts a pipeline that never ran with all history, the archive's first.")
def bootstrap_op(context: dg.OpExecutionContext, config: BootstrapConfig) -> list[dict[str, Any]]:
    """See `ops.reset.bootstrap_all`."""
    from ops.reset import bootstrap_all

    take_run(context, config.pipeline)
    dry_run = config.confirm != config.pipeline
    settings = settings_now()
    with told_to_dagster(), current(settings) as registry:
        done = bootstrap_all(registry, settings, config.pipeline, dry_run=dry_run)
        if not dry_run:
            want(config.pipeline, RUNNING, settings, registry)
            pid = control.launch(settings, registry, config.pipeline, timeout_s=900.0)
            context.log.info(f"driver {pid} runs")
    return _told(context, config.pipeline, [one.to_json() for one in done], dry_run=dry_run)


def _told(
    context: dg.OpExecutionContext, pipeline: str, done: list[dict[str, Any]], *, dry_run: bool
) -> list[dict[str, Any]]:
    if dry_run:
        context.log.info(f"nothing was changed: to do it, type {pipeline} into `confirm`")
    for one in done:
        context.log.info(f"{one}")
    metadata: dict[str, Any] = {str(one["query"]): dg.MetadataValue.json(one) for one in done}
    context.add_output_metadata({"dry run": dry_run, **metadata})
    return done


@dg.job(executor_def=dg.in_process_executor, tags=_TAGS, description="Reset a stopped pipeline to offsets or a time.")
def reset_pipeline() -> None:
    """One step."""
    reset_op()


@dg.job(executor_def=dg.in_process_executor, tags=_TAGS, description="Start a new pipeline with all history.")
def bootstrap_pipeline() -> None:
    """One step."""
    bootstrap_op()


RESET_JOBS = [reset_pipeline, bootstrap_pipeline]
