"""The changelog topics of one task: made when they have never been, refused when they are gone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from statestore.changelog_topic import changelog_topic, configured
from statestore.commitnote import CommitNote
from statestore.config import StreamConfig
from statestore.errors import InvalidConfig, Unrecoverable
from statestore.kafka.admin import Admin
from statestore.kafka.reader import Reader
from statestore.kinds.base import Kind
from statestore.restore import Changelog


class Changelogs:
    """`topic_configs` are settings by store name; they go over those of the store's kind."""

    def __init__(
        self, config: StreamConfig, reader: Reader, topic_configs: Mapping[str, Mapping[str, str]] | None = None
    ) -> None:
        self._config = config
        self._admin = Admin(config.kafka)
        self._reader = reader
        self._topic_configs = topic_configs or {}

    def look(self, kinds: Iterable[Kind], note: CommitNote | None) -> dict[str, Changelog]:
        """The changelog of every store that has one, by its name, as it is now: ask after owning the task.

        Raises `Unrecoverable` if one is missing that the task's last commit speaks of.
        """
        partitions = self._partitions()
        return {kind.name: self._look(kind, note, partitions) for kind in kinds if kind.logged}

    def _look(self, kind: Kind, note: CommitNote | None, partitions: int) -> Changelog:
        topic, partition = changelog_topic(self._config.application, kind.name), self._config.partition
        if note is not None and kind.name in note.stores and topic not in self._admin.describe([topic]):
            raise Unrecoverable(
                "changelog topic is missing, but a commit speaks of it",
                store=kind.name,
                topic=topic,
                hint="restore the topic from a backup, or start the application anew under another name",
            )
        settings = configured(kind.changelog_config(), topic=self._topic_configs.get(kind.name))
        about = self._admin.create(topic, partitions=partitions, settings=settings)
        first, end = self._reader.begin_and_end(topic, partition)
        configs = self._admin.configs(topic)
        retention, policy = configs.get("delete.retention.ms", "86400000"), configs.get("cleanup.policy", "compact")
        return Changelog(topic, about.topic_id, partition, first, end, int(retention), policy)

    def _partitions(self) -> int:
        """As many as the input with the most has."""
        config = self._config
        inputs = self._admin.describe(config.inputs)
        if any(topic not in inputs or inputs[topic].partitions <= config.partition for topic in config.inputs):
            raise InvalidConfig(
                "an input topic does not exist or has no such partition",
                inputs=", ".join(config.inputs),
                partition=config.partition,
            )
        return max(about.partitions for about in inputs.values())

    def require_empty(self, changelogs: Iterable[Changelog]) -> None:
        """Refuse a first start beside changelogs that have, or had, records: it would take the whole input once more."""
        for changelog in changelogs:
            if changelog.first > 0 or any(
                self._reader.read(changelog.topic, changelog.partition, start=changelog.first)
            ):
                raise Unrecoverable(
                    "changelog has records, or had some, but the group has no input offsets",
                    topic=changelog.topic,
                    group=self._config.application,
                    hint="they expire after the broker's offsets.retention.minutes without a commit; set the group's offsets to where the input was, or use another application name",
                )
