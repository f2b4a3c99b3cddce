"""The jobs in process: what they show, what they leave alone, and how they fail."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import dagster as dg
import psutil
import pytest
from dagster import AssetKey

from ops import control
from ops.dagster import jobs, recovery
from ops.dagster.findings import look, summary
from ops.dagster.jobs import JOBS, launch_pipeline, recover_pipeline, stop_pipeline
from ops.dagster.recovery import outlived
from ops.dagster.resetting import reset_pipeline
from ops.dagster.runs import PIPELINE_TAG, WORKER_TAG, _this_process, run_in_progress
from ops.environment import Progress, settings_now
from pipelines import names
from pipelines.metastore.embedded import deploy, want
from pipelines.registry import RUNNING, STOPPED
from statestore.kafka.admin import Admin
from tests.ops.dagster_world import SQL, World, instance, living_driver, world

__all__ = ["instance", "living_driver", "world"]


def run(job: dg.JobDefinition, op: str, instance: dg.DagsterInstance, **config: object) -> dg.ExecuteInProcessResult:
    """A run of the job with the op's configuration."""
    return job.execute_in_process({"ops": {op: {"config": config}}}, instance=instance, raise_on_error=False)


def failure(result: dg.ExecuteInProcessResult) -> dg.Failure:
    """What the run failed of."""
    [event] = result.get_step_failure_events()
    data = event.step_failure_data
    assert data.user_failure_data is not None
    return dg.Failure(data.user_failure_data.description, data.user_failure_data.metadata)


def logged(instance: dg.DagsterInstance, result: dg.ExecuteInProcessResult) -> str:
    """All that the run told."""
    return "\n".join(entry.user_message for entry in instance.all_logs(result.run_id))


def test_a_dry_run_shows_what_is_found_and_changes_nothing(world: World, instance: dg.DagsterInstance) -> None:
    world.deploy("sales")
    world.add_batches("sales", 3)
    pid = world.dead_driver("sales")
    log = world.home / "logs" / "sales-driver.log"
    log.parent.mkdir(parents=True)
    log.write_text("first\nlast words\n")
    before = world.registry.driver("sales")
    result = run(recover_pipeline, "recover", instance, pipeline="sales", dry_run=True)
    assert result.success
    told = logged(instance, result)
    for expected in (f"driver pid {pid}", "dead", "last heartbeat", "batch 2 was its last", "last words"):
        assert expected in told
    after = world.registry.driver("sales")
    assert before is not None and after is not None
    assert (after.pid, after.started_at) == (before.pid, before.started_at)
    assert instance.fetch_observations(AssetKey(["sales", "cities_store"]), limit=1).records == []


def test_an_unknown_pipeline_fails_with_the_names_that_exist(world: World, instance: dg.DagsterInstance) -> None:
    world.deploy("sales")
    for job, op in ((launch_pipeline, "launch"), (stop_pipeline, "stop"), (recover_pipeline, "recover")):
        failed = failure(run(job, op, instance, pipeline="nope"))
        assert "pipeline is not deployed" in (failed.description or "")
        assert failed.metadata["deployed"].value == "sales"
        assert failed.metadata["error"].value == "InvalidInput"


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"to": "time"}, "no time is given"),
        ({"to": "time", "at_ms": -1}, "no time is given"),
        ({"to": "offsets"}, "no offset is given"),
    ],
)
def test_a_reset_whose_time_or_offsets_were_forgotten_does_not_begin_with_everything(
    world: World, instance: dg.DagsterInstance, config: dict[str, object], why: str
) -> None:
    world.deploy("sales")
    failed = failure(run(reset_pipeline, "reset", instance, pipeline="sales", confirm="sales", **config))
    assert why in (failed.description or "")
    assert "InvalidInput" == failed.metadata["error"].value


def test_a_run_carries_its_pipeline_and_its_worker(world: World, instance: dg.DagsterInstance) -> None:
    world.deploy("sales")
    result = run(stop_pipeline, "stop", instance, pipeline="sales")
    stored = instance.get_run_by_id(result.run_id)
    assert stored is not None
    assert stored.tags[PIPELINE_TAG] == "sales"
    assert f"/{psutil.Process().pid}/" in stored.tags[WORKER_TAG]


