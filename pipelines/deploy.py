"""What a deployed pipeline has in Kafka: its topics are created, their ids recorded, and compared at each start.

Topics are created here and nowhere else. Everything is safe to do twice: a deploy that died in the middle is repeated.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pipelines import names
from pipelines.plan import Query, query_from_json, query_to_json
from pipelines.registry import PipelineDefinition
from pipelines.resolve import MAX_BYTES, record_size, resolved, result_settings
from pipelines.settings import Settings
from statestore.changelog_topic import EVENT_TIMES, compacted
from statestore.config import StoreSpec, TaskSpec
from statestore.errors import InvalidConfig, InvalidInput, Unrecoverable
from statestore.kafka.admin import Admin

# A query's plans and positions are read from the beginning at every start: small segments keep that short.
BATCHES_SETTINGS = {
    "cleanup.policy": "compact",
    "segment.bytes": str(1024 * 1024),
    "segment.ms": "600000",
    "min.cleanable.dirty.ratio": "0.1",
}
CHANGELOG_SETTINGS = compacted()
DEAD_LETTER_SETTINGS = {**EVENT_TIMES, "cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}


@dataclass(frozen=True)
class DeployedQuery:
    """A query with the ids of the topics that hold its truth. `origin` is the pipeline that its own is a copy of."""

    pipeline: str
    query: Query
    batches_topic_id: str
    changelog_topic_id: str
    origin: str = ""

    @property
    def batches_topic(self) -> str:
        """Its plans and positions."""
        return names.batches_topic(self.pipeline, self.query.name)

    def task_specs(self, states: Path) -> list[TaskSpec]:
        """Its tasks, by number."""
        changelog, window = names.changelog_topic(self.pipeline, self.query.store), self.query.window
        retention_ms = None if window is None else window.retention_ms
        store = StoreSpec(self.query.store, changelog, self.changelog_topic_id, retention_ms)
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


def deployed_queries(row: PipelineDefinition) -> list[DeployedQuery]:
    """The queries of a definition."""
    return [
        DeployedQuery(row.name, query_from_json(q["plan"]), q["batches_topic_id"], q["changelog_topic_id"], row.origin)
        for q in row.queries
    ]


class KafkaWorld:
    """What definitions need in Kafka: looked for and made by the settings' clients.

    A running query is not replaced: the new one would have to go on from the old one's place and state.
    """

    replaces_queries = False

    def __init__(self, settings: Settings) -> None:
        self.default_tasks = settings.tasks
        self._config = settings.kafka_config()
        self._replication = settings.replication_factor
        self._admin = Admin(self._config)

    def require_sources(self, topics: list[str]) -> None:
        """Raises `InvalidConfig` unless the topics exist."""
        missing = sorted(set(topics) - set(self._admin.describe(sorted(set(topics)))))
        if missing:
            raise InvalidConfig(
                "source topic does not exist",
                topic=", ".join(missing),
                bootstrap_servers=self._config.bootstrap_servers,
                hint="create it, or correct kafka_topic in the CREATE STREAM statement",
            )

    def require_topic(self, topic: str, partitions: int | None) -> None:
        """Make sure of the topic of a stream or table: without `partitions` it must exist. Raises `InvalidConfig`."""
        if topic in self._admin.describe([topic]):
            return
        if partitions is None:
            hint = "create it, or give PARTITIONS and it is created"
            raise InvalidConfig("topic does not exist", topic=topic, hint=hint)
        self._admin.create(topic, partitions=partitions, settings=EVENT_TIMES, replication=self._replication)

    def topic_id(self, topic: str) -> str:
        """The topic's id, empty if there is no such topic."""
        found = self._admin.describe([topic]).get(topic)
        return "" if found is None else found.topic_id

    def create_topics(self, pipeline: str, query: Query) -> dict[str, str]:
        """Make the query's topics; gives its plan and their ids. Raises `InvalidInput` for another pipeline's state."""
        changelog = names.changelog_topic(pipeline, query.store)
        batches = names.batches_topic(pipeline, query.name)
        self._require_unused([changelog, batches], pipeline)
        query = resolved(query, self._admin)
        dead_letters = names.dead_letter_topic(pipeline)
        size = record_size(query, self._admin)
        wanted = {
            dead_letters: (1, {**DEAD_LETTER_SETTINGS, **size}),
            query.output_topic: (query.output_partitions, {**result_settings(query, self._admin), **size}),
            changelog: (query.tasks, {**CHANGELOG_SETTINGS, **size}),
            # One partition a task, and one for the driver.
            batches: (query.tasks + 1, BATCHES_SETTINGS),
        }
        made = self._admin.create_all(wanted, replication=self._replication)
        if size and int(self._admin.configs(dead_letters)[MAX_BYTES]) < int(size[MAX_BYTES]):
            # Another query of the pipeline made it, whose records are smaller.
            self._admin.configure(dead_letters, size)
        return {
            "plan": query_to_json(query),
            "batches_topic_id": made[batches].topic_id,
            "changelog_topic_id": made[changelog].topic_id,
        }

    def remove(self, topics: dict[str, str], groups: list[str]) -> list[str]:
        """Delete the topics that still have the given ids, and the groups; gives the names of what was deleted."""
        present = self._admin.describe(sorted(topics))
        ours = [name for name, topic in present.items() if topic.topic_id == topics[name]]
        self._admin.delete(ours)
        for name in ours:
            self._admin.await_gone(name)
        left = sorted(set(groups) & self._admin.groups()) if groups else []
        self._admin.delete_groups(left)
        return ours + left

    def _require_unused(self, topics: list[str], pipeline: str) -> None:
        """Topics that are there already: a new pipeline must not take the state of one that had its name for its own."""
        for topic in self._admin.describe(topics).values():
            _require_compacted(self._admin, topic.name)
            if any(self._admin.ends(topic.name, partitions=topic.partitions).values()):
                raise InvalidInput(
                    "topic holds the state of an earlier pipeline of this name",
                    topic=topic.name,
                    pipeline=pipeline,
                    hint="use another name, or delete the topic if nothing needs it",
                )


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
