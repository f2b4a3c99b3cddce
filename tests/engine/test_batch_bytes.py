"""Large records: no batch of a running pipeline holds many more bytes than it may, the first one included."""

from __future__ import annotations

import json
from collections import defaultdict

import confluent_kafka as ck
import pytest

from pipelines.settings import Settings
from tests.support.feed import create_topic, read_topic
from tests.support.pipeline import PipelineUnderTest
from tests.support.present import present

SQL = """
CREATE STREAM papers (id BIGINT, text VARCHAR) WITH (kafka_topic='{topic}', value_format='json');
CREATE TABLE counts AS SELECT id, COUNT(*) AS n FROM papers GROUP BY id EMIT CHANGES;
"""
BATCH_BYTES = 2_000_000
# A batch is cut by the mean of the sizes before it: they differ by a tenth here, and so may batches, and a bit more.
TOLERANCE = 1.25


@pytest.mark.timeout(600)
@pytest.mark.parametrize("small", [0, 30_000])
def test_batches_of_large_records_stay_within_their_bytes(
    settings: Settings, kafka: str, unique: str, small: int
) -> None:
    create_topic(kafka, unique)
    producer = ck.Producer({"bootstrap.servers": kafka})
    # A backlog of fifteen batches or more, which is there before the first.
    for number in range(300):
        text = "x" * (95_000 + number * 7919 % 10_000)
        producer.produce(unique, json.dumps({"id": number, "text": text}), partition=number % 4)
        producer.poll(0)
    assert producer.flush(60) == 0
    sizes: dict[int, list[int]] = defaultdict(list)
    for message in read_topic(kafka, unique):
        sizes[present(message.partition())].append(len(present(message.value())))
    changed = {"max_bytes_per_batch": BATCH_BYTES, "small_batch_records": small}
    pipeline = PipelineUnderTest(settings.model_copy(update=changed), unique, SQL.format(topic=unique))
    try:
        assert pipeline.run_until_end() == 0, pipeline.tail()
        batches = [row.offsets for row in pipeline.registry.batches(pipeline=unique, limit=1_000)]
    finally:
        pipeline.close()
    taken = [
        sum(sum(sizes[int(partition)][start:end]) for partition, (start, end) in offsets.items()) for offsets in batches
    ]
    assert sum(taken) == sum(sum(each) for each in sizes.values())
    assert max(taken) <= TOLERANCE * BATCH_BYTES
    # And no smaller than they need be.
    assert len(taken) <= 2 * sum(taken) / BATCH_BYTES
