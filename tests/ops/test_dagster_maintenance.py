"""Work by the clock: one run a tick, none beside another, one for a whole downtime, not all at the same second."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from ops.dagster.definitions import build_definitions
from ops.dagster.maintenance import (
    JITTER_S,
    SCHEDULES,
    backup_metastore,
    snapshot_pipelines,
    wait_s,
)
from ops.environment import settings_now
from pipelines.metastore.backup import load
from pipelines.metastore.embedded import execute, metastore
from pipelines.metastore.statement import start_pipeline
from statestore.kafka.admin import Admin
from tests.ops.dagster_world import World, instance, world

__all__ = ["instance", "world"]
NOW = datetime.now(UTC)
[SNAPSHOTS] = [schedule for schedule in SCHEDULES if schedule.job_name == "snapshot_pipelines"]


def tick(instance: dg.DagsterInstance, due: datetime) -> Any:
    """What the schedule's tick that was due then asks for."""
    context = dg.build_schedule_context(instance=instance, scheduled_execution_time=due)
    data = SNAPSHOTS.evaluate_tick(context)
    return data.run_requests[0] if data.run_requests else data.skip_message


def run(instance: dg.DagsterInstance, status: dg.DagsterRunStatus) -> dg.DagsterRun:
    return instance.create_run_for_job(snapshot_pipelines, run_config={"ops": {"snapshot": {}}}, status=status)


def test_a_tick_asks_for_a_run_that_waits_a_little(instance: dg.DagsterInstance) -> None:
    asked = tick(instance, NOW)
    assert {"ops": {"snapshot": {"config": {"jitter_s": JITTER_S}}}} == asked.run_config


def test_a_run_by_the_clock_that_was_killed_is_not_at_work_for_ever(world: World, instance: dg.DagsterInstance) -> None:
    # Dagster heeds the tag only while it looks after its runs.
    settings = yaml.safe_load((Path(__file__).parents[2] / "dagster.yaml").read_text())
    assert settings["run_monitoring"]["enabled"] is True
    world.deploy("sales")
    schedules = build_definitions(settings_now()).get_repository_def().schedule_defs
    assert 8 == len(schedules)
    for schedule in schedules:
        context = dg.build_schedule_context(instance=instance, scheduled_execution_time=NOW)
        [request] = schedule.evaluate_tick(context).run_requests or []
        assert (schedule.job_name, "7200") == (
            request.tags["rollforward/scheduled"],
            request.tags["dagster/max_runtime"],
        )


def test_a_run_at_work_keeps_the_next_away(instance: dg.DagsterInstance) -> None:
    at_work = run(instance, dg.DagsterRunStatus.STARTED)
    assert f"run {at_work.run_id[:8]} is still at it" == tick(instance, NOW + timedelta(hours=1))
    instance.report_run_failed(at_work)
    assert isinstance(tick(instance, NOW + timedelta(hours=1)), dg.RunRequest)


def test_a_downtime_is_made_up_for_once(instance: dg.DagsterInstance) -> None:
    missed = [NOW - timedelta(hours=hours) for hours in (3, 2, 1)]
    assert isinstance(tick(instance, missed[0]), dg.RunRequest)
    done = run(instance, dg.DagsterRunStatus.SUCCESS)
    for due in missed[1:]:
        assert f"run {done.run_id[:8]} did the work after this tick was due" == tick(instance, due)
    assert isinstance(tick(instance, NOW + timedelta(hours=1)), dg.RunRequest)


def test_services_wait_for_different_times_and_each_always_for_its_own() -> None:
    waits = [wait_s(60.0, f"service{number}") for number in range(100)]
    assert waits == [wait_s(60.0, f"service{number}") for number in range(100)]
    assert all(0 <= wait <= 60 for wait in waits)
    assert len({int(wait // 10) for wait in waits}) == 6


def test_every_schedule_and_check_is_loaded(world: World) -> None:
    world.deploy("sales")
    definitions = build_definitions(settings_now())
    dg.Definitions.validate_loadable(definitions)
    repository = definitions.get_repository_def()
    names = {schedule.name for schedule in repository.schedule_defs}
    jobs = ("snapshot_pipelines", "collect_snapshots", "checkpoint_metastore", "backup_metastore", "delete_old_runs")
    checked = ("check_health", "verify_sample", "compare_with_the_world")
    assert {f"{job}_by_the_clock" for job in (*jobs, *checked)} == names
    checks = {key.name for key in repository.asset_graph.asset_check_keys}
    assert {"fresh", "lag", "driver", "snapshot_age", "dead_letters", "verification", "drift"} == checks


def test_pipelines_that_do_not_run_are_left_out(world: World, instance: dg.DagsterInstance) -> None:
    world.deploy("sales")
    done = snapshot_pipelines.execute_in_process(instance=instance)
    assert {"sales": {"skipped": "does not run"}} == done.output_for_node("snapshot")


def test_an_unknown_pipeline_fails_the_run_after_the_others(world: World, instance: dg.DagsterInstance) -> None:
    world.deploy("sales")
    config = {"ops": {"snapshot": {"config": {"pipelines": ["nope", "sales"]}}}}
    done = snapshot_pipelines.execute_in_process(config, instance=instance, raise_on_error=False)
    assert not done.success
    told = [entry.user_message for entry in instance.all_logs(done.run_id)]
    assert any("sales: {'skipped'" in line for line in told)


def test_backups_are_written_and_the_oldest_go(
    world: World, kafka: str, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.deploy("sales")
    world.connect(kafka, monkeypatch)
    folder = world.home / "backups"
    folder.mkdir()
    for day in range(20):
        (folder / f"{world.service}-200001{day + 10}T000000Z.jsonl").touch()
    done = backup_metastore.execute_in_process(instance=instance)
    left = sorted(folder.iterdir())
    assert 14 == len(left)
    assert done.output_for_node("backup") == str(left[-1])
    saved = load(left[-1])
    assert saved.fault is None and saved.records


def test_a_damaged_log_takes_no_backup_away(
    world: World, kafka: str, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.deploy("sales")
    world.connect(kafka, monkeypatch)
    settings = settings_now()
    execute(start_pipeline("sales"), settings)
    folder = world.home / "backups"
    folder.mkdir()
    good = [folder / f"{world.service}-200001{day + 10}T000000Z.jsonl" for day in range(20)]
    for file in good:
        file.touch()
    with metastore(settings) as opened:
        Admin(settings.kafka_config()).trim(opened.log.topic_name, 0, before=1)
    done = backup_metastore.execute_in_process(instance=instance, raise_on_error=False)
    assert not done.success
    [damaged] = set(folder.iterdir()) - set(good)
    assert damaged.name.endswith("-damaged.jsonl")
    assert load(damaged).fault is not None
    assert set(good) < set(folder.iterdir())


def test_a_log_that_has_lost_its_end_takes_no_backup_away(
    world: World, kafka: str, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.deploy("sales")
    world.connect(kafka, monkeypatch)
    settings = settings_now()
    before = backup_metastore.execute_in_process(instance=instance).output_for_node("backup")
    execute(start_pipeline("sales"), settings)
    other = settings.model_copy(update={"metastore_url": f"sqlite:///{world.home / 'other.db'}"})
    with metastore(other) as opened:
        opened.restore_backup(Path(before))
    done = backup_metastore.execute_in_process(instance=instance, raise_on_error=False)
    assert not done.success
    [damaged] = (world.home / "backups").glob("*-damaged.jsonl")
    assert load(damaged).fault is None
