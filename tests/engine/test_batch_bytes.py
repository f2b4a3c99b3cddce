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


def create_backlog(kafka: str, topic: str) -> None:
    """Fifteen batches or more, which are there before the first."""
    create_topic(kafka, topic)
    producer = ck.Producer({"bootstrap.servers": kafka})
    for number in range(300):
        text = "x" * (95_000 + number * 7919 % 10_000)
        producer.produce(topic, json.dumps({"id": number, "text": text}), partition=number % 4)
        producer.poll(0)
    assert producer.flush(60) == 0


def ways_of(pipeline: PipelineUnderTest) -> set[str]:
    """How batches were staged."""
    told = [json.loads(line).get("event") for line in pipeline.log.read_text().splitlines() if line.startswith("{")]
    return {"staging", "staged without spark", "left to spark"}.intersection(told)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("small", "way"),
    [
        pytest.param({"small_batch_records": 0}, "staging", marks=pytest.mark.slow),
        ({}, "staged without spark"),
        # A sample has told the size of records before the first batch.
        ({"small_batch_bytes": BATCH_BYTES // 2}, "staging"),
    ],
)
def test_batches_of_large_records_stay_within_their_bytes(
    settings: Settings, kafka: str, unique: str, small: dict[str, int], way: str
) -> None:
    create_backlog(kafka, unique)
    sizes: dict[int, list[int]] = defaultdict(list)
    for message in read_topic(kafka, unique):
        sizes[present(message.partition())].append(len(present(message.value())))
    changed = {"max_bytes_per_batch": BATCH_BYTES} | small
    pipeline = PipelineUnderTest(settings.model_copy(update=changed), unique, SQL.format(topic=unique))
    try:
        assert pipeline.run_until_end() == 0, pipeline.tail()
        found = ways_of(pipeline)
        assert way in found
        assert "left to spark" not in found
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


@pytest.mark.timeout(600)
def test_a_batch_of_few_and_large_records_is_left_to_spark(settings: Settings, kafka: str, unique: str) -> None:
    create_backlog(kafka, unique)
    # So few that they fit into a batch whatever their size is: no sample is taken.
    pipeline = PipelineUnderTest(
        settings.model_copy(update={"small_batch_bytes": BATCH_BYTES}), unique, SQL.format(topic=unique)
    )
    try:
        assert pipeline.run_until_end() == 0, pipeline.tail()
        assert {"left to spark", "staging"} == ways_of(pipeline)
        counts = {message.key(): message.value() for message in read_topic(kafka, f"{unique}-counts")}
    finally:
        pipeline.close()
    assert 300 == len(counts)
