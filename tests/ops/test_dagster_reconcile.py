"""At most one run per incident, none where none is due, and patience where runs do not help."""

from __future__ import annotations

import json
import socket
import time
from fcntl import LOCK_EX, flock

import dagster as dg
import psutil
import pytest
from sqlalchemy import update

from ops.control import PipelineStatus
from ops.dagster.incidents import (
    BACKOFF_MAX_S,
    POISONED,
    RUNS_MAX,
    STEADY_S,
    STOP_GRACE_S,
    Decision,
    Memory,
    backoff_s,
    decide,
)
from ops.dagster.jobs import recover_pipeline
from ops.dagster.reconcile import reconcile
from ops.dagster.runs import PIPELINE_TAG, WORKER_TAG
from pipelines.metastore.command import put
from pipelines.metastore.validate import PIPELINE
from pipelines.registry import RUNNING, STOPPED, DriverRow
from tests.ops.dagster_world import World, instance, living_driver, world

__all__ = ["instance", "living_driver", "world"]


def tick(instance: dg.DagsterInstance, cursor: str | None = None) -> dg.SensorResult:
    """One tick."""
    result = reconcile(dg.build_sensor_context(instance=instance, cursor=cursor))
    assert isinstance(result, dg.SensorResult)
    return result


def long_ago(cursor: str | None) -> str:
    """The cursor as it would be an hour later."""
    memories = json.loads(cursor or "{}")
    return json.dumps({name: {**fields, "run_seen_at": time.time() - 3600} for name, fields in memories.items()})


def started_run(instance: dg.DagsterInstance, tags: dict[str, str]) -> dg.DagsterRun:
    """A recovery run as Dagster knows it while it works."""
    config = {"ops": {"recover": {"config": {"pipeline": "sales"}}}}
    return instance.create_run_for_job(
        recover_pipeline, run_config=config, tags=tags, status=dg.DagsterRunStatus.STARTED
    )


def test_nothing_deployed_is_said(world: World, instance: dg.DagsterInstance) -> None:
    assert tick(instance).skip_reason == dg.SkipReason("no pipeline is deployed")


def test_a_stopped_pipeline_needs_nothing(world: World, instance: dg.DagsterInstance) -> None:
    world.deploy("sales")
    world.dead_driver("sales")
    world.log.desire("sales", STOPPED)
    assert tick(instance).skip_reason == dg.SkipReason("sales is stopped, as desired")


def test_a_healthy_pipeline_is_said_to_run(
    world: World, instance: dg.DagsterInstance, living_driver: psutil.Process
) -> None:
    world.deploy("sales")
    world.add_batches("sales", 2)
    world.driver_row("sales", living_driver)
    assert tick(instance).skip_reason == dg.SkipReason("sales runs, 7 offsets behind")


def test_a_pipeline_that_was_never_started_is_launched(world: World, instance: dg.DagsterInstance) -> None:
    world.deploy("sales", desired=RUNNING)
    [request] = tick(instance).run_requests or []
    assert request.job_name == "launch_pipeline"
    assert request.tags[PIPELINE_TAG] == "sales"


def test_a_dead_driver_gets_exactly_one_recovery_over_many_ticks(world: World, instance: dg.DagsterInstance) -> None:
    world.deploy("sales")
    pid = world.dead_driver("sales")
    first = tick(instance)
    [request] = first.run_requests or []
    driver = world.registry.driver("sales")
    assert driver is not None
    assert request.run_key == f"recover-sales-{pid}-{driver.started_at}"
    assert request.job_name == "recover_pipeline"
    config = request.run_config["ops"]["recover"]["config"]
    assert config["reason"] == f"driver {pid} died"
    cursor = first.cursor
    for _ in range(3):
        later = tick(instance, cursor)
        assert not later.run_requests
        assert "died; runs so far: 1, the next in " in str(later.skip_reason)
        cursor = later.cursor


def test_a_tick_that_is_repeated_asks_for_the_same_run(world: World, instance: dg.DagsterInstance) -> None:
    world.deploy("sales")
    world.dead_driver("sales")
    [first], [again] = tick(instance).run_requests or [], tick(instance).run_requests or []
    assert first.run_key == again.run_key


def test_the_next_death_is_another_incident(world: World, instance: dg.DagsterInstance) -> None:
    world.deploy("sales")
    world.dead_driver("sales")
    first = tick(instance)
    world.dead_driver("sales", state="failed", error="kafka is gone")
    second = tick(instance, long_ago(first.cursor))
    [one], [two] = first.run_requests or [], second.run_requests or []
    assert one.run_key != two.run_key
    assert "kafka is gone" in two.run_config["ops"]["recover"]["config"]["reason"]


