"""Verifying a pipeline's local stores from outside: nothing is owned, stopped or written."""

from __future__ import annotations

from ops.environment import Progress
from ops.snapshots import config_of
from pipelines.deploy import deployed_queries
from pipelines.registry import PipelineDefinition
from pipelines.settings import Settings
from statestore.config import RocksConfig, TaskSpec
from statestore.kafka import Admin, Reader
from statestore.snapshots.service import Snapshots
from statestore.travel.cut import look_back
from statestore.verification import Verified, verify, verify_against
from statestore.version import TaskDatabase


def verify_all(
    row: PipelineDefinition, settings: Settings, tell: Progress, *, percent: float, snapshot: bool = False
) -> list[Verified]:
    """Compare every local store that is there with its changelog, or with its newest snapshot.

    A running server's store is read as it is now, beside it. Raises `OutOfReach` where no snapshot leads to it.
    """
    Admin(settings.kafka_config()).check()
    verified = []
    for deployed in deployed_queries(row):
        for spec in deployed.task_specs(settings.states):
            if not spec.folder.exists():
                continue
            database = TaskDatabase(spec.folder, [spec.store.name], RocksConfig(), read_only=True)
            try:
                of = _with_snapshot if snapshot else _with_changelog
                verified.append(of(spec, database, settings, tell, percent))
            finally:
                database.close()
    return verified


def _with_changelog(
    spec: TaskSpec, database: TaskDatabase, settings: Settings, tell: Progress, percent: float
) -> Verified:
    def progressed(done: int, total: int) -> None:
        tell(spec.name, f"{done:,} of {total:,} offsets")

    work = spec.folder.with_name(f"{spec.folder.name}.verify")
    reader = Reader(settings.kafka_config())
    return verify(spec, reader, database, work, percent=percent, on_progress=progressed)


def _with_snapshot(
    spec: TaskSpec, database: TaskDatabase, settings: Settings, tell: Progress, percent: float
) -> Verified:
    kafka, config = settings.kafka_config(), config_of(settings)
    tell(spec.name, "restoring its newest snapshot elsewhere")
    cut = look_back([spec], Reader(kafka), Admin(kafka), Snapshots(config))
    work = spec.folder.with_name(f"{spec.folder.name}.verify")
    return verify_against(spec, database, cut.tasks[0], work, pin_life_s=config.pin_life_s, percent=percent)
