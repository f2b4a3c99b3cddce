"""What the administrative client does when another is quicker."""

from __future__ import annotations

from collections.abc import Sequence

import confluent_kafka as ck

from statestore.config import KafkaConfig
from statestore.kafka.admin import Admin, Topic
from statestore.kafka.groups import GroupOffsets


class Slower(Admin):
    """Another deletes what this one has just found."""

    def __init__(self, config: KafkaConfig, group: str = "") -> None:
        super().__init__(config)
        self._group = group
        self._other = Admin(config)

    def describe(self, names: Sequence[str]) -> dict[str, Topic]:
        found = super().describe(names)
        self._other.delete(list(found))
        return found

    def groups(self) -> set[str]:
        found = super().groups()
        self._other.delete_groups([self._group])
        return found


def test_a_topic_that_another_has_deleted_is_deleted(kafka: str, unique: str) -> None:
    config = KafkaConfig(kafka)
    Admin(config).create(unique, partitions=1, settings={})
    Slower(config).delete([unique])
    Admin(config).await_gone(unique)


def test_a_group_that_another_has_deleted_is_deleted(kafka: str, unique: str) -> None:
    config = KafkaConfig(kafka)
    Admin(config).create(unique, partitions=1, settings={})
    GroupOffsets(config, unique).commit([ck.TopicPartition(unique, 0, 0)])
    assert unique in Admin(config).groups()
    Slower(config, unique).delete_groups([unique])
    assert unique not in Admin(config).groups()
