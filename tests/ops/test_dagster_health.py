"""The checks of tables as Dagster runs them: one that cannot be made keeps none of the others from being made."""

from __future__ import annotations

from typing import Any

import dagster as dg
import pytest

from ops import verification
from ops.dagster.definitions import build_definitions
from ops.dagster.health import CHECKS
from ops.environment import settings_now
from pipelines.metastore.command import drop
from pipelines.metastore.validate import PIPELINE
from tests.ops.dagster_world import World, instance, world

__all__ = ["instance", "world"]
Found = dict[tuple[str, str], tuple[bool, str]]


def deployed(world: World, kafka: str, monkeypatch: pytest.MonkeyPatch) -> dg.RepositoryDefinition:
    """What is loaded while three pipelines are deployed whose topics are gone; then the first of them is dropped."""
    monkeypatch.setenv("ROLLFORWARD_BOOTSTRAP_SERVERS", kafka)
    monkeypatch.setenv("ROLLFORWARD_REQUEST_TIMEOUT_S", "2")
    for name in ("a", "b", "c"):
        world.deploy(name, topic=f"{world.service}-{name}")
    repository = build_definitions(settings_now()).get_repository_def()
    world.log.change(drop(PIPELINE, "a"))
    return repository


def run(repository: dg.RepositoryDefinition, job: str, instance: dg.DagsterInstance) -> tuple[bool, Found]:
    """Whether the job's run was a success, and what its checks say."""
    done = repository.get_job(job).execute_in_process(instance=instance, raise_on_error=False)
    found = {
        (evaluation.asset_key.path[0], evaluation.check_name): (evaluation.passed, evaluation.description or "")
        for evaluation in done.get_asset_check_evaluations()
    }
    return done.success, found


def test_a_check_that_cannot_be_made_fails_and_the_others_tell(
    world: World, instance: dg.DagsterInstance, kafka: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    success, found = run(deployed(world, kafka, monkeypatch), "check_health", instance)
    assert not success
    assert {(pipeline, check) for pipeline in ("b", "c") for check in CHECKS} == found.keys()
    assert {(pipeline, "snapshot_age") for pipeline in ("b", "c")} == {
        key for key, (passed, _) in found.items() if not passed
    }
    assert found["b", "snapshot_age"][1].startswith("cannot be looked at: ")


def test_a_pipeline_that_cannot_be_verified_leaves_the_others_their_verification(
    world: World, instance: dg.DagsterInstance, kafka: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = deployed(world, kafka, monkeypatch)
    verify_all = verification.verify_all

    def failing(row: Any, *args: Any, **options: Any) -> Any:
        if row.name == "b":
            raise OSError("its disk is gone")
        return verify_all(row, *args, **options)

    monkeypatch.setattr(verification, "verify_all", failing)
    success, found = run(repository, "verify_sample", instance)
    assert not success
    assert {("c", "verification"): (True, "nothing was compared: no store of the table is on this machine")} == found