def test_an_incident_that_outlives_its_run_gets_another_one(world: World, instance: dg.DagsterInstance) -> None:
    world.deploy("sales")
    world.dead_driver("sales")
    first = tick(instance)
    second = tick(instance, long_ago(first.cursor))
    [one], [two] = first.run_requests or [], second.run_requests or []
    assert two.run_key == f"{one.run_key}-try-2"


def test_a_run_at_work_keeps_others_away(world: World, instance: dg.DagsterInstance) -> None:
    world.deploy("sales")
    world.deploy("other")
    world.dead_driver("sales")
    world.dead_driver("other")
    started_run(instance, {PIPELINE_TAG: "sales"})
    requests = tick(instance).run_requests or []
    assert [request.tags[PIPELINE_TAG] for request in requests] == ["other"]


def test_a_run_whose_worker_died_is_ended_and_keeps_nobody_away(world: World, instance: dg.DagsterInstance) -> None:
    world.deploy("sales")
    pid = world.dead_driver("sales")
    tags = {PIPELINE_TAG: "sales", WORKER_TAG: f"{socket.gethostname()}/{pid}/1.00"}
    run = started_run(instance, tags)
    assert len(tick(instance).run_requests or []) == 1
    ended = instance.get_run_by_id(run.run_id)
    assert ended is not None and ended.status is dg.DagsterRunStatus.FAILURE


def test_a_pipeline_that_is_being_started_elsewhere_is_left_alone(world: World, instance: dg.DagsterInstance) -> None:
    world.deploy("sales", desired=RUNNING)
    lock = world.home / "locks" / "sales.launch"
    lock.parent.mkdir(parents=True)
    with lock.open("w") as file:
        flock(file, LOCK_EX)
        result = tick(instance)
    assert not result.run_requests
    assert "from outside of Dagster" in str(result.skip_reason)


def test_a_broken_definition_is_named_and_the_others_are_looked_after(
    world: World, instance: dg.DagsterInstance
) -> None:
    world.deploy("bad", desired=RUNNING)
    world.spoil("bad", "not json")
    assert tick(instance).skip_reason == dg.SkipReason("bad has a broken definition")
    world.deploy("sales", desired=RUNNING)
    [request] = tick(instance).run_requests or []
    assert request.tags[PIPELINE_TAG] == "sales"


def test_a_pipeline_that_was_given_up_is_started_when_another_is_deployed_under_its_name(
    world: World, instance: dg.DagsterInstance
) -> None:
    world.deploy("sales")
    world.dead_driver("sales", state="failed", error="batch failed query=`cities` batch=`7`")
    with world.registry.engine.begin() as connection:
        connection.execute(update(DriverRow).values(started_at=time.time() - 3600))
    memories = json.loads(tick(instance).cursor or "{}")
    memories["sales"] |= {"runs": RUNS_MAX, "run_seen_at": time.time()}
    assert "is given up" in str(tick(instance, json.dumps(memories)).skip_reason)
    row = world.registry.pipeline("sales")
    body = {"sql": row.sql, "sources": row.sources, "queries": row.queries, "deployed_at": time.time()}
    world.log.change(put(PIPELINE, "sales", body))
    [request] = tick(instance, json.dumps(memories)).run_requests or []
    assert request.job_name == "launch_pipeline"
    assert request.run_key == f"launch-sales-{body['deployed_at']}"


def test_a_cursor_that_does_not_read_is_forgotten(world: World, instance: dg.DagsterInstance) -> None:
    world.deploy("sales", desired=RUNNING)
    for cursor in ("nonsense", "7", '{"sales": {"unknown": 1}}'):
        assert len(tick(instance, cursor).run_requests or []) == 1


# The decision alone, with a clock.

NOW = 1_800_000_000.0


def status(
    *, desired: str = RUNNING, state: str = "dead", alive: bool = False, recover: str = "died"
) -> PipelineStatus:
    """What `ops.control.status` gives."""
    return PipelineStatus("sales", desired, state, 7 if alive else None, alive, 1.0, "", recover, 0, 3, {})


def driver(state: str = "running", *, started_at: float = NOW - 3600) -> DriverRow:
    """The driver's row."""
    return DriverRow(pipeline="sales", pid=7, state=state, started_at=started_at, heartbeat_at=NOW, error="")


def test_runs_that_do_not_help_come_ever_more_rarely() -> None:
    memory, now, gaps = Memory(), NOW, []
    for _ in range(10):
        before = now
        while not (decision := decide(status(), driver(), 0.0, memory, now=now)).incident:
            memory, now = decision.memory, now + 1
        memory = decision.memory
        gaps.append(now - before)
    assert gaps == [0, 5, 10, 20, 40, 80, 160, BACKOFF_MAX_S, BACKOFF_MAX_S, BACKOFF_MAX_S]


