"""The run that brings a pipeline back: look, plan, end what is left, start anew, and tell how it went.

    1 look     what is found of the driver: its last heartbeat, its last batches, the end of its log
    2 plan     what each task needs, estimated from outside; where a task has no way the run fails and starts nothing
    3 end      a driver that hangs, and store servers that a dead one left
    4 start    a new detached driver; it recovers every task, and each recovery is logged as it ends
    5 report   the plans as they were carried out, on the run and on every store

The driver does the recovery, in a session of its own: a run that is killed at any step may be repeated, and one that
is killed after step 4 has done its work.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import dagster as dg

from ops import control
from ops.dagster.deployed import current, deployed
from ops.dagster.findings import (
    Findings,
    end_remains,
    look,
    plan_text,
    plans_markdown,
    query_of,
    seconds_since,
    summary,
)
from ops.dagster.keys import pipeline_keys
from ops.environment import settings_now
from pipelines.metastore.embedded import refresh, want
from pipelines.registry import RUNNING, Registry
from pipelines.settings import Settings
from statestore.errors import RollforwardError, Unrecoverable

_POLL_S = 0.5

# An estimate must not keep a recovery waiting.
_ESTIMATE_TIMEOUT_S = 10.0
# A driver that an alert says is stuck gets this long to end in order.
_END_S = 10.0
# The first batch is part of the story, where one comes soon.
_FIRST_BATCH_S = 5.0


class Watcher:
    """Logs a driver's way up: each state once, and each task's recovery as it is reported."""

    def __init__(self, log: Callable[[str], None], registry: Registry, pipeline: str) -> None:
        self.plans: list[dict[str, Any]] = []
        self._log = log
        self._registry = registry
        self._pipeline = pipeline
        self._since = time.time()
        self._seen: set[int] = set()
        self._step = ("", "")
        self._polled = 0.0

    def __call__(self, step: str, detail: str) -> None:
        """Progress of a launch, called many times a second."""
        if (step, detail) != self._step:
            self._step = (step, detail)
            self._log(f"{step}: {detail}")
        if time.monotonic() - self._polled >= _POLL_S:
            self.poll()

    def poll(self) -> None:
        """Log the recoveries that are new."""
        self._polled = time.monotonic()
        for row in self._registry.recoveries(self._pipeline, since=self._since):
            if row.id not in self._seen:
                self._seen.add(row.id)
                self.plans.append(row.plan)
                self._log(plan_text(row.plan))


def recover(
    context: dg.OpExecutionContext,
    pipeline: str,
    *,
    reason: str,
    detected_at: float,
    timeout_s: float,
    only_if_desired: bool,
    dry_run: bool,
    restart_if_older_than: float = 0.0,
) -> dict[str, Any]:
    """Steps 1 to 5; with `dry_run` 1 and 2 alone. Raises our own errors; the driver may be coming up all the same."""
    settings = settings_now()
    detected = detected_at or time.time()
    with current(settings) as registry:
        findings = look(settings, registry, pipeline)
        context.log.info(
            f"recovering {pipeline}: {reason or findings.status.needs_recovery or 'asked for by a person'}"
        )
        context.log.info(findings.text())
        estimated = _estimate(context, settings, registry, pipeline)
        told = {"found": dg.MetadataValue.md(findings.markdown())}
        if dry_run:
            context.add_output_metadata({**told, "plan": dg.MetadataValue.md(plans_markdown(estimated))})
            return {"pipeline": pipeline, "dry_run": True, "plans": estimated}
        if only_if_desired and not _is_desired(settings, registry, pipeline):
            context.log.info(f"nothing done: {pipeline} is not desired to run any more")
            return {"pipeline": pipeline, "skipped": True}
        _require_ways(estimated, pipeline)
        # Looked at again: the estimate takes seconds, in which another driver may have come up.
        fresh = look(settings, registry, pipeline)
        if outlived(fresh, restart_if_older_than):
            context.log.info(f"driver {fresh.status.pid} lives and is ended: it began before the alert")
            control.end_driver(registry, pipeline, timeout_s=_END_S)
        for pid in end_remains(findings):
            context.log.info(f"ended what the dead driver left: pid {pid}")
        watcher = Watcher(context.log.info, registry, pipeline)
        if not only_if_desired:
            want(pipeline, RUNNING, settings, registry)
        pid = control.launch(settings, registry, pipeline, timeout_s=timeout_s, on_progress=watcher)
        watcher.poll()
        seconds = seconds_since(detected)
        context.log.info(f"driver {pid} runs, {seconds} s after the incident was detected")
        told["summary"] = dg.MetadataValue.md(
            summary(
                findings, reason, watcher.plans, seconds=seconds, output=_first_output(registry, pipeline, detected)
            )
        )
        _report(context, registry, pipeline, watcher.plans, reason=reason, seconds=seconds, told=told)
        return {"pipeline": pipeline, "pid": pid, "seconds": seconds, "plans": watcher.plans}


def _is_desired(settings: Settings, registry: Registry, pipeline: str) -> bool:
    """Whether people want it to run at this moment: the estimate takes seconds, in which they may stop it."""
    refresh(settings)
    row = registry.find(pipeline)
    return row is not None and row.desired == RUNNING


def _require_ways(plans: list[dict[str, Any]], pipeline: str) -> None:
    """Raises `Unrecoverable` where no way leads to a task's committed version: a driver would only fail at it again."""
    from ops.recovery_plans import UNRECOVERABLE

    lost = {plan["task"]: plan["reason"] for plan in plans if plan["way"] == UNRECOVERABLE}
    if lost:
        raise Unrecoverable(
            "nothing was started: no way leads to the committed version",
            pipeline=pipeline,
            tasks=", ".join(lost),
            reason="; ".join(lost.values()),
            hint=f"`rollforward recover {pipeline} --dry-run` shows every way and what refuses it",
        )


