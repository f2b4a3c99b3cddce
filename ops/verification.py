"""Verifying a pipeline's local stores against their changelogs, from outside: nothing is owned, stopped or written."""

from __future__ import annotations

from ops.environment import Progress
from pipelines.deploy import deployed_queries
from pipelines.registry import PipelineDefinition
from pipelines.settings import Settings
from statestore.config import RocksConfig
from statestore.kafka import Admin, Reader
from statestore.verification import Verified, verify
from statestore.version import TaskDatabase


def verify_all(row: PipelineDefinition, settings: Settings, tell: Progress, *, percent: float) -> list[Verified]:
    """Compare every local store that is there. A running server's store is read as it is now, beside it."""
    config = settings.kafka_config()
    Admin(config).check()
    reader = Reader(config)
    verified = []
    for deployed in deployed_queries(row):
        for spec in deployed.task_specs(settings.states):
            if not spec.folder.exists():
                continue
            database = TaskDatabase(spec.folder, [spec.store.name], RocksConfig(), read_only=True)
            try:

                def progressed(done: int, total: int, name: str = spec.name) -> None:
                    tell(name, f"{done:,} of {total:,} offsets")

                work = spec.folder.with_name(f"{spec.folder.name}.verify")
                verified.append(verify(spec, reader, database, work, percent=percent, on_progress=progressed))
            finally:
                database.close()
    return verified
