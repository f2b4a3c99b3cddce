"""Old runs of our own schedules go with all that Dagster keeps of them; what is young, at work or somebody's stays."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.storage.event_log import SqliteEventLogStorage
from dagster._core.storage.event_log.schema import AssetCheckExecutionsTable

from ops.dagster import old_runs
from ops.dagster.definitions import build_definitions
from ops.dagster.maintenance import snapshot_pipelines
from ops.dagster.old_runs import delete_old_runs, delete_runs
from ops.environment import settings_now
from tests.ops.dagster_world import World, world

__all__ = ["world"]
SOON = datetime.now(UTC) + timedelta(hours=1)


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """A Dagster that keeps what it has where `rollforward up` lets it: in SQLite files."""
    with dg.instance_for_test(
        temp_dir=str(tmp_path), overrides={"storage": {"sqlite": {"base_dir": str(tmp_path)}}}
    ) as made:
        yield made


def by_the_clock(job: str) -> dict[str, str]:
    """The tags of a run of this job's schedule."""
    return {"rollforward/scheduled": job}


def of_a_run(folder: Path, run_id: str) -> list[Path]:
    """Files and folders that are this run's."""
    return [path for path in folder.rglob("*") if run_id in path.name]


def results(instance: dg.DagsterInstance) -> int:
    """Results of checks, also of those that are only planned."""
    storage = instance.event_log_storage
    assert isinstance(storage, SqliteEventLogStorage)
    with storage.index_connection() as connection:
        return len(connection.execute(AssetCheckExecutionsTable.select()).fetchall())


def test_an_old_run_leaves_nothing(world: World, instance: dg.DagsterInstance, tmp_path: Path) -> None:
    world.deploy("sales")
    job = build_definitions(settings_now()).get_repository_def().get_job("check_health")
    # It fails, as there is no Kafka, and has planned its checks by then.
    run_id = job.execute_in_process(instance=instance, raise_on_error=False, tags=by_the_clock("check_health")).run_id
    assert 2 <= len(of_a_run(tmp_path, run_id))
    assert 5 == results(instance)
    assert 0 == delete_runs(instance, before=datetime.now(UTC) - timedelta(hours=1))
    assert 1 == delete_runs(instance, before=SOON)
    assert [] == of_a_run(tmp_path, run_id)
    assert 0 == results(instance)
    assert not instance.get_runs()


def test_what_is_at_work_or_somebodys_stays(instance: dg.DagsterInstance) -> None:
    def made(job: dg.JobDefinition, status: dg.DagsterRunStatus, tags: dict[str, str], **config: Any) -> str:
        return instance.create_run_for_job(job, run_config=config, status=status, tags=tags).run_id

    @dg.job
    def theirs() -> None:
        """Another job."""

    tags = by_the_clock("snapshot_pipelines")
    ops: dict[str, Any] = {"snapshot": {}}
    at_work = made(snapshot_pipelines, dg.DagsterRunStatus.STARTED, tags, ops=ops)
    gone = made(snapshot_pipelines, dg.DagsterRunStatus.SUCCESS, tags, ops=ops)
    by_hand = made(snapshot_pipelines, dg.DagsterRunStatus.SUCCESS, {}, ops=ops)
    archive = made(theirs, dg.DagsterRunStatus.SUCCESS, by_the_clock("archive_topics"))
    other = made(theirs, dg.DagsterRunStatus.SUCCESS, {})
    assert 1 == delete_runs(instance, before=SOON)
    left = {run.run_id for run in instance.get_runs()}
    assert {at_work, by_hand, archive, other} == left
    assert gone not in left


def test_the_daily_job_keeps_the_runs_of_some_days(
    world: World, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deleted() -> int:
        tags = by_the_clock("delete_old_runs")
        return delete_old_runs.execute_in_process(instance=instance, tags=tags).output_for_node("delete_runs")

    assert [0, 0] == [deleted(), deleted()]
    monkeypatch.setattr(old_runs, "KEPT_DAYS", 0)
    assert 2 == deleted()
