"""Runs that work on a pipeline: how they are marked, and which of them is really still at it.

A run carries the pipeline's name and, once it works, its worker process. Dagster keeps a run as started for ever when
its worker and the code server die together; here such a run is marked as failed and blocks nothing.
"""

from __future__ import annotations

import os
import socket
import time

import dagster as dg
import psutil
from dagster import DagsterRunStatus as Status

from pipelines.processes import runs, started_of

PIPELINE_TAG = "rollforward/pipeline"
WORKER_TAG = "rollforward/worker"
# A run that never got a worker, because whoever launched it died, is waited for no longer than this.
UNSTARTED_MAX_S = 300.0
UNFINISHED = [Status.NOT_STARTED, Status.QUEUED, Status.STARTING, Status.STARTED, Status.CANCELING]


def take_run(context: dg.OpExecutionContext, pipeline: str) -> None:
    """Mark the run as this pipeline's and this process's."""
    context.instance.add_run_tags(context.run_id, {PIPELINE_TAG: pipeline, WORKER_TAG: _this_process()})


def run_in_progress(instance: dg.DagsterInstance, pipeline: str, *, now: float | None = None) -> dg.DagsterRun | None:
    """The newest run that works on the pipeline, or None. Runs whose worker has died are marked as failed on the way."""
    moment = time.time() if now is None else now
    wanted = dg.RunsFilter(tags={PIPELINE_TAG: pipeline}, statuses=UNFINISHED)
    for record in instance.get_run_records(wanted, limit=20):
        run, worker = record.dagster_run, record.dagster_run.tags.get(WORKER_TAG)
        if worker is not None and not _may_live(worker):
            instance.report_run_failed(run, message=f"worker {worker} is gone; what it started may live on")
        elif worker is not None or moment - record.create_timestamp.timestamp() < UNSTARTED_MAX_S:
            return run
    return None


def runs_in_progress(instance: dg.DagsterInstance, *, now: float) -> dict[str, dg.DagsterRun]:
    """The newest run at work of every pipeline that has one, as `run_in_progress` gives it, with one question."""
    if not instance.get_runs_count(dg.RunsFilter(statuses=UNFINISHED)):
        return {}
    records = instance.get_run_records(dg.RunsFilter(statuses=UNFINISHED), limit=1000)
    names = {record.dagster_run.tags.get(PIPELINE_TAG) for record in records} - {None}
    found = {name: run_in_progress(instance, name, now=now) for name in names if name}
    return {name: run for name, run in found.items() if run is not None}


def _this_process() -> str:
    return f"{socket.gethostname()}/{os.getpid()}/{started_of(os.getpid()):.2f}"


def _may_live(worker: str) -> bool:
    """False only where it is certain: a process of this host that is not there."""
    try:
        host, pid, created = worker.rsplit("/", 2)
        if host != socket.gethostname():
            return True
        return runs(int(pid), float(created))
    except (ValueError, psutil.AccessDenied):
        return True
