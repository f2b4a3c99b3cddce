"""The whole examination, in the order in which one thing needs another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from ops import control
from ops.doctor.finding import Finding, error, ok, told
from ops.doctor.kafka import cluster, pipelines
from ops.doctor.machine import clock, machine
from ops.doctor.storage import storage
from pipelines.home import in_home
from pipelines.metastore.embedded import refresh
from pipelines.registry import Registry
from pipelines.settings import Settings
from statestore.errors import RollforwardError
from statestore.kafka.admin import Admin

# Somebody waits for the answer.
TIMEOUT_S = 10.0


def examine(settings: Settings) -> Iterator[Finding]:
    """Findings as they are made. Changes nothing but one object of its own in the snapshots' storage."""
    asking = settings.model_copy(update={"request_timeout_s": min(TIMEOUT_S, settings.request_timeout_s)})
    # What is written below makes it, in whatever order that is.
    in_home(settings.home)
    yield from machine(settings)
    yield from storage(settings)
    admin = None
    try:
        admin = Admin(asking.kafka_config())
        yield from cluster(settings, admin)
        fault = refresh(asking)
        if fault is not None:
            yield error("metastore", fault.text, fault.hint)
    except RollforwardError as raised:
        yield told("kafka", raised)
        admin = None
    with closing(Registry(settings.metastore)) as registry:
        deployed = registry.pipeline_names()
        yield ok("metastore", f"pipelines that are deployed: {len(deployed)}")
        yield from clock(registry, deployed)
        for name in deployed:
            yield _pipeline(registry, name)
        if admin is not None:
            yield from pipelines(settings, registry, admin, deployed)


def _pipeline(registry: Registry, name: str) -> Finding:
    status = control.status(registry, name)
    if status.needs_recovery:
        fix = f"Dagster recovers it within seconds; without Dagster: rollforward start {name}"
        return error(f"pipeline {name}", status.needs_recovery, fix)
    return ok(f"pipeline {name}", f"{status.state}, desired {status.desired}")
