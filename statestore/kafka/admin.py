"""Topics, their settings and ends, and consumer groups: what an administrator asks and changes."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import confluent_kafka as ck
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, OffsetSpec

from statestore.errors import InvalidConfig, InvalidInput
from statestore.kafka.connection import Asking, ask, unavailable
from statestore.kafka.offsets import list_offsets, require_led

# What a broker says of a time that all its records are older than.
_NO_RECORD = -1
_NOT_TO_BE_SEEN = (ck.KafkaError.UNKNOWN_TOPIC_OR_PART, ck.KafkaError.TOPIC_AUTHORIZATION_FAILED)


@dataclass(frozen=True)
class Topic:
    """A topic as the cluster describes it. `topic_id` changes when a topic is deleted and made again."""

    name: str
    topic_id: str
    partitions: int


class Admin(Asking):
    """Topics: describe, create, delete. Nothing else creates a topic."""

    def describe(self, names: Sequence[str]) -> dict[str, Topic]:
        """The topics that exist among `names`."""
        if not names:
            return {}
        return ask(self._admin, self._config, "describe_topics", lambda: self._describe(names), topics=", ".join(names))

    def _describe(self, names: Sequence[str]) -> dict[str, Topic]:
        found: dict[str, Topic] = {}
        timeout = self._config.request_timeout_s
        futures = self._admin.describe_topics(ck.TopicCollection(list(names)), request_timeout=timeout)
        for name, future in futures.items():
            # Raised here it would be in a cycle with the futures, and with the client.
            error = future.exception()
            if isinstance(error, ck.KafkaException) and error.args[0].code() == ck.KafkaError.UNKNOWN_TOPIC_OR_PART:
                continue
            about = future.result()
            found[name] = Topic(name, str(about.topic_id), len(about.partitions))
        return found

    def topics(self) -> dict[str, int]:
        """Every topic with its number of partitions."""
        found = ask(self._admin, self._config, "list_topics", lambda: self._admin.list_topics(timeout=10.0).topics)
        return {name: len(topic.partitions) for name, topic in found.items()}

    def configs(self, topic: str) -> dict[str, str]:
        """The topic's settings."""
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)

        def question() -> dict[str, str]:
            entries = self._admin.describe_configs([resource], request_timeout=self._config.request_timeout_s)
            return {name: entry.value for name, entry in entries[resource].result().items()}

        return ask(self._admin, self._config, "describe_configs", question, topic=topic)

    def is_compacted(self, topic: str) -> bool:
        """Whether Kafka drops records of the topic that a newer one of their key has followed."""
        return "compact" in self.configs(topic).get("cleanup.policy", "")

    def broker_configs(self) -> dict[str, str]:
        """Settings of one broker, which are the cluster's where the brokers agree; none if this user may not read them."""

        def question() -> dict[str, str]:
            broker = next(iter(self._admin.list_topics(timeout=self._config.request_timeout_s).brokers))
            resource = ConfigResource(ConfigResource.Type.BROKER, str(broker))
            entries = self._admin.describe_configs([resource], request_timeout=self._config.request_timeout_s)
            try:
                found = entries[resource].result()
            except ck.KafkaException as raised:
                if raised.args[0].code() != ck.KafkaError.CLUSTER_AUTHORIZATION_FAILED:
                    raise
                return {}
            return {name: entry.value for name, entry in found.items() if entry.value is not None}

        return ask(self._admin, self._config, "describe_configs", question, broker="any")

    def authorized(self, names: Sequence[str]) -> dict[str, set[str]]:
        """What this user may do (`READ`, `WRITE`, …) with those of the topics that exist and that it may describe."""

        def question() -> dict[str, set[str]]:
            futures = self._admin.describe_topics(
                ck.TopicCollection(list(names)),
                include_authorized_operations=True,
                request_timeout=self._config.request_timeout_s,
            )
            found = {}
            for name, future in futures.items():
                try:
                    found[name] = {operation.name for operation in future.result().authorized_operations or []}
                except ck.KafkaException as raised:
                    if raised.args[0].code() not in _NOT_TO_BE_SEEN:
                        raise
            return found

        return ask(self._admin, self._config, "describe_topics", question, topics=", ".join(names))

    def create(self, name: str, *, partitions: int, settings: Mapping[str, str], replication: int = -1) -> Topic:
        """Create the topic unless it exists. Raises `InvalidConfig` if it exists with other partitions."""
        return self.create_all({name: (partitions, settings)}, replication=replication)[name]

    def create_all(
        self, wanted: Mapping[str, tuple[int, Mapping[str, str]]], *, replication: int = -1
    ) -> dict[str, Topic]:
        """Create those of the topics, name: (partitions, settings), that do not exist, in one request; gives them all.

        Raises `InvalidConfig` if one exists with other partitions.
        """
        names = list(wanted)
        missing = sorted(set(names) - set(self.describe(names)))
        if missing:
            self._create(
                [
                    NewTopic(name, wanted[name][0], replication_factor=replication, config=dict(wanted[name][1]))
                    for name in missing
                ]
            )
        found = self._await(names)
        for name, (partitions, _) in wanted.items():
            if found[name].partitions != partitions:
                raise InvalidConfig(
                    "topic exists with another number of partitions",
                    topic=name,
                    found=found[name].partitions,
                    wanted=partitions,
                    hint="use another pipeline name, or delete the topic if nothing needs it",
                )
        return found

    def _create(self, topics: list[NewTopic]) -> None:
        for name, future in self._admin.create_topics(topics, request_timeout=self._config.request_timeout_s).items():
            try:
                future.result()
            except ck.KafkaException as raised:
                if raised.args[0].code() != ck.KafkaError.TOPIC_ALREADY_EXISTS:
                    raise unavailable("create_topics", raised.args[0].str(), self._config, topic=name) from raised

    def _await(self, names: Sequence[str]) -> dict[str, Topic]:
        deadline = time.monotonic() + self._config.request_timeout_s
        while len(found := self.describe(names)) < len(set(names)):
            if time.monotonic() >= deadline:
                raise unavailable("topic creation", "time-out", self._config, topics=", ".join(names))
            time.sleep(0.02)
        return found

    def await_gone(self, name: str) -> None:
        """Return when the topic is deleted: that goes on after `delete` has returned."""
        deadline = time.monotonic() + self._config.request_timeout_s
        while self.describe([name]):
            if time.monotonic() >= deadline:
                raise unavailable("topic deletion", "time-out", self._config, topic=name)
            time.sleep(0.05)

    def delete(self, names: Sequence[str]) -> None:
        """Delete the topics that exist among `names`; another may do so at the same time."""
        present = list(self.describe(names))
        if not present:
            return
        for name, future in self._admin.delete_topics(present, request_timeout=self._config.request_timeout_s).items():
            try:
                future.result()
            except ck.KafkaException as raised:
                if raised.args[0].code() != ck.KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise unavailable("delete_topics", raised.args[0].str(), self._config, topic=name) from raised

    def configure(self, topic: str, settings: Mapping[str, str]) -> None:
        """Set these settings of the topic, leaving its others."""
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in settings.items()
        ]
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)

        def question() -> None:
            futures = self._admin.incremental_alter_configs([resource], request_timeout=self._config.request_timeout_s)
            futures[resource].result()

        ask(self._admin, self._config, "incremental_alter_configs", question, topic=topic)

    def trim(self, topic: str, partition: int, *, before: int) -> None:
        """Delete the records before this offset."""
        where = ck.TopicPartition(topic, partition, before)

        def question() -> None:
            require_led(self._admin, self._config, [where])
            futures = self._admin.delete_records([where], request_timeout=self._config.request_timeout_s)
            futures[where].result()

        ask(self._admin, self._config, "delete_records", question, topic=topic)

    def groups(self) -> set[str]:
        """Names of all consumer groups."""
        timeout = self._config.request_timeout_s

        def question() -> set[str]:
            listed = self._admin.list_consumer_groups(request_timeout=timeout).result()
            return {group.group_id for group in listed.valid}

        return ask(self._admin, self._config, "list_consumer_groups", question)

    def delete_groups(self, names: Sequence[str]) -> None:
        """Delete the groups that exist among `names`; another may do so at the same time."""
        present = sorted(set(names) & self.groups())
        if not present:
            return
        timeout = self._config.request_timeout_s
        for name, future in self._admin.delete_consumer_groups(present, request_timeout=timeout).items():
            try:
                future.result()
            except ck.KafkaException as raised:
                if raised.args[0].code() != ck.KafkaError.GROUP_ID_NOT_FOUND:
                    raise unavailable(
                        "delete_consumer_groups", raised.args[0].str(), self._config, group=name
                    ) from raised

    def ends(self, topic: str, *, partitions: int) -> dict[int, int]:
        """The offset after the last record of every partition."""
        wanted = {ck.TopicPartition(topic, number): OffsetSpec.latest() for number in range(partitions)}
        return {number: at for (_, number), at in list_offsets(self._admin, self._config, wanted).items()}

    def stable_ends(self, topic: str, *, partitions: int) -> dict[int, int]:
        """The offset of every partition where the first open transaction begins; the log's end if none is open."""
        wanted = {ck.TopicPartition(topic, number): OffsetSpec.latest() for number in range(partitions)}
        return {n: at for (_, n), at in list_offsets(self._admin, self._config, wanted, committed=True).items()}

    def begins(self, topic: str, *, partitions: int) -> dict[int, int]:
        """The first offset present in every partition."""
        wanted = {ck.TopicPartition(topic, number): OffsetSpec.earliest() for number in range(partitions)}
        return {number: at for (_, number), at in list_offsets(self._admin, self._config, wanted).items()}

    def at_time(self, topic: str, time_ms: int, *, partitions: int) -> dict[int, int]:
        """The first offset of every partition whose record is of that time or later; the log's end where there is none.

        Records of that time that come after the question are behind every offset given. Raises `InvalidInput` for a time
        before 1970, which no record has: to a broker small negative times mean other questions.
        """
        if time_ms < 0:
            raise InvalidInput("time is before 1970", time_ms=time_ms, hint="records are of 1970 or later")
        # The ends first: a record that comes between the questions must not be left out.
        ends = self.ends(topic, partitions=partitions)
        wanted = {ck.TopicPartition(topic, n): OffsetSpec.for_timestamp(time_ms) for n in range(partitions)}
        found = list_offsets(self._admin, self._config, wanted, none=_NO_RECORD)
        return {number: ends[number] if at == _NO_RECORD else at for (_, number), at in found.items()}

    def check(self) -> None:
        """Raise `Unavailable` unless the cluster answers."""
        try:
            self._admin.list_topics(timeout=min(10.0, self._config.request_timeout_s))
        except ck.KafkaException as raised:
            raise unavailable("metadata", raised.args[0].str(), self._config) from raised
