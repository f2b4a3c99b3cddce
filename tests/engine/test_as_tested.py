"""What `rollforward test` says of statements is what their pipeline does on a real broker."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import confluent_kafka as ck
import pytest

from ops.testing import session
from pipelines.engine.windowed_keys import join_key
from pipelines.settings import Settings
from pipelines.testing.case import Case
from pipelines.testing.records import Record, Window
from pipelines.testing.run import results_of
from pipelines.testing.topics import Stored
from tests.support.feed import create_topic, read_topic
from tests.support.pipeline import PipelineUnderTest
from tests.support.present import present

SQL = """
CREATE STREAM s (a INT KEY, b STRING KEY, v STRUCT<n INT, l ARRAY<DECIMAL(4, 2)>>, at TIMESTAMP, m MAP<STRING, DOUBLE>)
  WITH (kafka_topic='{topic}-s', format='json', timestamp='at');
CREATE STREAM o WITH (kafka_topic='{topic}-o', value_format='delimited', key_format='delimited', value_delimiter='|') AS
  SELECT a, b, v->n * 2 AS n, v->l[-1] AS last, m['x'] AS x, ROWTIME AS t, ROWOFFSET AS place FROM s;
CREATE STREAM p WITH (kafka_topic='{topic}-p', key_format='kafka', value_format='kafka') AS
  SELECT v->n AS n, m['x'] AS x FROM s WHERE m['x'] IS NOT NULL PARTITION BY v->n;
CREATE TABLE c WITH (kafka_topic='{topic}-c', emit='every-record', partitions=1) AS
  SELECT b, COUNT(*) AS n, MAX(at) AS newest, COLLECT_LIST(v->n) AS all FROM s GROUP BY b;
CREATE TABLE t (k STRING PRIMARY KEY, n INT) WITH (kafka_topic='{topic}-t', value_format='delimited');
CREATE TABLE u WITH (kafka_topic='{topic}-u', emit='every-record') AS SELECT k, n + 1 AS n FROM t WHERE n > 0;
CREATE STREAM h (k STRING KEY, n INT) WITH (kafka_topic='{topic}-h', value_format='delimited', window_type='hopping',
  window_size='10 seconds');
CREATE STREAM w WITH (kafka_topic='{topic}-w', key_format='json') AS
  SELECT k, n, WINDOWSTART AS since, WINDOWEND AS until FROM h WHERE WINDOWSTART >= 5000;
"""
# Of now: behind records of long ago the end of their transaction begins a new segment, and Kafka compacts the old one.
NOW_MS = int(time.time() * 1000)


def records(topic: str) -> list[Record]:
    found = [
        Record(
            f"{topic}-s",
            {"a": number % 3, "b": f"b,{number % 2}"},
            {
                "v": {"N": number, "l": [number / 4, "1.5"]},
                "at": NOW_MS + number,
                "m": {"x": number / 2} if number % 4 else {},
            },
        )
        for number in range(20)
    ]
    found += [Record(f"{topic}-s", {"a": 1, "b": "x"}, None), Record(f"{topic}-s", None, {"at": NOW_MS + 5000})]
    found = [replace(record, timestamp=NOW_MS) for record in found]
    found += [Record(f"{topic}-t", f"k{n % 3}", None if n == 5 else str(n - 3), NOW_MS) for n in range(8)]
    windows = (Window(n * 5000, n * 5000 + 10_000) for n in range(4))
    return found + [Record(f"{topic}-h", f"k{n}", str(n), NOW_MS, window) for n, window in enumerate(windows)]


def send(kafka: str, records: list[Record]) -> None:
    producer = ck.Producer({"bootstrap.servers": kafka})
    for record in records:
        key: str | bytes | None
        key, value = (None if part is None else json.dumps(part) for part in (record.key, record.value))
        if record.topic.endswith(("-t", "-h")):
            key, value = record.key, record.value
        if record.window is not None:
            key = join_key(record.key.encode(), record.window.start, record.window.end, "hopping")
        producer.produce(record.topic, value, key, timestamp=present(record.timestamp))
    assert producer.flush(60) == 0


def with_window(record: Stored) -> bytes | None:
    if record.key is None or record.window is None:
        return record.key
    return join_key(record.key, record.window.start, record.window.end, "hopping")


@pytest.mark.timeout(300)
def test_a_pipeline_gives_what_the_test_of_its_statements_gives(settings: Settings, kafka: str, unique: str) -> None:
    for name in ("s", "t", "h"):
        create_topic(kafka, f"{unique}-{name}", partitions=1)
    sql = SQL.format(topic=unique)
    sent = records(unique)
    expected = results_of(Case("", sql, sent, []), session)
    pipeline = PipelineUnderTest(settings, unique, sql)
    try:
        send(kafka, sent)
        assert pipeline.run_until_end() == 0, pipeline.tail()
    finally:
        pipeline.close()
    assert {f"{unique}-{name}" for name in "opcuw"} == set(expected)
    for topic, stored in expected.items():
        found = [(m.key(), m.value(), m.timestamp()[1]) for m in read_topic(kafka, topic)]
        expected_rows = [(with_window(record), record.value, record.time_ms) for record in stored]
        if topic.endswith("-c"):
            # Its keys are of several tasks here and of one in a test: only each key's results have an order.
            expected_rows, found = (sorted(rows, key=lambda row: present(row[0])) for rows in (expected_rows, found))
        assert expected_rows == found, Path(topic).name
