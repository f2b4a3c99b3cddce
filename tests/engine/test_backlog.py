"""A driver that starts behind a backlog works before Spark is there, in batches that it computes itself."""

from __future__ import annotations

import json

import confluent_kafka as ck
import pytest

from pipelines.settings import Settings
from tests.support.feed import create_topic, read_topic
from tests.support.pipeline import PipelineUnderTest
from tests.support.present import present

SQL = """
CREATE STREAM numbers (n BIGINT) WITH (kafka_topic='{topic}', value_format='json');
CREATE TABLE totals AS SELECT n % 10 AS k, COUNT(*) AS n, SUM(n) AS total FROM numbers GROUP BY n % 10 EMIT CHANGES;
"""
COUNT, SMALL = 30_000, 2_000


@pytest.mark.timeout(300)
def test_a_backlog_does_not_wait_for_spark(settings: Settings, kafka: str, unique: str) -> None:
    create_topic(kafka, unique, partitions=1)
    producer = ck.Producer({"bootstrap.servers": kafka})
    for number in range(COUNT):
        producer.produce(unique, json.dumps({"n": number}))
    assert producer.flush(60) == 0
    small = settings.model_copy(update={"small_batch_records": SMALL})
    pipeline = PipelineUnderTest(small, unique, SQL.format(topic=unique))
    try:
        assert pipeline.run_until_end() == 0, pipeline.tail()
        first = min(pipeline.registry.batches(pipeline=unique), key=lambda row: row.batch)
        assert (0, SMALL) == (first.batch, first.records)
        log = pipeline.log.read_text()
        assert log.index("staged without spark") < log.index("spark is up")
        totals = {m.key(): json.loads(present(m.value())) for m in read_topic(kafka, f"{unique}-totals")}
        assert len(totals) == 10
        assert sum(row["N"] for row in totals.values()) == COUNT
        assert sum(row["TOTAL"] for row in totals.values()) == sum(range(COUNT))
    finally:
        pipeline.close()
