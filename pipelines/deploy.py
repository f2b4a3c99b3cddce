"""Deploying a pipeline: its SQL becomes plans, its topics are created and their ids recorded, its row is written.

Topics are created here and nowhere else. Everything is safe to do twice: a deploy that died in the middle is repeated.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipelines import names
from pipelines.plan import Query, plan_hash, query_from_json, query_to_json
from pipelines.registry import STOPPED, PipelineRow, Registry
from pipelines.resolve import resolved, resolved_as, result_settings
from pipelines.settings import Settings
from pipelines.sql import parse_pipeline
from statestore.config import KafkaConfig, StoreSpec, TaskSpec
from statestore.errors import InvalidConfig, InvalidInput, Unrecoverable
from statestore.kafka import Admin

# A query's plans and positions are read from the beginning at every start: small segments keep that short.
BATCHES_SETTINGS = {
    "cleanup.policy": "compact",
    "segment.bytes": str(1024 * 1024),
    "segment.ms": "600000",
    "min.cleanable.dirty.ratio": "0.1",
}
CHANGELOG_SETTINGS = {"cleanup.policy": "compact", "message.timestamp.type": "CreateTime"}
DEAD_LETTER_SETTINGS = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}


@dataclass(frozen=True)
class DeployedQuery:
    """A query with the ids of the topics that hold its truth."""

    pipeline: str
    query: Query
    batches_topic_id: str
    changelog_topic_id: str

    @property
    def batches_topic(self) -> str:
        """Its plans and positions."""
        return names.batches_topic(self.pipeline, self.query.name)

    def task_specs(self, states: Path) -> list[TaskSpec]:
        """Its tasks, by number."""
        store = StoreSpec(
            self.query.store, names.changelog_topic(self.pipeline, self.query.store), self.changelog_topic_id
        )
        return [
            TaskSpec(
                pipeline=self.pipeline,
                query=self.query.name,
                number=number,
                tasks=self.query.tasks,
                batches_topic=self.batches_topic,
                output_topic=self.query.output_topic,
                dead_letter_topic=names.dead_letter_topic(self.pipeline),
                store=store,
                folder=names.task_folder(states, self.pipeline, self.query.name, number),
            )
            for number in range(self.query.tasks)
        ]


def deployed_queries(row: PipelineRow) -> list[DeployedQuery]:
    """The queries of a definition."""
    return [
        DeployedQuery(row.name, query_from_json(q["plan"]), q["batches_topic_id"], q["changelog_topic_id"])
        for q in row.queries
    ]


def deploy(sql: str, pipeline: str, settings: Settings, registry: Registry) -> tuple[PipelineRow, bool]:
    """Deploy; gives the definition and whether it changed anything.

    Raises `SqlError` for the text, `InvalidInput` for a name or a definition that differs from the deployed one, and
    `InvalidConfig` where a topic does not fit.
    """
    names.require_name(pipeline, "pipeline")
    parsed = parse_pipeline(sql, pipeline=pipeline, default_tasks=settings.tasks)
    for query in parsed.queries:
        names.require_name(query.name, "query")
    existing = registry.find(pipeline)
    if existing is not None:
        if _same(parsed.queries, [old.query for old in deployed_queries(existing)]):
            return existing, False
        raise InvalidInput(
            "pipeline is deployed with other statements", pipeline=pipeline, hint="deploy it under another name"
        )
    config = settings.kafka_config()
    admin = Admin(config)
    _require_sources(admin, [source.topic for source in parsed.sources], config)
    row = PipelineRow(
        name=pipeline,
        sql=sql,
        sources=[{"name": source.name, "topic": source.topic} for source in parsed.sources],
        queries=[_create_topics(admin, pipeline, query, settings) for query in parsed.queries],
        desired=STOPPED,
        deployed_at=time.time(),
    )
    registry.deploy(row)
    return row, True


def _same(parsed: Sequence[Query], deployed: Sequence[Query]) -> bool:
    """Whether the statements are the deployed ones."""
    if len(parsed) != len(deployed):
        return False
    pairs = zip(parsed, deployed, strict=True)
    return all(plan_hash(resolved_as(new, old)) == plan_hash(old) for new, old in pairs)


def _require_sources(admin: Admin, topics: list[str], config: KafkaConfig) -> None:
    missing = sorted(set(topics) - set(admin.describe(sorted(set(topics)))))
    if missing:
        raise InvalidConfig(
            "source topic does not exist",
            topic=", ".join(missing),
            bootstrap_servers=config.bootstrap_servers,
            hint="create it, or correct kafka_topic in the CREATE STREAM statement",
        )


def _create_topics(admin: Admin, pipeline: str, query: Query, settings: Settings) -> dict[str, str]:
    replication = settings.replication_factor

    def create(name: str, partitions: int, wanted: dict[str, str]) -> str:
        topic = admin.create(name, partitions=partitions, settings=wanted, replication=replication)
        return topic.topic_id

    create(names.dead_letter_topic(pipeline), 1, DEAD_LETTER_SETTINGS)
    query = resolved(query, admin)
    create(query.output_topic, query.output_partitions, result_settings(query, admin))
    changelog = names.changelog_topic(pipeline, query.store)
    changelog_id = create(changelog, query.tasks, CHANGELOG_SETTINGS)
    _require_compacted(admin, changelog)
    batches = names.batches_topic(pipeline, query.name)
    # One partition a task, and one for the driver.
    batches_id = create(batches, query.tasks + 1, BATCHES_SETTINGS)
    _require_compacted(admin, batches)
    return {"plan": query_to_json(query), "batches_topic_id": batches_id, "changelog_topic_id": changelog_id}


def _require_compacted(admin: Admin, topic: str) -> None:
    policy = admin.configs(topic).get("cleanup.policy", "")
    if policy != "compact":
        raise InvalidConfig(
            "topic must be compacted, or its newest values are lost",
            topic=topic,
            cleanup_policy=policy,
            hint="set cleanup.policy=compact",
        )


def require_unchanged(deployed: DeployedQuery, admin: Admin) -> None:
    """Refuse a batches topic or changelog that is missing or was created anew since the deploy."""
    store_topic = names.changelog_topic(deployed.pipeline, deployed.query.store)
    expected = {deployed.batches_topic: deployed.batches_topic_id, store_topic: deployed.changelog_topic_id}
    found = admin.describe(list(expected))
    for topic, topic_id in expected.items():
        if topic not in found or found[topic].topic_id != topic_id:
            raise Unrecoverable(
                "topic is missing" if topic not in found else "topic was deleted and created again",
                topic=topic,
                recorded_topic_id=topic_id,
                hint="restore it from a backup, or deploy the pipeline under another name",
            )
