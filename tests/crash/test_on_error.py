"""A record with which an expression fails: each query says for itself what becomes of it, and small batches do the same."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace

import confluent_kafka as ck
import pytest

from pipelines.plan import query_from_json, query_to_json
from pipelines.settings import Settings
from tests.crash.conftest import CANARIES
from tests.support.feed import create_topic, headers_of, read_topic
from tests.support.metastore import replace_plan
from tests.support.pipeline import PipelineUnderTest
from tests.support.present import present

SQL = """
CREATE STREAM bids (auction BIGINT, price BIGINT) WITH (kafka_topic='{topic}', value_format='json');
CREATE STREAM passing {passing} AS SELECT auction, price FROM bids WHERE price > 0 EMIT CHANGES;
CREATE TABLE totals {totals} AS SELECT auction, COUNT(*) AS n FROM bids GROUP BY auction EMIT CHANGES;
"""
CANARY = {
    "ROLLFORWARD_CANARY": "decoder_fails_of_poison",
    "PYTHONPATH": f"{CANARIES}{os.pathsep}{CANARIES.parents[2]}",
}


SUMS = """
CREATE STREAM amounts (k VARCHAR, amount DECIMAL(38, 2)) WITH (kafka_topic='{topic}', value_format='json');
CREATE TABLE committed AS SELECT k, SUM(amount) AS total FROM amounts GROUP BY k EMIT CHANGES;
CREATE TABLE recorded WITH (emit='every-record') AS SELECT k, SUM(amount) AS total FROM amounts GROUP BY k EMIT CHANGES;
"""


def with_poison(pipeline: PipelineUnderTest, **auctions: int) -> None:
    """Make a query's filter raise for one auction."""
    row = pipeline.registry.pipeline(pipeline.name)
    queries = []
    for query in row.queries:
        plan = query_from_json(query["plan"])
        where = f"if(`AUCTION` = {auctions[plan.name]}, raise_error('poison'), true)"
        queries.append({**query, "plan": query_to_json(replace(plan, where=where))})
    replace_plan(pipeline.registry.engine, pipeline.name, queries)


class Bids:
    """A topic of bids, and what a pipeline has made of them."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._bootstrap, self._topic = bootstrap, topic
        create_topic(bootstrap, topic)
        self._producer = ck.Producer({"bootstrap.servers": bootstrap})

    def send(self, *auctions: int, **more: str) -> None:
        """A record for each auction, and in each of them what is given beside."""
        for auction in auctions:
            value = json.dumps({"auction": auction, "price": 1, **more})
            self._producer.produce(self._topic, value, partition=auction % 4)
        assert self._producer.flush(60) == 0

    def passed(self) -> list[int]:
        """Auctions that the stateless query has let through."""
        return sorted(
            json.loads(present(m.value()))["AUCTION"] for m in read_topic(self._bootstrap, f"{self._topic}-passing")
        )

    def counted(self) -> list[int]:
        """Auctions that the table has."""
        return sorted(
            {int.from_bytes(present(m.key()), "big") for m in read_topic(self._bootstrap, f"{self._topic}-totals")}
        )

    def letters(self) -> list[tuple[int, bool]]:
        """Auctions among the dead letters, and whether each says what failed."""
        found = read_topic(self._bootstrap, f"{self._topic}-dead-letters")
        return [(json.loads(present(m.value()))["auction"], b"poison" in headers_of(m)["reason"]) for m in found]


@pytest.fixture
def bids(kafka: str, unique: str) -> Bids:
    return Bids(kafka, unique)


Deploy = Callable[..., PipelineUnderTest]


@pytest.fixture
def deploy_bids(settings: Settings, bids: Bids, unique: str) -> Iterator[Deploy]:
    deployed: list[PipelineUnderTest] = []

    def deploy(passing: str, totals: str, environment: dict[str, str], **changed: object) -> PipelineUnderTest:
        sql = SQL.format(topic=unique, passing=passing, totals=totals)
        deployed.append(PipelineUnderTest(settings.model_copy(update=changed), unique, sql, environment))
        return deployed[-1]

    yield deploy
    for pipeline in deployed:
        pipeline.close()


@pytest.mark.timeout(600)
def test_each_query_says_what_becomes_of_a_poisoned_record(bids: Bids, deploy_bids: Deploy) -> None:
    own = ("WITH (on_error='dead-letter')", "WITH (on_error='stop')")
    pipeline = deploy_bids(*own, {}, batch_attempts=2, on_error="stop")
    with_poison(pipeline, passing=13, totals=14)
    bids.send(1, 2, 3, 13)
    # The setting says stop, and the query that fails says otherwise.
    assert pipeline.run_until_end() == 0, pipeline.tail()
    assert ([1, 2, 3], [1, 2, 3, 13], [(13, True)]) == (bids.passed(), bids.counted(), bids.letters())
    # The setting says dead letters, and the query that fails says otherwise.
    pipeline.settings = pipeline.settings.model_copy(update={"on_error": "dead-letter"})
    bids.send(14, 15)
    assert pipeline.run_until_end() == 4, pipeline.tail()
    row = pipeline.registry.driver(pipeline.name)
    assert row is not None and row.state == "failed" and "poison" in row.error and "totals" in row.error
    assert ([1, 2, 3, 13], [(13, True)]) == (bids.counted(), bids.letters())


@pytest.mark.timeout(600)
def test_small_batches_and_every_record_give_a_poisoned_record_to_the_dead_letters(
    bids: Bids, deploy_bids: Deploy
) -> None:
    pipeline = deploy_bids("", "", CANARY)
    bids.send(1, 2, 3)
    bids.send(13, about="poison")
    assert pipeline.run_until_end() == 0, pipeline.tail()
    assert ([1, 2, 3], [1, 2, 3]) == (bids.passed(), bids.counted())
    # One of each query.
    assert [(13, True)] * 2 == bids.letters()
    # The driver had tried the table's batch itself.
    assert "small batch failed" in pipeline.log.read_text()


@pytest.mark.timeout(600)
def test_a_record_that_makes_a_sum_too_large_goes_to_the_dead_letters_and_the_sum_stays(
    settings: Settings, kafka: str, unique: str
) -> None:
    create_topic(kafka, unique, partitions=1)
    pipeline = PipelineUnderTest(settings, unique, SUMS.format(topic=unique), {})
    much = "6" * 36
    try:
        # Each time what comes is one batch: the third amount is too much for the sum of the first two.
        for amounts in (["7", much], [much, "1"], [f"-{much}"]):
            send_amounts(kafka, unique, amounts)
            assert pipeline.run_until_end() == 0, pipeline.tail()
    finally:
        pipeline.close()
    letters = read_topic(kafka, f"{unique}-dead-letters")
    assert [(much, True)] * 2 == [
        (json.loads(present(m.value()))["amount"], b"sum does not fit into DECIMAL(38, 2)" in headers_of(m)["reason"])
        for m in letters
    ]
    for table in ("committed", "recorded"):
        newest = present(read_topic(kafka, f"{unique}-{table}")[-1].value())
        assert b'{"TOTAL":8.00}' == newest


def send_amounts(kafka: str, topic: str, amounts: list[str]) -> None:
    producer = ck.Producer({"bootstrap.servers": kafka})
    for amount in amounts:
        producer.produce(topic, json.dumps({"k": "a", "amount": amount}), partition=0)
    assert producer.flush(60) == 0
