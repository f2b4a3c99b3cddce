"""Topics of the benchmark: created with the same partitions for all, and filled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

import confluent_kafka as ck
import pyarrow as pa
from confluent_kafka.admin import AdminClient, NewTopic

from statestore.columns import Timed, records_of
from statestore.kafka.librdkafka import queue_but

PARTITIONS = 4
QUEUED_MAX = 500_000
# Records that are made at a time.
CHUNK = 100_000


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


def produce(bootstrap: str, topic: str, records: Iterable[pa.RecordBatch]) -> None:
    """Produce records (`columns.RECORDS`); returns when the broker has them all."""
    settings = {
        "bootstrap.servers": bootstrap,
        "linger.ms": 20,
        "compression.type": "lz4",
        "queue.buffering.max.messages": 2 * QUEUED_MAX,
        "queue.buffering.max.kbytes": 1_000_000,
        "partitioner": "murmur2_random",
    }
    producer = ck.Producer(settings)
    for batch in records:
        for key, value, time_ms in queue_but(producer, topic, batch, -1):
            # Records keep their time, however long the broker needs.
            while len(producer) > QUEUED_MAX:
                producer.poll(0.1)
            producer.produce(topic, value, key, -1, None, None, time_ms)
    assert producer.flush(300) == 0


def in_batches(records: Iterable[Timed]) -> Iterator[pa.RecordBatch]:
    """Records one by one as `produce` takes them."""
    rest = iter(records)
    while some := list(islice(rest, CHUNK)):
        yield records_of(some)
