"""Behind a real backlog batches come to last about their target, and none takes more records than it may."""

from __future__ import annotations

import json
from statistics import median

import confluent_kafka as ck
import pytest

from pipelines.settings import Settings
from tests.support.feed import create_topic, read_topic
from tests.support.pipeline import PipelineUnderTest
from tests.support.present import present

SQL = """
CREATE STREAM numbers (n BIGINT) WITH (kafka_topic='{topic}', value_format='json');
CREATE TABLE totals AS SELECT n % 1000 AS k, COUNT(*) AS n, SUM(n) AS total FROM numbers GROUP BY n % 1000 EMIT CHANGES;
"""
COUNT, PARTITIONS = 1_200_000, 4
TARGET_S, MOST = 0.4, 75_000
# Of batches before the bound has settled, which moves by a factor of two a batch.
SETTLING = 6


@pytest.mark.timeout(600)
def test_batches_last_their_target_or_hold_all_they_may(settings: Settings, kafka: str, unique: str) -> None:
    create_topic(kafka, unique, partitions=PARTITIONS)
    producer = ck.Producer({"bootstrap.servers": kafka, "queue.buffering.max.messages": COUNT + 1})
    for number in range(COUNT):
        producer.produce(unique, b'{"n":%d}' % number, partition=number % PARTITIONS)
    assert producer.flush(120) == 0
    bounded = settings.model_copy(update={"target_batch_s": TARGET_S, "max_records_per_batch": MOST})
    pipeline = PipelineUnderTest(bounded, unique, SQL.format(topic=unique))
    try:
        assert pipeline.run_until_end(500) == 0, pipeline.tail()
        batches = sorted(pipeline.registry.batches(pipeline=unique, limit=10_000), key=lambda row: row.batch)
        totals = {m.key(): json.loads(present(m.value())) for m in read_topic(kafka, f"{unique}-totals")}
    finally:
        pipeline.close()
    assert sum(row["N"] for row in totals.values()) == COUNT
    assert sum(row["TOTAL"] for row in totals.values()) == sum(range(COUNT))
    assert max(row.records for row in batches) <= MOST
    # The last takes what is left.
    settled = batches[SETTLING:-1]
    assert len(settled) >= 5
    assert median(row.seconds for row in settled) <= 2 * TARGET_S
    assert median(row.seconds for row in settled) >= TARGET_S / 2 or median(row.records for row in settled) >= MOST / 2
