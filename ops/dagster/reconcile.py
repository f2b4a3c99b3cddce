"""The sensor that keeps pipelines as people want them: it compares, and requests at most one run per incident.

The cursor keeps a `Memory` per pipeline. Dagster writes it before it launches what the tick requested, and ignores a
run key it has seen; so a daemon that is killed anywhere neither loses a request nor makes it twice.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict

import dagster as dg

from ops import control
from ops.dagster.deployed import Broken, opened, read_deployed
from ops.dagster.incidents import Action, Decision, Incident, Memory, decide
from ops.dagster.jobs import JOBS, LAUNCH_OP, RECOVER_OP, STOP_OP, LaunchConfig, RecoverConfig, StopConfig
from ops.dagster.runs import PIPELINE_TAG, runs_in_progress
from ops.environment import settings_now
from pipelines.settings import Settings

INCIDENT_TAG = "rollforward/incident"


@dg.sensor(
    name="reconcile",
    jobs=JOBS,
    minimum_interval_seconds=5,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Starts, recovers and stops drivers until every pipeline is as desired.",
)
def reconcile(context: dg.SensorEvaluationContext) -> dg.SensorResult:
    """One tick over all pipelines."""
    settings, now = settings_now(), time.time()
    pipelines, broken = read_deployed(settings)
    memories = _load(context.cursor)
    decisions: dict[str, Decision] = {}
    runs = runs_in_progress(context.instance, now=now)
    busy = {pipeline.name: _busy(settings, pipeline.name, runs.get(pipeline.name)) for pipeline in pipelines}
    with opened(settings) as registry:
        # Looked at after the runs: what a run has changed before it ended is seen.
        found = control.statuses(registry, {pipeline.name: pipeline.deployed_at for pipeline in pipelines})
    for pipeline in pipelines:
        # One that was dropped since needs nothing.
        if pipeline.name in found:
            memory, (status, driver) = memories.get(pipeline.name, Memory()), found[pipeline.name]
            decisions[pipeline.name] = decide(
                status, driver, pipeline.deployed_at, memory, now=now, busy=busy[pipeline.name]
            )
    requests = [_request(name, d.incident, d.run_key, now) for name, d in decisions.items() if d.incident]
    for name, decision in decisions.items():
        # A tick's log is a file that Dagster keeps: idle ticks write none.
        if decision.incident:
            context.log.info(f"{name} {decision.text}: {decision.incident.action.value} as {decision.run_key}")
    cursor = json.dumps({name: asdict(decision.memory) for name, decision in decisions.items()})
    if requests:
        return dg.SensorResult(run_requests=requests, cursor=cursor)
    return dg.SensorResult(cursor=cursor, skip_reason=dg.SkipReason(_summary(decisions, broken)))


def _busy(settings: Settings, name: str, run: dg.DagsterRun | None) -> str:
    """What is at work on the pipeline; empty if nothing is."""
    if run is not None:
        return f"has a run at work: {run.job_name} {run.run_id[:8]}"
    return "is being started from outside of Dagster" if control.is_launching(settings, name) else ""


def _request(pipeline: str, incident: Incident, run_key: str, now: float) -> dg.RunRequest:
    reason = incident.reason
    ops: dict[str, dg.Config]
    match incident.action:
        case Action.LAUNCH:
            ops = {LAUNCH_OP: LaunchConfig(pipeline=pipeline, reason=reason, only_if_desired=True)}
        case Action.RECOVER:
            config = RecoverConfig(pipeline=pipeline, reason=reason, only_if_desired=True, detected_at=now)
            ops = {RECOVER_OP: config}
        case Action.STOP:
            ops = {STOP_OP: StopConfig(pipeline=pipeline, reason=reason, only_if_desired=True)}
    return dg.RunRequest(
        run_key=run_key,
        job_name=incident.action.value,
        run_config=dg.RunConfig(ops=dict(ops)),
        tags={PIPELINE_TAG: pipeline, INCIDENT_TAG: incident.key},
    )


def _summary(decisions: dict[str, Decision], broken: list[Broken]) -> str:
    lines = [f"{name} {decision.text}" for name, decision in decisions.items()]
    lines += [f"{pipeline.name} has a broken definition" for pipeline in broken]
    return "; ".join(lines) or "no pipeline is deployed"


def _load(cursor: str | None) -> dict[str, Memory]:
    """The memories in a cursor; one that does not read, as of another version, is forgotten: run keys still hold."""
    try:
        return {name: Memory(**fields) for name, fields in json.loads(cursor or "{}").items()}
    except (ValueError, TypeError, AttributeError):
        return {}
