"""Offsets that consumer groups have committed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import confluent_kafka as ck

from statestore.config import KafkaConfig
from statestore.kafka.connection import ask, client_settings

Answer = TypeVar("Answer")
TopicPartition = tuple[str, int]


class GroupOffsets:
    """What a consumer group has committed, without being a member of it."""

    def __init__(self, config: KafkaConfig, group: str) -> None:
        self._config = config
        self._group = group

    def committed(
        self, partitions: Iterable[TopicPartition], *, stable: bool = True
    ) -> dict[TopicPartition, tuple[int, str]]:
        """Next-to-read offset and note of each partition that has one.

        `stable` waits until no open transaction can change them (KIP-447); without it they are as last committed.
        """
        wanted = [ck.TopicPartition(topic, partition) for topic, partition in partitions]
        timeout = self._config.request_timeout_s
        found = self._with_consumer(
            "committed", lambda consumer: _whole(consumer.committed(wanted, timeout=timeout)), stable=stable
        )
        return {(one.topic, one.partition): (one.offset, one.metadata or "") for one in found if one.offset >= 0}

    def commit(self, positions: list[ck.TopicPartition]) -> None:
        """Commit outside of any transaction."""
        self._with_consumer("commit", lambda consumer: _whole(consumer.commit(offsets=positions, asynchronous=False)))

    def _with_consumer(self, what: str, question: Callable[[ck.Consumer], Answer], *, stable: bool = True) -> Answer:
        isolation = "read_committed" if stable else "read_uncommitted"
        consumer = ck.Consumer({**client_settings(self._config), "group.id": self._group, "isolation.level": isolation})
        try:
            return ask(consumer, self._config, what, lambda: question(consumer), group=self._group)
        finally:
            consumer.close()


def _whole(found: list[ck.TopicPartition]) -> list[ck.TopicPartition]:
    """An answer of which every partition is right. An error of one would look like an offset that was never committed."""
    for one in found:
        if one.error is not None:
            raise ck.KafkaException(one.error)
    return found