def recovered_again(error: str, count: int, *, now: float = NOW) -> Decision:
    """The decision after so many drivers of one pipeline failed of this, each in a process of its own."""
    memory = Memory()
    for number in range(count):
        now += BACKOFF_MAX_S
        failed = driver("failed", started_at=now)
        failed.error = error
        decision = decide(status(state="failed", recover=f"failed: {error}"), failed, 0.0, memory, now=now)
        memory = decision.memory
        assert number + 1 == memory.runs or decision.incident is None
    return decision


def test_after_many_runs_without_rest_a_pipeline_is_given_up_and_says_so() -> None:
    last = recovered_again("disk is broken", RUNS_MAX)
    assert last.incident is not None
    over = recovered_again("disk is broken", RUNS_MAX + 5)
    assert over.incident is None
    assert "is given up after 10 runs without a minute's rest: failed: disk is broken" in over.text
    rested = decide(status(state="running", alive=True, recover=""), driver(), 0.0, over.memory, now=NOW)
    assert 0 == rested.memory.runs


def test_kafka_that_is_away_is_waited_for_without_end() -> None:
    assert recovered_again("kafka does not answer: metadata", RUNS_MAX + 5).incident is not None


def test_a_batch_that_every_driver_fails_of_is_called_poisoned() -> None:
    error = "batch failed query=`cities` batch=`7` attempts=`5` error=`division by zero`"
    second, third = recovered_again(error, POISONED - 1), recovered_again(error, POISONED)
    assert second.incident is not None and "poisoned" not in second.incident.reason
    assert third.incident is not None
    assert third.incident.reason.endswith("batch 7 of query cities is poisoned: 3 drivers in a row failed of it")
    assert "batch 7 of query cities is poisoned" in recovered_again(error, RUNS_MAX + 1).text


def test_the_wait_counts_from_the_end_of_the_run_and_says_how_long() -> None:
    memory = decide(status(), driver(), 0.0, Memory(), now=NOW).memory
    memory = decide(status(), driver(), 0.0, memory, now=NOW + 90, busy="has a run at work").memory
    decision = decide(status(), driver(), 0.0, memory, now=NOW + 92)
    assert decision.incident is None
    assert decision.text == "died; runs so far: 1, the next in 3 s"


def test_a_steady_driver_ends_the_back_off_and_a_young_one_does_not() -> None:
    well = status(state="running", alive=True, recover="")
    young = decide(well, driver(started_at=NOW - STEADY_S + 1), 0.0, Memory(runs=4), now=NOW)
    steady = decide(well, driver(started_at=NOW - STEADY_S), 0.0, Memory(runs=4), now=NOW)
    assert (young.memory.runs, steady.memory.runs) == (4, 0)


def test_a_memory_is_of_one_deployment() -> None:
    over = Memory(runs=RUNS_MAX, run_seen_at=NOW, deployed_at=1.0)
    assert decide(status(), driver(), 1.0, over, now=NOW).incident is None
    anew = decide(status(), driver(), 2.0, over, now=NOW)
    assert anew.incident is not None
    assert (1, 2.0) == (anew.memory.runs, anew.memory.deployed_at)
    # A cursor of a program that did not note it is taken for this deployment's.
    assert RUNS_MAX == decide(status(), driver(), 2.0, Memory(runs=RUNS_MAX), now=NOW).memory.runs


def test_a_fenced_driver_is_not_set_against_its_successor() -> None:
    decision = decide(status(state="fenced", recover=""), driver("fenced"), 0.0, Memory(), now=NOW)
    assert decision.incident is None
    assert "another driver owns it" in decision.text


def test_a_driver_that_does_not_stop_is_stopped_after_its_grace() -> None:
    living = status(desired=STOPPED, state="running", alive=True, recover="")
    first = decide(living, driver(), 0.0, Memory(), now=NOW)
    soon = decide(living, driver(), 0.0, first.memory, now=NOW + STOP_GRACE_S - 1)
    late = decide(living, driver(), 0.0, soon.memory, now=NOW + STOP_GRACE_S)
    assert (first.incident, soon.incident) == (None, None)
    assert late.incident is not None and late.incident.action.value == "stop_pipeline"


@pytest.mark.parametrize("runs", [0, 1, 50, 10_000])
def test_the_back_off_is_bounded(runs: int) -> None:
    assert 0 <= backoff_s(runs) <= BACKOFF_MAX_S