def test_a_run_at_work_is_one_when_the_clock_has_been_set(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    tags = {PIPELINE_TAG: "sales", WORKER_TAG: _this_process()}
    config = {"ops": {"stop": {"config": {"pipeline": "sales"}}}}
    at_work = instance.create_run_for_job(
        stop_pipeline, run_config=config, tags=tags, status=dg.DagsterRunStatus.STARTED
    )
    moved = psutil.boot_time() + 30
    monkeypatch.setattr(psutil._psplatform, "boot_time", lambda: moved)
    found = run_in_progress(instance, "sales")
    assert found is not None and found.run_id == at_work.run_id


@pytest.mark.parametrize(("job", "op"), [(launch_pipeline, "launch"), (recover_pipeline, "recover")])
def test_a_run_of_the_sensor_does_not_start_what_was_stopped_meanwhile(
    world: World, instance: dg.DagsterInstance, job: dg.JobDefinition, op: str
) -> None:
    world.deploy("sales", desired=STOPPED)
    result = run(job, op, instance, pipeline="sales", only_if_desired=True)
    assert result.success
    assert world.registry.pipeline("sales").desired == STOPPED
    assert world.registry.driver("sales") is None


def test_a_stop_during_the_estimate_of_a_sensors_recovery_stands(
    world: World, instance: dg.DagsterInstance, kafka: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.deploy("sales")
    world.dead_driver("sales")
    world.connect(kafka, monkeypatch)
    started: list[str] = []
    monkeypatch.setattr(control, "launch", lambda *_, **__: started.append("sales"))

    def estimate(*_: object) -> list[dict[str, Any]]:
        assert want("sales", STOPPED, settings_now(), world.registry)
        return []

    monkeypatch.setattr(recovery, "_estimate", estimate)
    result = run(recover_pipeline, "recover", instance, pipeline="sales", only_if_desired=True)
    assert [] == started
    assert STOPPED == world.registry.pipeline("sales").desired
    assert result.output_for_node("recover") == {"pipeline": "sales", "skipped": True}
    assert "sales is not desired to run any more" in logged(instance, result)


@pytest.mark.parametrize(
    ("job", "op", "desired"),
    [(launch_pipeline, "launch", RUNNING), (recover_pipeline, "recover", RUNNING), (stop_pipeline, "stop", STOPPED)],
)
def test_a_run_of_the_sensor_never_says_what_is_desired(
    world: World,
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    job: dg.JobDefinition,
    op: str,
    desired: str,
) -> None:
    world.deploy("sales", desired=desired)
    done: list[str] = []
    for module in (recovery, jobs, control):
        monkeypatch.setattr(module, "want", lambda *_: done.append("want"))
    monkeypatch.setattr(control, "launch", lambda *_, **__: done.append("launch") or 1)
    monkeypatch.setattr(control, "end_driver", lambda *_, **__: done.append("stop") or True)
    monkeypatch.setattr(recovery, "_estimate", lambda *_: [])
    monkeypatch.setattr(recovery, "_first_output", lambda *_: None)
    assert run(job, op, instance, pipeline="sales", only_if_desired=True).success
    assert ["stop" if desired == STOPPED else "launch"] == done


def test_a_run_of_the_sensor_does_not_stop_what_was_started_meanwhile(
    world: World, instance: dg.DagsterInstance, living_driver: psutil.Process
) -> None:
    world.deploy("sales")
    world.driver_row("sales", living_driver)
    assert run(stop_pipeline, "stop", instance, pipeline="sales", only_if_desired=True).success
    assert world.registry.pipeline("sales").desired == RUNNING
    assert living_driver.is_running()


def test_a_driver_that_runs_is_not_started_twice(
    world: World, instance: dg.DagsterInstance, living_driver: psutil.Process
) -> None:
    world.deploy("sales")
    world.driver_row("sales", living_driver)
    result = run(launch_pipeline, "launch", instance, pipeline="sales")
    assert result.output_for_node("launch") == {"pipeline": "sales", "pid": living_driver.pid}


def test_stop_ends_the_driver(
    world: World,
    instance: dg.DagsterInstance,
    living_driver: psutil.Process,
    kafka: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world.deploy("sales")
    world.driver_row("sales", living_driver)
    world.connect(kafka, monkeypatch)
    result = run(stop_pipeline, "stop", instance, pipeline="sales", timeout_s=10.0)
    assert result.output_for_node("stop") == {"pipeline": "sales", "was_running": True}
    assert world.registry.pipeline("sales").desired == STOPPED


def test_a_recovery_reports_each_task_on_the_run_and_on_its_store(
    world: World, instance: dg.DagsterInstance, living_driver: psutil.Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver itself is played: it writes the rows that a real one writes when it opens its tasks."""
    world.deploy("sales")
    world.dead_driver("sales")

    def launched(*_: object, on_progress: Progress, **__: object) -> int:
        world.driver_row("sales", living_driver)
        for task in range(2):
            plan = {
                "task": f"cities-{task}",
                "way": "roll forward",
                "reason": "store stands at batch 1, batch 2 is committed",
                "batch": 2,
                "offsets": 10,
                "records": 10,
                "seconds": 0.5 + task,
            }
            world.registry.add_recovery("sales", "start", plan)
        on_progress("driver", "recovering")
        return living_driver.pid

    monkeypatch.setattr(control, "launch", launched)
    result = run(recover_pipeline, "recover", instance, pipeline="sales", reason="driver 1 died")
    assert result.success
    assert "cities-1: roll forward" in logged(instance, result)
    [record] = instance.fetch_observations(AssetKey(["sales", "cities_store"]), limit=9).records
    assert record.asset_observation is not None
    metadata = record.asset_observation.metadata
    assert metadata["records replayed"].value == 20
    assert metadata["seconds of recovery"].value == 1.5
    assert metadata["reason"].value == "driver 1 died"
    table = str(metadata["recovery plan"].value)
    assert table.splitlines()[2].startswith("| cities-0 | roll forward | store stands at batch 1")


def test_a_pipeline_that_nothing_brings_back_is_not_started(
    world: World, instance: dg.DagsterInstance, kafka: str, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLFORWARD_BOOTSTRAP_SERVERS", kafka)
    settings = settings_now()
    admin = Admin(settings.kafka_config())
    admin.create(unique, partitions=1, settings={})
    deploy(SQL.format(topic=unique, table="cities"), unique, settings, world.registry)
    changelog = names.changelog_topic(unique, "cities")
    admin.delete([changelog])
    admin.await_gone(changelog)
    started: list[str] = []
    monkeypatch.setattr(control, "launch", lambda *_, **__: started.append(unique))
    failed = failure(run(recover_pipeline, "recover", instance, pipeline=unique))
    assert "nothing was started: no way leads to the committed version" in (failed.description or "")
    assert "Unrecoverable" == failed.metadata["error"].value
    assert "cities-0" in str(failed.metadata["tasks"].value)
    assert changelog in str(failed.metadata["reason"].value)
    assert [] == started
    assert STOPPED == world.registry.pipeline(unique).desired


def test_without_kafka_a_recovery_fails_and_says_so(world: World, instance: dg.DagsterInstance) -> None:
    world.deploy("sales")
    world.dead_driver("sales")
    failed = failure(run(recover_pipeline, "recover", instance, pipeline="sales"))
    assert "no Kafka is configured" in (failed.description or "")
    assert failed.metadata["hint"].value


def test_jobs_are_never_repeated_by_dagster_and_are_bounded() -> None:
    for job in JOBS:
        assert job.tags["dagster/max_retries"] == "0"
        assert float(job.tags["dagster/max_runtime"]) <= 3600


@pytest.mark.parametrize(("older_than", "ended"), [(0.0, False), (1.0, False), (9e9, True)])
def test_a_living_driver_is_ended_only_if_the_alert_was_about_it(
    world: World, living_driver: psutil.Process, older_than: float, ended: bool
) -> None:
    world.deploy("sales")
    world.driver_row("sales", living_driver)
    assert ended is outlived(look(settings_now(), world.registry, "sales"), older_than)
    assert not outlived(replace(look(settings_now(), world.registry, "sales"), driver=None), older_than)


def test_a_driver_that_came_up_during_the_estimate_is_not_ended(
    world: World, instance: dg.DagsterInstance, living_driver: psutil.Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.deploy("sales")
    world.driver_row("sales", living_driver)
    alert = time.time()
    done: list[str] = []

    def estimate(*_: object) -> list[dict[str, Any]]:
        world.driver_row("sales", living_driver)
        return []

    monkeypatch.setattr(recovery, "_estimate", estimate)
    monkeypatch.setattr(recovery, "_first_output", lambda *_: None)
    monkeypatch.setattr(control, "end_driver", lambda *_, **__: done.append("end") or True)
    monkeypatch.setattr(control, "launch", lambda *_, **__: done.append("launch") or 1)
    older_than = {"only_if_desired": True, "restart_if_older_than": alert}
    assert run(recover_pipeline, "recover", instance, pipeline="sales", **older_than).success
    assert ["launch"] == done


def test_the_summary_says_what_was_found_done_and_how_long_it_took(world: World) -> None:
    world.deploy("sales")
    pid = world.dead_driver("sales")
    plans = [
        {"task": "cities-0", "way": "full replay", "records": 70, "seconds": 2.5},
        {"task": "cities-1", "way": "nothing", "records": 0, "seconds": 0.1},
    ]
    text = summary(look(settings_now(), world.registry, "sales"), "", plans, seconds=9.5, output=12.25)
    for expected in (
        f"what happened: driver {pid} died",
        "what was found: dead",
        "1 tasks by full replay, 1 tasks stood where they should",
        "running after 9.5 s, the slowest task 2.5 s; first new committed batch after 12.25 s",
        "70 changelog records replayed",
    ):
        assert expected in text
    assert "no batch was due yet" in summary(
        look(settings_now(), world.registry, "sales"), "x", [], seconds=1, output=None
    )
