"""A job that is analysed once gives each batch its own records, counts and exchange."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from pipelines.engine.exchange import ArrowFunction, Exchange, result, task_context
from pipelines.engine.input import Input, InputOfTurn, KafkaPart
from pipelines.engine.job import Counts, Prepared
from pipelines.engine.jobs import job_of
from pipelines.engine.turn import Turn, exchange_of_turn
from pipelines.sql import parse_pipeline
from statestore.batches import Range
from statestore.config import KafkaConfig
from tests.support.feed import Feed, create_topic

TASKS = 3
SQL = """
CREATE STREAM s (auction BIGINT, price BIGINT) WITH (kafka_topic='s', value_format='json');
CREATE TABLE t {options} AS SELECT auction, COUNT(*) AS c FROM s GROUP BY auction EMIT CHANGES;
"""


@pytest.fixture
def topic(kafka: str, unique: str) -> str:
    """Four partitions with 400 good records in all."""
    create_topic(kafka, unique)
    Feed(kafka, unique, seed=1, keys=40, bad_every=10_000).send(400)
    return unique


def counted() -> ArrowFunction:
    """WRITE that tells how many rows have come, and the batch of the turn as the attempt."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = sum(batch.num_rows for batch in batches)
        yield result(task_context().partitionId(), exchange_of_turn().batch, rows)

    return write


@pytest.mark.parametrize("options", ["", "WITH (emit='every-record')"])
def test_every_turn_reads_its_own_ranges_and_is_counted_for_itself(
    spark: SparkSession, kafka: str, topic: str, options: str
) -> None:
    job = job_of(parse_pipeline(SQL.format(options=options), pipeline="p", default_tasks=TASKS).queries[0])

    def ranges(start: int, end: int) -> tuple[Range, ...]:
        return tuple(Range(topic, "", partition, start, end) for partition in range(4))

    config = KafkaConfig(kafka)
    records = Input(spark, tuple(KafkaPart(config, each) for each in ranges(0, 10)))
    assert ranges(0, 10) == records.ranges
    records = InputOfTurn(records.session, records.parts)
    counts = Counts.of(records)
    frame = job.frame(records, count=counts.add, read=job.without_states(), write=counted())
    prepared = Prepared(frame, counts)
    for batch, (start, end) in enumerate([(0, 10), (10, 50), (20, 21), (0, 10)]):
        staged = prepared.run(Turn(Exchange("q", 1, batch, ("a", "b")), ranges(start, end)))
        assert 4 * (end - start) == staged.records
        assert {batch} == {each.attempt for each in staged.results}
        rows = sum(each.rows for each in staged.results)
        assert rows == staged.records if options else 0 < rows <= staged.records


def test_a_turn_says_nothing_secret(spark: SparkSession) -> None:
    config = KafkaConfig("broker:9092", client={"sasl.password": "canary"})
    ranges = Input(spark, (KafkaPart(config, Range("t", "id", 0, 5, 9)),)).ranges
    assert ranges is not None
    turn = Turn(Exchange("q", 7, 3, ("unix:///a",)), ranges)

    def said(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in rows:
            now = Turn.now()
            text = pa.array([json.dumps(asdict(now))])
            yield pa.RecordBatch.from_arrays([text, pa.array([now == turn])], names=["text", "same"])

    turn.announce(spark.sparkContext)
    [row] = spark.range(0, 1, 1, numPartitions=1).mapInArrow(said, "text string, same boolean").collect()
    assert row.same
    assert "canary" not in row.text
