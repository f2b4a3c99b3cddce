"""Where logs begin and end, as their leaders say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient, OffsetSpec

from statestore.config import KafkaConfig
from statestore.kafka.connection import ask


def list_offsets(
    admin: AdminClient,
    config: KafkaConfig,
    wanted: Mapping[ck.TopicPartition, OffsetSpec],
    *,
    committed: bool = False,
    none: int | None = None,
) -> dict[tuple[str, int], int]:
    """Offsets as `read_uncommitted` sees them, or `read_committed`, keyed by topic and partition.

    `none` is a broker's answer that there is no such offset, where there may be such an answer.
    """
    return list_all_offsets(admin, config, [wanted], committed=committed, none=none)[0]


def list_all_offsets(
    admin: AdminClient,
    config: KafkaConfig,
    wanted: Sequence[Mapping[ck.TopicPartition, OffsetSpec]],
    *,
    committed: bool = False,
    none: int | None = None,
) -> list[dict[tuple[str, int], int]]:
    """`list_offsets` of each, asked at the same time: one request has one offset of a partition."""
    isolation = ck.IsolationLevel.READ_COMMITTED if committed else ck.IsolationLevel.READ_UNCOMMITTED

    def question() -> list[dict[tuple[str, int], int]]:
        require_led(admin, config, {where for each in wanted for where in each})
        asked = [
            admin.list_offsets(dict(each), isolation_level=isolation, request_timeout=config.request_timeout_s)
            for each in wanted
        ]
        return [
            {(where.topic, where.partition): _real(future.result().offset, none) for where, future in futures.items()}
            for futures in asked
        ]

    return ask(admin, config, "list_offsets", question)


def require_led(admin: AdminClient, config: KafkaConfig, partitions: Iterable[ck.TopicPartition]) -> None:
    """Return when the client knows a leader of each of these partitions; else raise an error of Kafka's that may pass.

    Where it does not, librdkafka asks for the leader in two threads, and either may free the question while the other
    still writes to it: a segmentation fault, once in some ten thousand questions about offsets (`query_leaders_async`
    in rdkafka_partition.c, 2.16). An answer to a question for metadata is in the client's cache before it is given.
    """
    numbers: dict[str, list[int]] = {}
    for where in partitions:
        numbers.setdefault(where.topic, []).append(where.partition)
    for topic, asked in numbers.items():
        found = admin.list_topics(topic, timeout=config.request_timeout_s).topics[topic]
        if found.error is not None and found.error.code() != ck.KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise ck.KafkaException(found.error)
        for number in asked:
            if number not in found.partitions or found.partitions[number].leader < 0:
                raise ck.KafkaException(ck.KafkaError(ck.KafkaError._NOENT, f"no broker leads {topic}-{number}"))


def _real(offset: int, none: int | None) -> int:
    """An offset, or `none`, that a broker has said.

    When its time is over before the broker has answered, the client may give -1001 (no offset) as a result without an
    error. Taken for a log's end it would make a full log an empty one.
    """
    if offset < 0 and offset != none:
        raise ck.KafkaException(ck.KafkaError(ck.KafkaError._TIMED_OUT, f"no broker has said the offset: {offset}"))
    return offset