def outlived(findings: Findings, since: float) -> bool:
    """Whether a living driver is the one that an alert was about."""
    driver = findings.driver
    return findings.status.alive and driver is not None and driver.started_at < since


def _first_output(registry: Registry, pipeline: str, detected: float) -> float | None:
    """Seconds from detection to the first batch that the new driver finished; None if none came within moments."""
    driver = registry.driver(pipeline)
    began = detected if driver is None else driver.started_at
    deadline = time.monotonic() + _FIRST_BATCH_S
    while time.monotonic() < deadline:
        finished = [row.finished_at for row in registry.newest_batches(pipeline) if row.finished_at >= began]
        if finished:
            return round(max(0.0, min(finished) - detected), 2)
        time.sleep(_POLL_S)
    return None


def _estimate(
    context: dg.OpExecutionContext, settings: Settings, registry: Registry, pipeline: str
) -> list[dict[str, Any]]:
    """Step 2. What stands in the way of the estimate itself is only told: the driver looks for itself."""
    # Kafka's and RocksDB's libraries are needed by this run alone, not by those who load the definitions.
    from ops.recovery_plans import plans_of

    try:
        asking = settings.model_copy(update={"request_timeout_s": _ESTIMATE_TIMEOUT_S})
        plans = plans_of(registry.pipeline(pipeline), asking, lambda _task, _detail: None)
    except RollforwardError as error:
        context.log.warning(f"the plan cannot be estimated: {error}")
        return []
    context.log.info("\n".join(["plan, as estimated from outside:", *(f"  {plan_text(plan)}" for plan in plans)]))
    return plans


def _report(
    context: dg.OpExecutionContext,
    registry: Registry,
    pipeline: str,
    plans: list[dict[str, Any]],
    *,
    reason: str,
    seconds: float,
    told: dict[str, Any],
) -> None:
    """Step 5."""
    figures: dict[str, Any] = {"reason": reason, "seconds from detection to running": seconds}
    context.add_output_metadata({**told, **figures, **_work(plans), **spark_page(registry, pipeline)})
    queries = [query.name for query in deployed(registry.pipeline(pipeline)).queries]
    for query, key in pipeline_keys(pipeline, queries).stores.items():
        mine = [plan for plan in plans if query_of(plan) == query]
        if mine:
            context.log_event(dg.AssetObservation(key, metadata={**figures, **_work(mine)}))


def spark_page(registry: Registry, pipeline: str) -> dict[str, Any]:
    """A link to Spark's own page of the driver of now, where `spark_ui` is on."""
    url = control.status(registry, pipeline).spark_url
    return {"Spark UI": dg.MetadataValue.url(url)} if url else {}


def _work(plans: list[dict[str, Any]]) -> dict[str, Any]:
    """The plans and what they took; tasks recover side by side, so the slowest is what one waited for."""
    return {
        "recovery plan": dg.MetadataValue.md(plans_markdown(plans)),
        "seconds of recovery": max((float(plan.get("seconds", 0.0)) for plan in plans), default=0.0),
        "records replayed": sum(int(plan.get("records", 0)) for plan in plans),
    }
