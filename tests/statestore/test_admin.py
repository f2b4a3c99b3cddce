"""What the administrative client does when another is quicker."""

from __future__ import annotations

from collections.abc import Sequence

import confluent_kafka as ck
import pytest

from statestore.config import KafkaConfig
from statestore.errors import InvalidInput
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


@pytest.mark.parametrize("time_ms", [-1, -2, -86_400_000])
def test_a_time_before_1970_is_refused_before_it_means_something_else(kafka: str, unique: str, time_ms: int) -> None:
    with pytest.raises(InvalidInput, match="before 1970"):
        Admin(KafkaConfig(kafka)).at_time(unique, time_ms, partitions=1)
