"""Drift with what only this side knows: the drivers. For the command line and for Dagster's check."""

from __future__ import annotations

from contextlib import closing

from ops import control
from pipelines.metastore.drift import Finding, find_drift
from pipelines.metastore.embedded import metastore
from pipelines.registry import RUNNING, STOPPED, Registry
from pipelines.settings import Settings


def find(settings: Settings) -> list[Finding]:
    """Every difference. A repair's `act` may be called after this returned."""
    with metastore(settings) as opened, closing(Registry(settings.metastore)) as registry:
        return find_drift(opened, settings) + _jobs(settings, registry)


def _jobs(settings: Settings, registry: Registry) -> list[Finding]:
    """Drivers that are not as desired."""
    findings = []
    for name in registry.pipeline_names():
        try:
            now = control.status(registry, name)
        except (KeyError, TypeError, ValueError):
            # Its definition does not read, which is a finding of its own.
            continue
        if now.desired == RUNNING and not now.alive:
            text = f"it is to run, and its driver is {now.state}"
            findings.append(Finding(name, "job", text, hint=f"Dagster starts it; by hand: `rollforward start {name}`"))
        if now.desired == STOPPED and now.alive:
            text, hint = f"it is to stop, and driver {now.pid} runs", "Dagster stops it"
            findings.append(Finding(name, "job", text, hint=f"{hint}; by hand: `rollforward stop {name}`"))
    return findings
