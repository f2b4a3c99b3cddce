"""What Dagster loads: `dagster-webserver -m ops.dagster.definitions`, and the daemon likewise.

Assets are read from the metastore when a code location loads: after a deploy they appear with the next reload
(`ops.dagster.reload`, or the button in Dagster). Sensors read it at every tick and need no reload. Loading starts
nothing, and needs neither Java nor Kafka.
"""

from __future__ import annotations

import dagster as dg
from sqlalchemy.exc import SQLAlchemyError

from ops.dagster import old_runs
from ops.dagster.alerts import alerts
from ops.dagster.archive import archive_assets
from ops.dagster.backfill import backfill_assets
from ops.dagster.batches import observe_batches
from ops.dagster.catalogue import pipeline_assets, unreachable_metastore
from ops.dagster.deployed import read_deployed
from ops.dagster.drift import drift_checks
from ops.dagster.health import health_checks
from ops.dagster.jobs import JOBS
from ops.dagster.maintenance import SCHEDULES as WORK_SCHEDULES
from ops.dagster.maintenance import WORK_JOBS
from ops.dagster.reconcile import reconcile
from ops.dagster.resetting import RESET_JOBS
from ops.environment import settings_now
from pipelines.settings import Settings

ALL_JOBS = [*JOBS, *RESET_JOBS, *WORK_JOBS, old_runs.delete_old_runs]
SCHEDULES = [*WORK_SCHEDULES, old_runs.SCHEDULE]
SENSORS = [reconcile, observe_batches, alerts]


def build_definitions(settings: Settings) -> dg.Definitions:
    """Definitions of what is deployed now. Raises for wrong settings only."""
    try:
        pipelines, broken = read_deployed(settings)
    except (SQLAlchemyError, OSError) as error:
        unreachable = [unreachable_metastore(str(error))]
        return dg.Definitions(assets=unreachable, jobs=ALL_JOBS, sensors=SENSORS, schedules=SCHEDULES)
    drift, drift_schedules = drift_checks(pipelines)
    health, health_schedules = health_checks(pipelines)
    archive, archive_schedules = archive_assets(pipelines, settings)
    worked = [*backfill_assets(pipelines), *archive]
    return dg.Definitions(
        assets=[
            *(_described(spec, settings) for spec in pipeline_assets(pipelines, broken)),
            *(asset.map_asset_specs(lambda spec: _described(spec, settings)) for asset in worked),
        ],
        asset_checks=[*drift, *health],
        jobs=ALL_JOBS,
        schedules=[*SCHEDULES, *drift_schedules, *health_schedules, *archive_schedules],
        sensors=SENSORS,
    )


def _described(spec: dg.AssetSpec, settings: Settings) -> dg.AssetSpec:
    """With its owners, and tags by which people find it."""
    tags = {"rollforward/service": settings.service, "rollforward/group": spec.group_name or "none"}
    return spec.replace_attributes(owners=settings.owners, tags={**spec.tags, **tags})


defs = build_definitions(settings_now())
