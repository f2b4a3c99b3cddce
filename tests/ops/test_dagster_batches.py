"""Each finished batch is observed once on its table and once on its store, whatever is killed in between."""

from __future__ import annotations

import time

import dagster as dg
import pytest
from dagster import AssetKey
from sqlalchemy import update

from ops.dagster.batches import BATCHES_PER_TICK_MAX, observe_batches
from pipelines.registry import BatchRow
from tests.ops.dagster_world import World, instance, world

__all__ = ["instance", "world"]

TABLE = AssetKey(["sales", "cities"])
STORE = AssetKey(["sales", "cities_store"])


def tick(instance: dg.DagsterInstance, cursor: str | None, *, stored: int | None = None) -> str | None:
    """One tick as Dagster's daemon does it: events first, cursor last. Killed after `stored` events, the cursor stays."""
    result = observe_batches(dg.build_sensor_context(instance=instance, cursor=cursor))
    assert isinstance(result, dg.SensorResult)
    for event in list(result.asset_events)[:stored]:
        instance.report_runless_asset_event(event)
    return result.cursor if stored is None else cursor


def observed(instance: dg.DagsterInstance, key: AssetKey) -> list[int]:
    """Batches of the stored observations, oldest first."""
    records = instance.fetch_observations(key, limit=1000, ascending=True).records
    return [int(str(r.asset_observation.metadata["batch"].value)) for r in records if r.asset_observation]


def test_each_batch_is_observed_once_and_the_cursor_resumes(world: World, instance: dg.DagsterInstance) -> None:
    world.deploy("sales")
    world.add_batches("sales", 3)
    cursor = tick(instance, None)
    assert tick(instance, cursor) == cursor
    world.add_batches("sales", 2, first=3)
    tick(instance, cursor)
    assert observed(instance, TABLE) == observed(instance, STORE) == [0, 1, 2, 3, 4]


def test_figures_are_numbers(world: World, instance: dg.DagsterInstance) -> None:
    world.deploy("sales")
    world.add_batches("sales", 1)
    tick(instance, None)
    [table] = instance.fetch_observations(TABLE, limit=9).records
    [store] = instance.fetch_observations(STORE, limit=9).records
    assert table.asset_observation is not None and store.asset_observation is not None
    figures = {**table.asset_observation.metadata, **store.asset_observation.metadata}
    numbers = {
        name: value.value
        for name, value in figures.items()
        if isinstance(value, dg.IntMetadataValue | dg.FloatMetadataValue)
    }
    assert numbers == {
        "batch": 0,
        "records": 1000,
        "dead letters": 1,
        "late records": 0,
        "changed keys": 10,
        "seconds": 0.5,
        "commit seconds": 0.02,
        "records per second": 2000.0,
        "lag": 7,
        "state keys": 10,
        "state bytes": 100,
    }
    assert figures["offsets"].value == {"0": [0, 1]}


def test_a_tick_is_bounded_and_the_next_goes_on_where_it_ended(world: World, instance: dg.DagsterInstance) -> None:
    world.deploy("sales")
    world.add_batches("sales", BATCHES_PER_TICK_MAX + 5)
    cursor = tick(instance, None)
    assert observed(instance, TABLE) == list(range(BATCHES_PER_TICK_MAX))
    tick(instance, cursor)
    assert observed(instance, TABLE) == list(range(BATCHES_PER_TICK_MAX + 5))


def test_a_tick_killed_after_any_event_is_finished_by_the_next(world: World, instance: dg.DagsterInstance) -> None:
    world.deploy("sales")
    world.add_batches("sales", 3)
    for _ in range(6):
        assert tick(instance, None, stored=1) is None
    assert tick(instance, None) is not None
    assert observed(instance, TABLE) == observed(instance, STORE) == [0, 1, 2]


def test_recoveries_among_the_observations_do_not_hide_the_newest_batch(
    world: World, instance: dg.DagsterInstance
) -> None:
    world.deploy("sales")
    world.add_batches("sales", 1)
    tick(instance, None, stored=2)
    instance.report_runless_asset_event(dg.AssetObservation(STORE, metadata={"reason": "died"}))
    result = observe_batches(dg.build_sensor_context(instance=instance))
    assert isinstance(result, dg.SensorResult)
    assert list(result.asset_events) == []


def test_a_registry_that_was_made_anew_is_observed_from_its_beginning(
    world: World, instance: dg.DagsterInstance
) -> None:
    world.deploy("sales")
    world.add_batches("sales", 2)
    tick(instance, "500")
    assert observed(instance, TABLE) == [0, 1]


def test_a_pipeline_that_does_not_read_takes_nothing_from_the_others(
    world: World, instance: dg.DagsterInstance
) -> None:
    world.deploy("bad")
    world.deploy("sales")
    world.spoil("bad", "not json")
    world.add_batches("bad", 1)
    world.add_batches("sales", 1)
    tick(instance, None)
    assert observed(instance, TABLE) == [0]
    assert observed(instance, AssetKey(["bad", "cities"])) == [0]


def test_of_many_batches_one_in_a_period_is_observed_whatever_is_killed(
    world: World, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLFORWARD_OBSERVE_EVERY_S", "10")
    world.deploy("sales")
    began = (time.time() - 7200) // 10 * 10
    world.add_batches("sales", 60)
    with world.registry.engine.begin() as connection:
        connection.execute(update(BatchRow).values(finished_at=began + BatchRow.batch))
    assert tick(instance, None, stored=3) is None
    cursor = tick(instance, None)
    assert observed(instance, TABLE) == observed(instance, STORE) == [0, 10, 20, 30, 40, 50]
    world.add_batches("sales", 1, first=60)
    with world.registry.engine.begin() as connection:
        connection.execute(update(BatchRow).where(BatchRow.batch == 60).values(finished_at=began + 59.5))
    assert tick(instance, cursor) == "61"
    assert observed(instance, TABLE) == [0, 10, 20, 30, 40, 50]
