"""Topics of the benchmark: created with the same partitions for all, and filled."""

from __future__ import annotations

from collections.abc import Iterable

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient, NewTopic

PARTITIONS = 4
QUEUED_MAX = 500_000


def create(bootstrap: str, *names: str) -> None:
    """Topics that keep records of any age."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    new = [NewTopic(name, PARTITIONS, 1, config={"retention.ms": "-1"}) for name in names]
    for future in admin.create_topics(new).values():
        future.result()


def delete_all_of(bootstrap: str, part: str) -> None:
    """Delete the topics that have `part` in their names: a whole run makes more than most disks hold."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    found = [name for name in admin.list_topics(timeout=20).topics if part in name]
    for future in admin.delete_topics(found).values() if found else ():
        future.result()


def end_offsets(bootstrap: str, part: str) -> int:
    """The ends of all topics that have `part` in their names, added up: markers of transactions count as well."""
    consumer = ck.Consumer({"bootstrap.servers": bootstrap, "group.id": "benchmark-reader"})
    try:
        return sum(
            consumer.get_watermark_offsets(ck.TopicPartition(name, partition), timeout=20)[1]
            for name, topic in consumer.list_topics(timeout=20).topics.items()
            if part in name
            for partition in topic.partitions
        )
    finally:
        consumer.close()


def produce(bootstrap: str, topic: str, records: Iterable[tuple[bytes | None, bytes | None, int]]) -> None:
    """Produce (key, value, CreateTime in ms) records; returns when the broker has them all."""
    settings = {
        "bootstrap.servers": bootstrap,
        "linger.ms": 20,
        "compression.type": "lz4",
        "queue.buffering.max.messages": 2 * QUEUED_MAX,
        "queue.buffering.max.kbytes": 1_000_000,
        "partitioner": "murmur2_random",
    }
    producer = ck.Producer(settings)
    for number, (key, value, time) in enumerate(records):
        producer.produce(topic, value, key, -1, None, None, time)
        if number % 10_000 == 0:
            producer.poll(0)
            while len(producer) > QUEUED_MAX:
                producer.poll(0.1)
    assert producer.flush(300) == 0
