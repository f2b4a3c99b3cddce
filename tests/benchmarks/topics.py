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


def delete_all_of(bootstrap: str, *prefixes: str) -> None:
    """Delete the topics that begin with one of the prefixes: a whole run makes more than most disks hold."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    found = [name for name in admin.list_topics(timeout=20).topics if name.startswith(prefixes)]
    for future in admin.delete_topics(found).values() if found else ():
        future.result()


def produce(bootstrap: str, topic: str, records: Iterable[tuple[bytes | None, bytes, int]]) -> None:
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
