"""The command topic: one partition that keeps everything, read as `read_committed`, written under one transactional id.

The transactional id is the service's name, the same for all writers: whoever initialises a producer with it fences the
one before and ends its open transaction, so a writer that got its transaction committed was alone from `init` on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pipelines.names import command_topic
from statestore.config import KafkaConfig
from statestore.kafka.admin import Admin, Topic
from statestore.kafka.producer import TransactionalProducer
from statestore.kafka.reader import Reader, Record

VALUE_BYTES_MAX = 8 * 1024 * 1024
SETTINGS = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "message.timestamp.type": "CreateTime",
    "max.message.bytes": str(VALUE_BYTES_MAX + 64 * 1024),
}


class CommandLog:
    """The command topic of one service."""

    def __init__(self, config: KafkaConfig, service: str, *, replication: int = -1) -> None:
        self.topic_name = command_topic(service)
        self.config = replace(config, client={**config.client, "message.max.bytes": SETTINGS["max.message.bytes"]})
        self._service = service
        self._replication = replication
        self.admin = Admin(self.config)
        self._reader = Reader(self.config)

    def topic(self) -> Topic | None:
        """The topic as it is now."""
        return self.admin.describe([self.topic_name]).get(self.topic_name)

    def create(self) -> Topic:
        """Make the topic. Raises `InvalidConfig` if it is there with more than one partition."""
        return self.admin.create(self.topic_name, partitions=1, settings=SETTINGS, replication=self._replication)

    def wrong_settings(self) -> dict[str, str]:
        """Settings that would let Kafka delete commands, with the values they should have."""
        found = self.admin.configs(self.topic_name)
        return {name: SETTINGS[name] for name in SETTINGS if found.get(name) != SETTINGS[name]}

    def bounds(self) -> tuple[int, int]:
        """First offset of the log and the one after its last, open transactions included."""
        return self._reader.begin_and_end(self.topic_name, 0)

    def settled(self) -> tuple[int, int]:
        """First offset of the log and the one where the first open transaction begins."""
        start, _ = self.bounds()
        return start, max(start, self.stable_end())

    def stable_end(self) -> int:
        """The offset up to which every transaction has ended."""
        return self._reader.stable_end(self.topic_name, 0)

    def read(self, start: int, end: int | None = None) -> list[Record]:
        """The committed records from `start` to `end` (exclusive) or to the log's end."""
        return [record for chunk in self._reader.read(self.topic_name, 0, start=start, end=end) for record in chunk]

    def first(self, start: int, end: int) -> Record | None:
        """The first committed record from `start` to `end` (exclusive)."""
        for chunk in self._reader.read(self.topic_name, 0, start=start, end=end):
            return chunk[0]
        return None

    def producer(self) -> TransactionalProducer:
        """A new producer of the service's id; one serves one statement, since it can be initialised once."""
        return TransactionalProducer(self.config, self._service)

    def produce(
        self, producer: TransactionalProducer, value: bytes, key: str, on_offset: Callable[[int], None]
    ) -> None:
        """Queue one command; `on_offset` is called from `flush`."""
        producer.produce(self.topic_name, partition=0, key=key.encode(), value=value, on_offset=on_offset)

    def trim(self, *, before: int) -> None:
        """Delete what a checkpoint has replaced."""
        self.admin.trim(self.topic_name, 0, before=before)
