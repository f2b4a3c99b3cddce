"""Snapshots of a deployed pipeline, from outside of its servers: taken by asking them, listed and collected directly."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ops.environment import Progress
from pipelines import names
from pipelines.deploy import deployed_queries
from pipelines.registry import PipelineDefinition, Registry
from pipelines.settings import Settings
from statestore.channel import may_listen
from statestore.client import StoreClient
from statestore.config import SnapshotConfig
from statestore.errors import InvalidConfig, Unavailable
from statestore.kafka.admin import Admin
from statestore.snapshots.collect import Collected, collect
from statestore.snapshots.layout import TaskLayout, pipeline_prefix, stored_tasks, topic_folder
from statestore.snapshots.manifest import Manifest
from statestore.snapshots.repository import Repository, Unreadable
from statestore.snapshots.service import Snapshots


def config_of(settings: Settings) -> SnapshotConfig:
    """Where and how. Raises `InvalidConfig` when snapshots are turned off."""
    config = settings.snapshot_config()
    if config is None:
        raise InvalidConfig("snapshots are turned off", hint="set snapshot_url in rollforward.toml, or remove it")
    return config


def repositories(row: PipelineDefinition, settings: Settings) -> dict[str, Repository]:
    """Each task's snapshots, by the task's name."""
    snapshots = Snapshots(config_of(settings))
    return {
        spec.name: snapshots.repository(spec, deployed.batches_topic_id)
        for deployed in deployed_queries(row)
        for spec in deployed.task_specs(settings.states)
    }


def take_all(registry: Registry, pipeline: str, tell: Progress) -> list[dict[str, Any]]:
    """Snapshot every task that has committed something; raises `Unavailable` when no driver runs."""
    registry.pipeline(pipeline)
    driver = registry.driver(pipeline)
    servers = [] if driver is None else [s for s in driver.servers if may_listen(s["socket"])]
    if not servers:
        raise Unavailable(
            "pipeline does not run, so there is nobody to take a snapshot",
            pipeline=pipeline,
            hint=f"`rollforward start {pipeline}`; a planned stop takes one by itself",
        )

    def of_server(server: dict[str, Any]) -> list[dict[str, Any]]:
        with StoreClient(server["socket"], pipeline=pipeline) as client:
            figures = {task["task"]: task for task in client.act("figures")["tasks"]}
            taken = []
            for task in server["tasks"]:
                if figures.get(task, {}).get("batch", -1) < 0:
                    continue
                tell(task, "copying and uploading")
                taken.append(client.snapshot(task))
            return taken

    with ThreadPoolExecutor(max_workers=len(servers)) as workers:
        return sorted((taken for found in workers.map(of_server, servers) for taken in found), key=lambda t: t["task"])


def list_all(row: PipelineDefinition, settings: Settings) -> list[dict[str, Any]]:
    """Every snapshot, by task, the oldest first; `new_bytes` is what no older one of the task has."""
    found = []
    for task, repository in repositories(row, settings).items():
        seen: set[str] = set()
        for manifest in reversed(list(repository.newest_first())):
            if isinstance(manifest, Unreadable):
                found.append({"task": task, "key": manifest.key, "problem": manifest.reason})
            else:
                found.append(_described(task, repository, manifest, seen))
                seen.update(file.sha256 for file in manifest.files)
    return found


def _described(task: str, repository: Repository, manifest: Manifest, seen: set[str]) -> dict[str, Any]:
    return {
        "task": task,
        "key": repository.layout.manifest(manifest.batch),
        "problem": "",
        "batch": manifest.batch,
        "taken_at_ms": manifest.taken_at_ms,
        "offsets": {name: at.offset for name, at in manifest.stores.items()},
        "files": len(manifest.files),
        "bytes": manifest.total_bytes,
        "new_bytes": sum(file.bytes for file in manifest.files if file.sha256 not in seen),
    }


def collect_dropped(
    registry: Registry, pipeline: str, settings: Settings, tell: Progress, *, dry_run: bool
) -> list[Collected]:
    """Collect what dropped queries of this name have left, or only say what would go.

    Dropped is a query whose batches topic is not in Kafka any more under the id that its snapshots lie below, and that is
    not deployed here with it. The same name deployed again has another id. Kafka is asked after the listing, so whoever
    is in the listing and lives is found there.
    """
    config, admin = config_of(settings), Admin(settings.kafka_config())
    admin.check()
    objects = Snapshots(config).objects
    stored = stored_tasks(info.key for info in objects.list(pipeline_prefix(names.require_name(pipeline, "pipeline"))))
    topics = admin.describe(sorted({names.batches_topic(pipeline, task.query) for task in stored}))
    row = registry.find(pipeline)
    deployed = [] if row is None else [one.batches_topic_id for one in deployed_queries(row)]
    living = {topic_folder(topic_id) for topic_id in [*deployed, *(topic.topic_id for topic in topics.values())]}
    collected = []
    for task in stored:
        if task.topic_folder not in living:
            tell(task.prefix, "looking for what nothing needs")
            repository = Repository(objects, TaskLayout(task.prefix, task.topic_folder))
            collected.append(collect(repository, config, dry_run=dry_run, dropped=True))
    return collected


def collect_all(row: PipelineDefinition, settings: Settings, tell: Progress, *, dry_run: bool) -> list[Collected]:
    """Collect every task's snapshots, or only say what would go."""
    config = config_of(settings)
    collected = []
    for task, repository in repositories(row, settings).items():
        tell(task, "looking for what nothing needs")
        collected.append(collect(repository, config, dry_run=dry_run))
    return collected
