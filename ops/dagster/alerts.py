"""The sensor that turns alerts into runs: Alertmanager is asked at every tick, and each incident gets one run.

    1 hear      what fires, from Alertmanager's API; what its webhook told is in the rows already
    2 open      incidents, as `ops.alerts.incidents` decides
    3 request   one run for each incident that wants one, with the incident as its run key, unless the pipeline is at work
    4 link      the run's page to the incident, then how the run ended; or that it was over before one could begin

A tick that is killed anywhere is repeated: a row without a run asks again under the same key, which Dagster knows.
"""

from __future__ import annotations

import time
from collections.abc import Container, Mapping
from typing import Any

import dagster as dg
from dagster import DagsterRunStatus as Status

from infra.stack import Stack
from ops.alerts.alertmanager import firing
from ops.alerts.incidents import Incidents
from ops.alerts.routes import COLLECT, RECOVER, SNAPSHOT, route_of, routes_of
from ops.dagster.deployed import opened
from ops.dagster.jobs import JOBS, LAUNCH_OP, RECOVER_OP, LaunchConfig, RecoverConfig
from ops.dagster.maintenance import COLLECT_OP, SNAPSHOT_OP, WORK_JOBS, WorkConfig
from ops.dagster.runs import PIPELINE_TAG, run_in_progress
from ops.environment import settings_now
from pipelines.settings import Settings
from statestore.errors import Unavailable

ALERT_TAG = "rollforward/alert"
_TROUBLE = (Status.FAILURE, Status.CANCELED)


@dg.sensor(
    name="alerts",
    jobs=[*JOBS, *WORK_JOBS],
    minimum_interval_seconds=5,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Asks Alertmanager what fires, and starts one run for each incident that has a route.",
)
def alerts(context: dg.SensorEvaluationContext) -> dg.SensorResult:
    """One tick."""
    settings = settings_now()
    with opened(settings) as registry:
        incidents = Incidents(registry.engine, routes_of(settings))
        said = _hear(settings, incidents)
        # By pipeline: what is asked for now is not at work yet, and one trouble may be several incidents.
        requests: dict[str, dg.RunRequest] = {}
        for incident in incidents.waiting():
            request = _about(context.instance, settings, incidents, incident, registry.pipeline_names(), requests)
            if request is not None:
                context.log.info(f"incident {incident['id']}: {incident['name']} starts {request.job_name}")
                requests[incident["pipeline"]] = request
        for incident in incidents.over():
            if not _linked(context.instance, settings, incidents, incident):
                incidents.pass_over(incident["id"])
        for incident in incidents.unfinished():
            _ended(context.instance, incidents, incident)
    return dg.SensorResult(run_requests=[*requests.values()], skip_reason=None if requests else dg.SkipReason(said))


def _hear(settings: Settings, incidents: Incidents) -> str:
    """Steps 1 and 2; gives what is to be told of them."""
    if not settings.alertmanager_url:
        return "no Alertmanager: set alertmanager_url, or `rollforward up --fetch-monitoring`"
    try:
        heard = firing(settings.alertmanager_url)
    except Unavailable as error:
        # Silence is no news: nothing is closed, and what the webhook told stands.
        return str(error)
    incidents.take_in(heard, complete=True)
    return f"{len(heard)} alerts fire"


def _about(
    instance: dg.DagsterInstance,
    settings: Settings,
    incidents: Incidents,
    incident: Mapping[str, Any],
    known: list[str],
    asked: Container[str],
) -> dg.RunRequest | None:
    """Steps 3 and 4 for one incident without a known run; `asked` are the pipelines for which a run is asked already."""
    key, pipeline = run_key(incident), incident["pipeline"]
    if _linked(instance, settings, incidents, incident):
        return None
    if pipeline not in known:
        incidents.finish(
            incident["id"], f"no pipeline of this name is deployed: {pipeline or '(the alert names none)'}"
        )
        return None
    if pipeline in asked or run_in_progress(instance, pipeline) is not None:
        return None
    route = route_of(routes_of(settings), incident["labels"])
    restart = route is not None and route.restart
    tags = {PIPELINE_TAG: pipeline, ALERT_TAG: key, "rollforward/alertname": incident["name"]}
    return dg.RunRequest(
        run_key=key,
        job_name=incident["job"],
        run_config=dg.RunConfig(ops=_config(incident, restart=restart)),
        tags=tags,
    )


def _linked(
    instance: dg.DagsterInstance, settings: Settings, incidents: Incidents, incident: Mapping[str, Any]
) -> bool:
    """Whether a run was started about the incident; then it is known now."""
    started = instance.get_runs(dg.RunsFilter(tags={ALERT_TAG: run_key(incident)}), limit=1)
    for run in started:
        incidents.link(incident["id"], run_id=run.run_id, url=_url(settings, run.run_id))
    return bool(started)


def run_key(incident: Mapping[str, Any]) -> str:
    """One for each incident; numbers begin anew with a new database, times do not."""
    return f"incident-{incident['id']}-{incident['opened_at']:.3f}"


def _config(incident: Mapping[str, Any], *, restart: bool) -> dict[str, Any]:
    pipeline, summary = incident["pipeline"], incident["annotations"].get("summary", "")
    page = incident["annotations"].get("runbook_url", "")
    reason = f"alert {incident['name']}: {summary}" + (f" (runbook: {page})" if page else "")
    match incident["job"]:
        case name if name == RECOVER:
            config = RecoverConfig(
                pipeline=pipeline,
                reason=reason,
                only_if_desired=True,
                detected_at=incident["opened_at"],
                restart_if_older_than=incident["starts_at"] if restart else 0.0,
            )
            return {RECOVER_OP: config}
        case name if name == SNAPSHOT:
            return {SNAPSHOT_OP: WorkConfig(pipelines=[pipeline], reason=reason)}
        case name if name == COLLECT:
            return {COLLECT_OP: WorkConfig(pipelines=[pipeline], reason=reason)}
        case _:
            return {LAUNCH_OP: LaunchConfig(pipeline=pipeline, reason=reason, only_if_desired=True)}


def _ended(instance: dg.DagsterInstance, incidents: Incidents, incident: Mapping[str, Any]) -> None:
    record = instance.get_run_record_by_id(incident["run_id"])
    if record is None:
        incidents.finish(incident["id"], "its run was deleted")
    elif record.dagster_run.is_finished:
        # One that failed before its process had begun has no start.
        began, ended = record.start_time or record.create_timestamp.timestamp(), record.end_time or time.time()
        word = "failed" if record.dagster_run.status in _TROUBLE else "succeeded"
        incidents.finish(incident["id"], f"run {word} after {ended - began:.1f} s")


def _url(settings: Settings, run_id: str) -> str:
    base = Stack(settings.home).status().dagster_url
    return f"{base}/runs/{run_id}" if base else f"/runs/{run_id}"
