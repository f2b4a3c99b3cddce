"""Records as large as a broker takes: bad ones are dead letters, and so are those of a result too large for its topic."""

from __future__ import annotations

import json
import random
import string

import confluent_kafka as ck
import pytest

from pipelines.resolve import MAX_BYTES
from pipelines.settings import Settings
from statestore.kafka.admin import Admin
from tests.support.feed import create_topic, read_topic
from tests.support.pipeline import PipelineUnderTest
from tests.support.present import present

SQL = """
CREATE STREAM papers (id BIGINT, text VARCHAR) WITH (kafka_topic='{topic}', value_format='json');
CREATE STREAM copies AS SELECT id, text FROM papers EMIT CHANGES;
CREATE TABLE counts AS SELECT id, COUNT(*) AS n FROM papers GROUP BY id EMIT CHANGES;
"""
TWICE = """
CREATE STREAM papers (id BIGINT, text VARCHAR) WITH (kafka_topic='{topic}', value_format='json');
CREATE STREAM twice AS SELECT id, CONCAT(text, text) AS text FROM papers EMIT CHANGES;
CREATE TABLE newest AS SELECT id, LATEST_BY_OFFSET(CONCAT(text, text)) AS text FROM papers GROUP BY id EMIT CHANGES;
"""
# What a broker takes as one batch of records. The rest is for what is written around the value.
BROKERS_BYTES = 1_048_588
LARGEST = BROKERS_BYTES - 150


def incompressible(size: int) -> str:
    return "".join(random.Random(size).choices(string.ascii_letters, k=size))


def send(kafka: str, topic: str, values: list[str]) -> None:
    producer = ck.Producer({"bootstrap.servers": kafka, "message.max.bytes": 10_000_000})
    for value in values:
        producer.produce(topic, value, key=b"k", partition=0)
    assert producer.flush(60) == 0


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("small", "limit"), [(0, LARGEST), (30_000, 700_000)], ids=["topics-limit", "clients-limit"])
def test_a_bad_record_as_large_as_brokers_take_is_a_dead_letter(
    settings: Settings, kafka: str, unique: str, small: int, limit: int
) -> None:
    create_topic(kafka, unique)
    text = incompressible(LARGEST)
    send(kafka, unique, ['{"id":1,"text":"a"}', text, '{"id":2,"text":"b"}'])
    client = {"message.max.bytes": str(limit)} if limit < LARGEST else {}
    changed = {"small_batch_records": small, "kafka": client}
    pipeline = PipelineUnderTest(settings.model_copy(update=changed), unique, SQL.format(topic=unique))
    try:
        assert pipeline.run_until_end() == 0, pipeline.tail()
    finally:
        pipeline.close()
    copies = read_topic(kafka, f"{unique}-copies")
    assert ["a", "b"] == sorted(json.loads(present(copy.value()))["TEXT"] for copy in copies)
    # One of each query.
    letters = read_topic(kafka, f"{unique}-dead-letters")
    assert 2 == len(letters)
    for letter in letters:
        headers: dict[object, object] = dict(present(letter.headers()))  # type: ignore[arg-type]
        value = present(letter.value())
        assert (b"1", b"%d" % (LARGEST + 1)) == (headers["source-offset"], headers["cut-from-bytes"])
        assert text.encode().startswith(value)
        assert 0.99 * limit < len(value) < limit


@pytest.mark.timeout(600)
def test_topics_of_a_query_take_records_as_large_as_its_source(settings: Settings, kafka: str, unique: str) -> None:
    create_topic(kafka, unique)
    admin = Admin(settings.kafka_config())
    admin.configure(unique, {MAX_BYTES: str(4 * BROKERS_BYTES)})
    text = incompressible(2 * BROKERS_BYTES)
    send(kafka, unique, [json.dumps({"id": 1, "text": text}), text])
    pipeline = PipelineUnderTest(settings, unique, SQL.format(topic=unique))
    try:
        assert pipeline.run_until_end() == 0, pipeline.tail()
    finally:
        pipeline.close()
    (copy,) = read_topic(kafka, f"{unique}-copies")
    assert text == json.loads(present(copy.value()))["TEXT"]
    letters = read_topic(kafka, f"{unique}-dead-letters")
    assert [text.encode()] * 2 == [letter.value() for letter in letters]


@pytest.mark.timeout(600)
def test_a_record_whose_result_its_topic_does_not_take_is_a_dead_letter(
    settings: Settings, kafka: str, unique: str
) -> None:
    create_topic(kafka, unique)
    # The fourth one's result is larger, and its topic takes it since it is compressed.
    texts = ["a", incompressible(600_000), "b", "c" * 600_000]
    send(kafka, unique, [json.dumps({"id": at, "text": text}) for at, text in enumerate(texts)])
    pipeline = PipelineUnderTest(settings, unique, TWICE.format(topic=unique))
    try:
        assert pipeline.run_until_end() == 0, pipeline.tail()
    finally:
        pipeline.close()
    for result in ("twice", "newest"):
        found = [json.loads(present(record.value()))["TEXT"] for record in read_topic(kafka, f"{unique}-{result}")]
        assert ["aa", "bb", "c" * 1_200_000] == sorted(found)
    letters = read_topic(kafka, f"{unique}-dead-letters")
    reasons = []
    for letter in letters:
        headers: dict[object, object] = dict(present(letter.headers()))  # type: ignore[arg-type]
        assert b"1" == headers["source-offset"]
        reasons.append(str(headers["reason"]))
    assert all("result is larger than its topic takes" in reason for reason in reasons)
    assert [f"{unique}-newest" in reason for reason in sorted(reasons)] == [True, False]


@pytest.mark.timeout(600)
def test_a_query_that_stops_of_a_large_result_tells_the_topic(settings: Settings, kafka: str, unique: str) -> None:
    create_topic(kafka, unique)
    send(kafka, unique, [json.dumps({"id": 1, "text": incompressible(600_000)})])
    stopping = settings.model_copy(update={"batch_attempts": 2, "on_error": "stop"})
    pipeline = PipelineUnderTest(stopping, unique, TWICE.format(topic=unique))
    try:
        assert pipeline.run_until_end() != 0
        told = pipeline.log.read_text()
        assert f"{unique}-twice" in told or f"{unique}-newest" in told
        assert f"larger {MAX_BYTES}" in told
        # What its error says helps.
        for result in ("twice", "newest"):
            Admin(settings.kafka_config()).configure(f"{unique}-{result}", {MAX_BYTES: str(2 * BROKERS_BYTES)})
        Admin(settings.kafka_config()).configure(f"{unique}-newest-changelog", {MAX_BYTES: str(2 * BROKERS_BYTES)})
        assert pipeline.run_until_end() == 0, pipeline.tail()
    finally:
        pipeline.close()
    assert 1 == len(read_topic(kafka, f"{unique}-twice"))
