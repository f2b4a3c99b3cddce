"""Stateless queries end to end: every row that passes is a result of its own, in order, once, across a kill."""

from __future__ import annotations

import json
from pathlib import Path

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from pipelines.settings import Settings
from statestore.failpoints import arm, is_armed
from tests.support.feed import create_topic, read_topic
from tests.support.pipeline import PipelineUnderTest
from tests.support.present import present

SQL = """
CREATE STREAM orders (shop VARCHAR KEY, item VARCHAR, n INT) WITH (kafka_topic='{topic}', value_format='json');
CREATE STREAM large AS SELECT shop, {item} AS item, n * 2 AS twice FROM orders WHERE n > 5 EMIT CHANGES;
CREATE STREAM by_n WITH (partitions=1) AS SELECT *, AS_VALUE(n) AS copy FROM orders PARTITION BY n EMIT CHANGES;
INSERT INTO large SELECT shop, item, n AS twice FROM orders WHERE item = 'tea' AND n = 1 EMIT CHANGES;
"""


def send(kafka: str, topic: str, first: int, count: int, *, large: bool) -> tuple[dict[int, list[tuple]], int]:
    """Numbered orders, and what `large` must hold for them: per source partition (key, item, twice, time) in order."""
    producer = ck.Producer({"bootstrap.servers": kafka})
    expected: dict[int, list[tuple]] = {0: [], 1: []}
    bad = 0
    for number in range(first, first + count):
        n, partition, shop = number % 13, number % 2, None if number % 17 == 0 else f"s{number % 5}"
        item = "tea" if number % 3 else None
        value = b"nonsense" if number % 19 == 0 else json.dumps({"item": item, "n": n}).encode()
        producer.produce(topic, value, shop, partition, None, None, 1_000 + number)
        if number % 19 == 0:
            bad += 1
        elif n > 5:
            expected[partition].append((shop, item and (item.upper() if large else item), n * 2, 1_000 + number))
    assert producer.flush(60) == 0
    return expected, bad


def inserted(first: int, count: int) -> list[int]:
    """Times of the orders that the INSERT takes."""
    numbers = range(first, first + count)
    return [1_000 + n for n in numbers if n % 13 == 1 and n % 3 and n % 19]


def found(kafka: str, topic: str) -> list[tuple]:
    return [
        ((key := m.key()) and key.decode(), *json.loads(present(m.value())).values(), m.timestamp()[1])
        for m in read_topic(kafka, topic)
    ]


# An expression of Spark's costs a start of it with every driver.
@pytest.mark.timeout(300)
@pytest.mark.parametrize("item", ["item", pytest.param("UCASE(item)", marks=pytest.mark.slow)])
def test_every_row_is_a_result_once_and_in_order_although_servers_and_driver_are_killed(
    settings: Settings, kafka: str, unique: str, tmp_path: Path, item: str
) -> None:
    create_topic(kafka, unique, partitions=2)
    points = tmp_path / "points"
    points.mkdir()
    environment = {"ROLLFORWARD_FAILPOINTS": str(points)}
    pipeline = PipelineUnderTest(settings, unique, SQL.format(topic=unique, item=item), environment)
    try:
        large = item == "UCASE(item)"
        expected, bad = send(kafka, unique, 0, 600, large=large)
        for point in ("commit.position-sent", "stage.closed", "apply.before-write", "driver.some-committed"):
            arm(points, point)
        pipeline.start()
        pipeline.await_(
            "points fire",
            lambda: not any(is_armed(points, p) for p in ("commit.position-sent", "driver.some-committed")),
        )
        pipeline.await_running()
        more, more_bad = send(kafka, unique, 600, 300, large=large)
        pipeline.await_("input is processed", lambda: done(pipeline, 900))
        assert pipeline.stop() == 0
    finally:
        pipeline.close()
    results = found(kafka, f"{unique}-large")
    copies = [row for row in results if row[2] == 1]
    assert sorted(inserted(0, 900)) == sorted(row[3] for row in copies)
    for partition in (0, 1):
        # Records of one key keep the order that they had in their partition.
        wanted = [row for row in [*expected[partition], *more[partition]] if row[0] is not None]
        for shop in {row[0] for row in wanted}:
            mine = [row for row in results if row[0] == shop and row[2] != 1 and row[3] % 2 == partition]
            assert [row for row in wanted if row[0] == shop] == mine
    keyless = [row for part in (expected, more) for rows in part.values() for row in rows if row[0] is None]
    assert sorted(keyless, key=str) == sorted((r for r in results if r[0] is None and r[2] != 1), key=str)
    assert 3 * (bad + more_bad) == len(read_topic(kafka, f"{unique}-dead-letters"))
    by_n = read_topic(kafka, f"{unique}-by_n")
    assert {0} == {message.partition() for message in by_n}
    assert 900 - bad - more_bad == len(by_n)
    assert all(int.from_bytes(present(m.key()), "big") == json.loads(present(m.value()))["COPY"] for m in by_n)


def done(pipeline: PipelineUnderTest, end: int) -> bool:
    """Whether the newest batch of all three queries ends where the input ends."""
    newest = pipeline.registry.newest_batches(pipeline.name)
    return len(newest) == 3 and all(sum(stop for _, stop in row.offsets.values()) == end for row in newest)


@pytest.mark.timeout(120)
def test_a_source_that_got_partitions_is_refused(settings: Settings, kafka: str, unique: str) -> None:
    create_topic(kafka, unique, partitions=1)
    sql = "".join(SQL.format(topic=unique, item="item").splitlines(keepends=True)[:3])
    pipeline = PipelineUnderTest(settings, unique, sql)
    try:
        admin = AdminClient({"bootstrap.servers": kafka})
        admin.create_partitions([NewPartitions(unique, 2)])[unique].result()
        assert pipeline.run_until_end() == 4
        assert "source topic got partitions since the deploy" in pipeline.tail()
    finally:
        pipeline.close()
