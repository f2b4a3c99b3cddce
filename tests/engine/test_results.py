"""A query with everything the SQL subset has, over several batches, against a model in plain Python."""

from __future__ import annotations

import json
from collections import defaultdict

import confluent_kafka as ck
import pytest

from pipelines.deploy import deployed_queries
from pipelines.lookup import typed_key
from pipelines.query import StoreReader
from pipelines.settings import Settings
from statestore.store import Isolation
from tests.support.feed import create_topic, read_topic
from tests.support.pipeline import PipelineUnderTest
from tests.support.present import present

SQL = """
CREATE STREAM sales (shop VARCHAR KEY, item VARCHAR, price BIGINT, paid BOOLEAN)
  WITH (kafka_topic='{topic}', value_format='json');
CREATE TABLE kinds WITH (key_format='json') AS
  SELECT shop, NULLIF(UCASE(item), 'JUNK') AS kind, COUNT(*) AS n, COUNT(price) AS priced, AVG(price) AS mean,
         MIN(price) AS low, MAX(item) AS last_item, SUM(price) / COUNT(*) AS whole, CONCAT('`A0`', shop) AS label
  FROM sales WHERE paid GROUP BY shop, NULLIF(UCASE(item), 'JUNK') HAVING COUNT(*) % 3 <> 0 EMIT CHANGES;
"""
ITEMS = ("tea", "Tea", "pot", "junk", None)


@pytest.mark.timeout(300)
def test_every_clause_gives_what_python_gives(settings: Settings, kafka: str, unique: str) -> None:
    create_topic(kafka, unique, partitions=2)
    producer = ck.Producer({"bootstrap.servers": kafka})
    model: dict[tuple[str, str], list[tuple[int | None, str]]] = defaultdict(list)
    dead = 0
    for number in range(3_000):
        shop, item = f"s{number % 7}", ITEMS[number % 5]
        price = None if number % 11 == 0 else number % 101
        paid = number % 4 != 0
        value = json.dumps({"item": item, "price": price, "paid": paid})
        producer.produce(unique, value, shop, number % 2, None, None, 1_000 + number)
        if paid and item not in (None, "junk"):
            model[shop, item.upper()].append((price, item))
        dead += paid and item in (None, "junk")
    assert producer.flush(60) == 0
    pipeline = PipelineUnderTest(
        settings.model_copy(update={"max_records_per_batch": 1_000}), unique, SQL.format(topic=unique)
    )
    try:
        assert pipeline.run_until_end() == 0, pipeline.tail()
        assert pipeline.batches() >= 3
        results: dict[tuple[str, str], dict | None] = {}
        for message in read_topic(kafka, f"{unique}-kinds"):
            key, result = json.loads(present(message.key())), message.value()
            results[key["SHOP"], key["KIND"]] = None if result is None else json.loads(result)
        shown = {key: value for key, value in results.items() if value is not None}
        assert {key: row(key[0], rows) for key, rows in model.items() if len(rows) % 3} == shown
        assert dead == len(read_topic(kafka, f"{unique}-dead-letters"))
        # The store has every key, also those that HAVING hides.
        (deployed,) = deployed_queries(pipeline.registry.pipeline(unique))
        reader = StoreReader(deployed, pipeline.settings, pipeline.registry)
        stored = {
            (r.key["SHOP"], r.key["KIND"]): r.value["N"] for r in reader.scan(None, None, Isolation.READ_COMMITTED)
        }
        assert {key: len(rows) for key, rows in model.items()} == stored
        (found,) = reader.find(typed_key(deployed.query, '["s1", "TEA"]'), Isolation.READ_COMMITTED)
        assert len(model["s1", "TEA"]) == found.value["N"]
    finally:
        pipeline.close()


def row(shop: str, rows: list[tuple[int | None, str]]) -> dict:
    """The result's value for one key."""
    prices = [price for price, _ in rows if price is not None]
    return {
        "N": len(rows),
        "PRICED": len(prices),
        "MEAN": sum(prices) / len(prices),
        "LOW": min(prices),
        "LAST_ITEM": max(item for _, item in rows),
        "WHOLE": sum(prices) // len(rows),
        "LABEL": f"`A0`{shop}",
    }
