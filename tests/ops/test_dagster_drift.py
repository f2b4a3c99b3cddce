"""The check `drift` as Dagster runs it, against a real broker."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest
from dagster import AssetKey

from ops.dagster.definitions import build_definitions
from ops.environment import settings_now
from pipelines.metastore.embedded import execute
from pipelines.metastore.statement import deploy_script
from statestore.kafka.admin import Admin
from tests.ops.dagster_world import SQL, World, instance, world

__all__ = ["instance", "world"]


def check(instance: dg.DagsterInstance) -> dict[str, tuple[bool, str]]:
    """Run the schedule's job; each table's verdict and what differs."""
    repository = build_definitions(settings_now()).get_repository_def()
    schedule = repository.get_schedule_def("compare_with_the_world_by_the_clock")
    result = repository.get_job(schedule.job_name).execute_in_process(instance=instance)
    return {
        evaluation.asset_key.to_user_string(): (evaluation.passed, str(evaluation.metadata["differences"].value))
        for evaluation in result.get_asset_check_evaluations()
    }


def test_drift_of_one_pipeline_is_shown_on_its_tables(
    world: World, instance: dg.DagsterInstance, kafka: str, unique: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ROLLFORWARD_BOOTSTRAP_SERVERS", kafka)
    settings = settings_now()
    admin = Admin(settings.kafka_config())
    admin.create(unique, partitions=1, settings={})
    for name in ("a", "b"):
        execute(deploy_script(SQL.format(topic=unique, table="cities"), f"{unique}_{name}"), settings)
    healthy, drifted = (AssetKey([f"{unique}_{name}", "cities"]).to_user_string() for name in ("a", "b"))
    assert {healthy: (True, "none"), drifted: (True, "none")} == check(instance)
    admin.configure(f"{unique}_b-cities-changelog", {"cleanup.policy": "delete"})
    found = check(instance)
    assert (True, "none") == found[healthy]
    assert not found[drifted][0] and "cleanup.policy=delete" in found[drifted][1]
