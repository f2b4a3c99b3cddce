"""The time of a row is that of its state, of its changelog record and of its result, also where it is 0."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka as ck
import pyarrow as pa
import pytest

from pipelines import names
from pipelines.engine import projection
from pipelines.engine.exchange import staged_rows
from pipelines.engine.merge import MERGED
from pipelines.engine.statecodec import StateCodec, record_times
from pipelines.settings import Settings
from statestore.store import Isolation
from tests.support.feed import create_topic, headers_of, read_topic
from tests.support.pipeline import PipelineUnderTest
from tests.support.present import present
from tests.support.task import PLAN, TaskWorld

CODEC = StateCodec([pa.int64()])
SALES = """
CREATE STREAM sales (shop VARCHAR KEY, price BIGINT, at BIGINT)
  WITH (kafka_topic='{topic}', value_format='json', timestamp='at');
CREATE TABLE totals AS SELECT shop, SUM(price) AS total FROM sales GROUP BY shop EMIT CHANGES;
CREATE STREAM dear AS SELECT shop, price FROM sales WHERE price > 1 EMIT CHANGES;
"""
IN_2100_MS = 4_102_444_800_000


def rows(times: list[int]) -> pa.RecordBatch:
    count = len(times)
    columns: dict[str, pa.Array] = {
        "__key": pa.array([b"k%d" % number for number in range(count)]),
        "__time": pa.array(times, pa.int64()),
        "__emit": pa.array([1] * count, pa.int8()),
        "__value": pa.array([b"{}"] * count),
        "__dead": pa.nulls(count, pa.string()),
        f"{MERGED}A0": pa.array(range(count), pa.int64()),
    }
    return pa.RecordBatch.from_pydict(columns)


@pytest.fixture
def world(kafka: str, unique: str, tmp_path: Path) -> Iterator[TaskWorld]:
    world = TaskWorld(kafka, unique, tmp_path / "state", None)
    world.open()
    yield world
    world.close()


def test_a_store_built_from_its_changelog_has_the_times_that_were_written(world: TaskWorld, kafka: str) -> None:
    task = world.running
    staged = task.begin_stage(batch=0, attempt=1, token=task.token)
    # Of a changelog's records the last one is sent in another way.
    staged.add(staged_rows(rows([0, 5, 0]), ["A0"], CODEC))
    task.close_stage(staged)
    assert task.commit(batch=0, attempt=1, plan=PLAN, ends={"0": 1})
    written = list(task.entries(None, None, Isolation.READ_COMMITTED))
    world.close()
    shutil.rmtree(world.spec.folder)
    world.open()
    assert written == list(world.running.entries(None, None, Isolation.READ_COMMITTED))
    times = CODEC.decode(pa.array([state for _, state in written], pa.binary()))[0].to_pylist()
    results = read_topic(kafka, world.spec.output_topic)
    assert [1, 5, 1] == times == [message.timestamp()[1] for message in results if message.value() == b"{}"]
    assert all(message.timestamp()[0] == ck.TIMESTAMP_CREATE_TIME for message in results)


@pytest.mark.timeout(300)
def test_a_time_of_a_column_that_is_far_ahead_stops_nothing(settings: Settings, kafka: str, unique: str) -> None:
    """A broker refuses it as the time of a record, unless the topic is told otherwise."""
    create_topic(kafka, unique, partitions=1)
    producer = ck.Producer({"bootstrap.servers": kafka})
    for price, at in ((1, 5), (2, IN_2100_MS), (3, 7)):
        producer.produce(unique, json.dumps({"price": price, "at": at}), "s", 0)
    assert producer.flush(60) == 0
    pipeline = PipelineUnderTest(settings, unique, SALES.format(topic=unique))
    try:
        assert pipeline.run_until_end() == 0, pipeline.tail()
        (total,) = [json.loads(present(message.value())) for message in read_topic(kafka, f"{unique}-totals")]
        assert {"TOTAL": 6} == total
        times = [message.timestamp()[1] for message in read_topic(kafka, f"{unique}-dear")]
        assert [IN_2100_MS, 7] == times
        for topic in (f"{unique}-totals", names.changelog_topic(unique, "totals")):
            assert [IN_2100_MS] == [message.timestamp()[1] for message in read_topic(kafka, topic)]
    finally:
        pipeline.close()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("small", [30_000, 0], ids=["small", "spark"])
def test_a_record_without_a_time_is_a_dead_letter(settings: Settings, kafka: str, unique: str, small: int) -> None:
    create_topic(kafka, unique, partitions=1)
    producer = ck.Producer({"bootstrap.servers": kafka})
    for price, time_ms in ((1, 5), (2, -1), (4, 7)):
        producer.produce(unique, json.dumps({"price": price}), "s", 0, timestamp=time_ms)
    assert producer.flush(60) == 0
    assert [5, -1, 7] == [message.timestamp()[1] for message in read_topic(kafka, unique)]
    sql = SALES.format(topic=unique).replace(", timestamp='at'", "")
    pipeline = PipelineUnderTest(settings.model_copy(update={"small_batch_records": small}), unique, sql)
    try:
        assert pipeline.run_until_end() == 0, pipeline.tail()
        (total,) = [json.loads(present(message.value())) for message in read_topic(kafka, f"{unique}-totals")]
        assert {"TOTAL": 5} == total
        (dear,) = read_topic(kafka, f"{unique}-dear")
        assert (4, 7) == (json.loads(present(dear.value()))["PRICE"], dear.timestamp()[1])
        letters = read_topic(kafka, names.dead_letter_topic(unique))
        assert [b'{"price": 2}'] * 2 == [letter.value() for letter in letters]
        assert {b"record has no time"} == {headers_of(letter)["reason"] for letter in letters}
    finally:
        pipeline.close()


def test_results_without_a_state_have_such_times_too() -> None:
    staged = projection._staged_rows(rows([0, 7, 0]))
    assert [1, 7, 1] == staged.column("time_ms").to_pylist()


def test_only_a_time_of_0_is_another() -> None:
    assert [1, 1, 2, -1, None] == record_times(pa.array([0, 1, 2, -1, None], pa.int64())).to_pylist()
