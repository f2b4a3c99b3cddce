"""Which alert starts which job: the table `alert_routes` in `rollforward.toml`.

    [[alert_routes]]
    match = { alertname = "RollforwardCommitStalled" }    # every label named here must be equal
    job = "recover_pipeline"                              # or launch_pipeline, snapshot_pipelines, none
    restart = true                                        # end a driver that lives too, if it began before the alert
    pipeline = "{pipeline}"                               # from the alert's labels, or a name

The first route that matches counts. Without the table, ROUTES.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipelines.settings import Settings

NONE = "none"
RECOVER = "recover_pipeline"
SNAPSHOT = "snapshot_pipelines"
COLLECT = "collect_snapshots"
JOBS = (RECOVER, "launch_pipeline", SNAPSHOT, COLLECT, NONE)


@dataclass(frozen=True)
class Route:
    """Alerts with the labels of `match` start `job` for the pipeline that `pipeline` names.

    With `restart` a recovery ends a driver that looks well too, if it began before the alert.
    """

    match: Mapping[str, str]
    job: str
    pipeline: str = "{pipeline}"
    restart: bool = False

    def takes(self, labels: Mapping[str, str]) -> bool:
        """Whether every named label is equal."""
        return all(labels.get(name) == value for name, value in self.match.items())

    def pipeline_of(self, labels: Mapping[str, str]) -> str:
        """The pipeline's name; empty if the alert does not tell."""
        try:
            return self.pipeline.format_map(labels)
        except (KeyError, ValueError, IndexError):
            return ""


def _named(alert: str, job: str, *, restart: bool = False) -> Route:
    return Route({"alertname": alert}, job, restart=restart)


ROUTES = (
    _named("RollforwardCommitStalled", RECOVER, restart=True),
    # A driver whose figures alone cannot be had goes on with its work.
    _named("RollforwardDriverDown", RECOVER),
    _named("RollforwardTaskDown", RECOVER, restart=True),
    _named("RollforwardSnapshotOld", SNAPSHOT),
    _named("RollforwardStateDiskFull", COLLECT),
    # A person decides: a run would not mend what the records or the machine lack.
    _named("RollforwardLagHigh", NONE),
    _named("RollforwardRecoverySlow", NONE),
    _named("RollforwardRecomputeSlow", NONE),
    _named("RollforwardDeadLetters", NONE),
    _named("RollforwardMetricsStale", NONE),
)


def routes_of(settings: Settings) -> tuple[Route, ...]:
    """The configured routes, else ours."""
    if not settings.alert_routes:
        return ROUTES
    return tuple(Route(route.match, route.job, route.pipeline, route.restart) for route in settings.alert_routes)


def route_of(routes: Sequence[Route], labels: Mapping[str, str]) -> Route | None:
    """The first route that takes the alert and starts something; None where none does."""
    found = next((route for route in routes if route.takes(labels)), None)
    return None if found is None or found.job == NONE else found
