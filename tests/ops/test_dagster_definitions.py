"""What Dagster shows of what is deployed, and that nothing deployed keeps it from showing the rest."""

from __future__ import annotations

import subprocess
import sys

import dagster as dg
import pytest
from dagster import AssetKey

from ops.dagster.definitions import build_definitions
from ops.dagster.keys import pipeline_keys, source_keys
from ops.environment import settings_now
from pipelines.metastore.decide import decide
from pipelines.metastore.statement import sql_statement
from pipelines.metastore.validate import PIPELINE
from pipelines.testing.definitions import EveryTopic, Memory
from tests.ops.dagster_world import World, world

__all__ = ["world"]


def assets() -> dict[str, dg.AssetSpec]:
    """The assets of what is deployed now, through a whole repository, as Dagster checks it."""
    definitions = build_definitions(settings_now())
    definitions.get_repository_def()
    return {spec.key.to_user_string(): spec for spec in definitions.resolve_all_asset_specs()}


def test_a_missing_metastore_shows_no_asset_and_every_sensor(world: World) -> None:
    assert not world.home.exists()
    assert assets() == {}
    sensors = build_definitions(settings_now()).get_repository_def().sensor_defs
    assert {sensor.name for sensor in sensors} == {"alerts", "observe_batches", "reconcile"}
    assert all(sensor.default_status is dg.DefaultSensorStatus.RUNNING for sensor in sensors)


def test_a_pipeline_is_source_then_table_then_store(world: World) -> None:
    world.deploy("sales")
    shown = assets()
    lineage = {key: sorted(dep.asset_key.to_user_string() for dep in spec.deps) for key, spec in shown.items()}
    assert lineage == {
        "events": [],
        "sales/cities": ["events"],
        "sales/cities_store": ["sales/cities"],
        "sales/dead_letters": ["events"],
    }
    assert {spec.group_name for spec in shown.values()} == {"sales"}
    assert shown["events"].kinds == {"kafka"}
    assert shown["sales/cities"].kinds == {"kafka", "sql"}
    assert shown["sales/cities_store"].kinds == {"rocksdb"}


def test_a_table_shows_its_statement_topics_and_columns(world: World) -> None:
    world.deploy("sales")
    metadata = assets()["sales/cities"].metadata
    assert "CREATE TABLE CITIES" in metadata["SQL"].value
    assert metadata["result topic"] == "sales-cities"
    assert metadata["tasks"] == 4
    columns = [(column.name, column.type, column.description) for column in metadata["dagster/column_schema"].columns]
    assert columns == [
        ("CITY", "string", "key"),
        ("N", "bigint", "COUNT(*)"),
        ("MEAN", "double", "AVG(AMOUNT)"),
    ]


def test_three_pipelines_share_a_source_and_feed_each_other(world: World) -> None:
    world.deploy("a")
    world.deploy("b")
    world.deploy("c", topic="a-cities")
    shown = assets()
    assert shown["events"].group_name == "shared_topics"
    assert [dep.asset_key for dep in shown["c/cities"].deps] == [AssetKey(["a", "cities"])]
    assert sorted(shown) == sorted(
        ["events", *(f"{name}/{part}" for name in "abc" for part in ("cities", "cities_store", "dead_letters"))]
    )


def test_queries_that_read_each_other_are_sorted_and_one_says_so(world: World) -> None:
    definitions = Memory()
    for text in (
        "CREATE STREAM a (k VARCHAR KEY, n INT) WITH (kafka_topic='a', value_format='json')",
        "CREATE STREAM b AS SELECT * FROM a EMIT CHANGES",
        "INSERT INTO a SELECT * FROM b EMIT CHANGES",
    ):
        definitions.apply(decide(sql_statement(text), definitions, EveryTopic()).changes)
    for name, body in definitions.all(PIPELINE).items():
        world.log.define(name, sql=body["sql"], sources=body["sources"], queries=body["queries"])
    shown = assets()
    levels = build_definitions(settings_now()).resolve_asset_graph().toposorted_asset_keys_by_level
    assert sorted(shown) == sorted(key.to_user_string() for level in levels for key in level)
    first, then = "insertquery_0/insertquery_0", "csas_b/b"
    assert [dep.asset_key.to_user_string() for dep in shown[then].deps] == [first]
    assert list(shown[first].deps) == []
    assert f"that it depends on {then} is not drawn" in (shown[first].description or "")
    assert "is not drawn" not in (shown[then].description or "")


def test_a_loop_of_three_keeps_all_dependencies_but_one(world: World) -> None:
    for name, topic in (("a", "c-cities"), ("b", "a-cities"), ("c", "b-cities"), ("d", "c-cities")):
        world.deploy(name, topic=topic)
    shown = assets()
    drawn = {name: [dep.asset_key.path[0] for dep in shown[f"{name}/cities"].deps] for name in "abcd"}
    assert drawn == {"a": ["c"], "b": ["a"], "c": [], "d": ["c"]}


@pytest.mark.parametrize("queries", ["not json", "[]x", '[{"plan": "{}"}]', '[{"plan": "{\\"version\\": 99}"}]', "7"])
def test_a_broken_row_is_shown_with_its_error_beside_the_others(world: World, queries: str) -> None:
    world.deploy("bad")
    world.deploy("good")
    world.spoil("bad", queries)
    shown = assets()
    assert "good/cities_store" in shown
    assert [key for key in shown if key.startswith("bad")] == ["bad/broken_definition"]
    broken = shown["bad/broken_definition"]
    assert broken.metadata["error"] and broken.metadata["error"] in (broken.description or "")


def test_a_metastore_that_is_no_database_is_shown_as_such(world: World) -> None:
    world.home.mkdir(parents=True)
    (world.home / "metastore.db").write_text("this is no database, and is long enough to be taken for one" * 50)
    assert list(assets()) == ["metastore_unreachable"]


def test_definitions_load_without_spark_kafka_or_rocksdb(world: World) -> None:
    world.deploy("sales")
    program = (
        "import sys, ops.dagster.definitions as d; assert d.defs; "
        "print(*(m for m in ('pyspark', 'pyarrow', 'confluent_kafka', 'rocksdict') if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_every_topic_has_a_key_of_its_own_that_dagster_accepts() -> None:
    keys = source_keys(["a.b", "a-b", "a_b", "c-d", "shop-x"], {"shop-x": AssetKey(["shop", "x"])})
    assert keys["a_b"] == AssetKey(["a_b"])
    assert keys["c-d"] == AssetKey(["c_d"])
    assert keys["shop-x"] == AssetKey(["shop", "x"])
    assert len(set(keys.values())) == len(keys)
    assert all(part.replace("_", "").isalnum() for key in keys.values() for part in key.path)


def test_tables_named_like_stores_and_dead_letters_keep_their_names() -> None:
    keys = pipeline_keys("p", ["x", "x_store", "dead_letters"])
    everything = [*keys.tables.values(), *keys.stores.values(), keys.dead_letters]
    assert keys.tables["x_store"] == AssetKey(["p", "x_store"])
    assert len(set(everything)) == len(everything) == 7
