"""What a recovery would do for each task, found out without owning or changing anything.

It is an estimate: only the owner of a task may read its end offset and decide, and it decides anew when it opens the
task. Kafka is read, and a local store is opened read-only, which works beside its owner.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipelines.deploy import DeployedQuery, deployed_queries
from pipelines.registry import PipelineRow
from pipelines.settings import Settings
from statestore.batches import BatchesLog
from statestore.config import RocksConfig, TaskSpec
from statestore.errors import RollforwardError, TaskCorrupted
from statestore.kafka import Admin, Reader
from statestore.recovery import plan_recovery
from statestore.task import gather
from statestore.version import Checkpoint, TaskDatabase

_TIMEOUT_S = 10.0


def preview_plans(row: PipelineRow, settings: Settings) -> list[dict[str, Any]]:
    """One plan per task, as `RecoveryPlan.to_json` gives it; a task that cannot be looked at has its error as reason.

    Raises `Unavailable` or `InvalidConfig` when there is no Kafka to ask.
    """
    kafka = settings.model_copy(update={"request_timeout_s": _TIMEOUT_S}).kafka_config()
    admin = Admin(kafka)
    admin.check()
    reader = Reader(kafka)
    return [
        _preview(deployed, spec, reader, admin)
        for deployed in deployed_queries(row)
        for spec in deployed.task_specs(settings.states)
    ]


def _preview(deployed: DeployedQuery, spec: TaskSpec, reader: Reader, admin: Admin) -> dict[str, Any]:
    try:
        position = BatchesLog(reader, deployed.batches_topic, tasks=spec.tasks).position(spec.number)
        checkpoint, problem = _local(spec.folder, spec.store.name)
        return plan_recovery(spec, gather(spec, reader, admin, position, checkpoint, problem)).to_json()
    except RollforwardError as error:
        return {"task": spec.name, "way": "not possible", "reason": str(error)}


def _local(folder: Path, store: str) -> tuple[Checkpoint | None, str]:
    """The local store's checkpoint, or None and the problem with it."""
    if not folder.exists():
        return None, ""
    try:
        database = TaskDatabase(folder, [store], RocksConfig(), read_only=True)
    except TaskCorrupted as error:
        return None, f"local store is unusable: {error}"
    try:
        checkpoint = database.checkpoint()
    except TaskCorrupted as error:
        return None, f"local store is unusable: {error}"
    finally:
        database.close()
    return checkpoint, "" if checkpoint else "local store was not complete"
