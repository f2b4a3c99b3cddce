"""Verifying a pipeline's local stores from outside: nothing is owned, stopped or written."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Literal

from ops.environment import Progress
from ops.snapshots import config_of
from pipelines.deploy import deployed_queries
from pipelines.processes import remove_left
from pipelines.registry import PipelineDefinition
from pipelines.settings import Settings
from statestore.batches import BatchesLog
from statestore.config import RocksConfig, TaskSpec
from statestore.kafka.admin import Admin
from statestore.kafka.reader import Reader
from statestore.snapshots.service import Snapshots
from statestore.travel.cut import look_back
from statestore.verification import Verified, verify, verify_against, verify_digest
from statestore.version import TaskDatabase

Against = Literal["digest", "changelog", "snapshot"]
_numbers = count()


def verify_all(
    row: PipelineDefinition,
    settings: Settings,
    tell: Progress,
    *,
    percent: float,
    against: Against = "digest",
    full: bool = False,
) -> list[Verified]:
    """Compare every local store that is there with the committed digest, with its changelog, or with its newest snapshot.

    A digest that differs or is not known is followed by the changelog, which names keys. So does a sample, which has
    no digest. A snapshot whose digest is the store's is not downloaded, unless `full`. A running server's store is read as it is now, beside it. Raises `OutOfReach` where no snapshot leads to it.
    """
    Admin(settings.kafka_config()).check()
    verified = []
    for deployed in deployed_queries(row):
        for spec in deployed.task_specs(settings.states):
            if not spec.folder.exists():
                continue
            database = TaskDatabase.beside(spec.folder, [spec.store.name], RocksConfig())
            try:
                verified.append(_verified(spec, database, settings, tell, percent, against, full=full))
            finally:
                database.close()
    return verified


def _verified(
    spec: TaskSpec,
    database: TaskDatabase,
    settings: Settings,
    tell: Progress,
    percent: float,
    against: Against,
    *,
    full: bool,
) -> Verified:
    if against == "snapshot":
        return _with_snapshot(spec, database, settings, tell, percent, full=full)
    by_digest = None
    if against == "digest" and percent >= 100:
        tell(spec.name, "reading the store for its digest")
        batches = BatchesLog(Reader(settings.kafka_config()), spec.batches_topic, tasks=spec.tasks)
        by_digest = verify_digest(spec, batches, database)
    if by_digest is not None and not by_digest.differs:
        return by_digest
    by_key = _with_changelog(spec, database, settings, tell, percent)
    return replace(by_key, digest_differs=by_digest is not None)


def _with_changelog(
    spec: TaskSpec, database: TaskDatabase, settings: Settings, tell: Progress, percent: float
) -> Verified:
    def progressed(done: int, total: int) -> None:
        tell(spec.name, f"{done:,} of {total:,} offsets")

    work = _work_folder(spec)
    reader = Reader(settings.kafka_config())
    return verify(spec, reader, database, work, percent=percent, on_progress=progressed)


def _with_snapshot(
    spec: TaskSpec, database: TaskDatabase, settings: Settings, tell: Progress, percent: float, *, full: bool
) -> Verified:
    kafka, config = settings.kafka_config(), config_of(settings)
    tell(spec.name, "comparing with its newest snapshot")
    cut = look_back([spec], Reader(kafka), Admin(kafka), Snapshots(config), any_timeline=True)
    work = _work_folder(spec)
    task, pin_life_s = cut.tasks[0], config.pin_life_s
    return verify_against(spec, database, task, work, pin_life_s=pin_life_s, percent=percent, full=full)


def _work_folder(spec: TaskSpec) -> Path:
    """A folder beside the store that no other verification has, in this process or another; what killed ones left goes."""
    prefix = f"{spec.folder.name}.verify-"
    remove_left(spec.folder.parent, prefix)
    return spec.folder.with_name(f"{prefix}{next(_numbers)}-{os.getpid()}")
