"""Drivers as the registry tells of them: another machine's, an earlier deployment's, and what is left alone."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy import update
from sqlalchemy.exc import DatabaseError

from ops import control
from ops.cli import stack
from ops.cli.stack import stop_everything, stop_pipelines
from ops.environment import settings_now
from ops.past import require_stopped
from pipelines.metastore.command import put
from pipelines.metastore.validate import PIPELINE
from pipelines.registry import RUNNING, STOPPED, DriverRow
from statestore.errors import InvalidInput, RollforwardError, Unavailable
from tests.ops.dagster_world import World, living_driver, world

__all__ = ["living_driver", "world"]
ELSEWHERE = "machine-b"


def ended_pid() -> int:
    """A number that no process has."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def unused(world: World) -> int:
    """The fresh row of a driver on another machine whose number nothing has here; gives the number."""
    pid = ended_pid()
    world.registry.driver_started("sales", pid=pid, process_started=time.time(), host=ELSEWHERE)
    world.registry.driver_seen("sales", pid=pid, state="running")
    return pid


def change(world: World, **fields: float) -> None:
    """Put these into the driver's row."""
    with world.registry.engine.begin() as connection:
        connection.execute(update(DriverRow).values(**fields))


def deploy_again(world: World) -> None:
    """What dropping it and deploying it under the same name leaves: the old driver is none of its."""
    row = world.registry.pipeline("sales")
    body = {"sql": row.sql, "sources": row.sources, "queries": row.queries, "deployed_at": time.time()}
    world.log.change(put(PIPELINE, "sales", body))


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever would start a driver raises."""

    def refuse(*_: object) -> None:
        raise Unavailable("a driver would be started")

    monkeypatch.setattr(control, "with_spark", refuse)


def launch(world: World) -> int:
    return control.launch(settings_now(), world.registry, "sales")


def raises(work: Callable[[], object], error: type[RollforwardError], match: str) -> dict[str, Any]:
    with pytest.raises(error, match=match) as raised:
        work()
    return raised.value.fields


@pytest.mark.usefixtures("launches")
def test_a_driver_of_another_machine_lives_while_its_heart_beats(world: World) -> None:
    world.deploy("sales", desired=RUNNING)
    pid = unused(world)
    status = control.status(world.registry, "sales")
    assert (True, "running", "") == (status.alive, status.state, status.needs_recovery)
    assert status == control.statuses(world.registry)["sales"][0]
    assert ELSEWHERE == raises(lambda: launch(world), Unavailable, "runs on another machine")["host"]
    world.log.desire("sales", STOPPED)
    raises(lambda: require_stopped(world.registry, "sales"), InvalidInput, "pipeline is to run")
    change(world, heartbeat_at=time.time() - control.HEARTBEAT_STALE_S - 1)
    require_stopped(world.registry, "sales")
    world.log.desire("sales", RUNNING)
    silent = control.status(world.registry, "sales")
    assert (False, "dead") == (silent.alive, silent.state)
    assert f"driver {pid} on {ELSEWHERE} has not been heard of for" in silent.needs_recovery
    raises(lambda: launch(world), Unavailable, "a driver would be started")


@pytest.mark.usefixtures("launches")
def test_nobody_kills_a_process_here_for_a_driver_of_another_machine(
    world: World, living_driver: psutil.Process
) -> None:
    world.deploy("sales")
    world.driver_row("sales", living_driver, host=ELSEWHERE)
    change(world, process_started=0.0)
    raises(lambda: launch(world), Unavailable, "runs on another machine")
    raises(lambda: control.end_driver(world.registry, "sales"), Unavailable, "is to run")
    world.log.desire("sales", STOPPED)
    ended = raises(lambda: control.end_driver(world.registry, "sales", timeout_s=0.3), Unavailable, "has not ended")
    assert ELSEWHERE == ended["host"]
    change(world, heartbeat_at=0.0)
    raises(lambda: launch(world), Unavailable, "a driver would be started")
    assert not control.end_driver(world.registry, "sales")
    assert living_driver.status() != psutil.STATUS_ZOMBIE


def test_the_end_of_a_driver_on_another_machine_is_waited_for(world: World) -> None:
    world.deploy("sales", desired=STOPPED)
    pid = unused(world)
    ends = threading.Timer(0.3, lambda: world.registry.driver_seen("sales", pid=pid, state="stopped"))
    ends.start()
    assert control.end_driver(world.registry, "sales", timeout_s=30)
    ends.join()
    assert not control.end_driver(world.registry, "sales")


def test_down_leaves_a_driver_of_another_machine_alone(world: World) -> None:
    world.deploy("sales", desired=RUNNING)
    unused(world)
    told: list[str] = []
    assert [] == stop_pipelines(settings_now(), lambda _name, detail: told.append(detail))
    assert [f"runs on {ELSEWHERE} and is left alone"] == told
    assert RUNNING == world.registry.pipeline("sales").desired


@pytest.mark.parametrize("wipe", [False, True])
def test_down_ends_what_runs_of_this_home_also_where_its_registry_is_damaged(
    world: World, tmp_path: Path, wipe: bool
) -> None:
    stub = tmp_path / "stub" / "pipelines" / "driver.py"
    stub.parent.mkdir(parents=True)
    stub.write_text("input()")
    world.home.mkdir()
    (world.home / "metastore.db").write_text("this is no database")
    (world.home / "run").mkdir()
    drivers = [
        subprocess.Popen(
            [sys.executable, "-m", "pipelines.driver", "sales"],
            cwd=tmp_path / "stub",
            env={**os.environ, "ROLLFORWARD_HOME": str(home)},
            stdin=subprocess.PIPE,
        )
        for home in (world.home, tmp_path / "other")
    ]
    told: list[tuple[str, str]] = []
    try:
        if wipe:
            # What was wrong went with it.
            stopped = stop_everything(settings_now(), lambda *step: told.append(step), wipe=True)
            assert ["sales"] == stopped["stopped_pipelines"]
        else:
            with pytest.raises(DatabaseError):
                stop_everything(settings_now(), lambda *step: told.append(step))
        assert drivers[0].poll() is not None
        assert drivers[1].poll() is None
    finally:
        for driver in drivers:
            driver.kill()
            driver.communicate()
    assert ("sales", "stopped") in told
    assert ("kafka", "was not running") in told
    assert wipe != (world.home / "metastore.db").exists()


def test_a_wipe_tells_of_a_damaged_database_that_lies_elsewhere(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = tmp_path / "elsewhere.db"
    database.write_text("this is no database")
    monkeypatch.setenv("ROLLFORWARD_METASTORE_URL", f"sqlite:///{database}")
    (world.home / "kafka").mkdir(parents=True)
    with pytest.raises(DatabaseError):
        stop_everything(settings_now(), lambda *_: None, wipe=True)
    assert database.exists()
    assert not (world.home / "kafka").exists()


def test_a_wipe_tells_of_a_driver_that_cannot_be_ended(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise psutil.AccessDenied(1)

    world.home.mkdir()
    (world.home / "metastore.db").touch()
    monkeypatch.setattr(stack, "stop_pipelines", refuse)
    with pytest.raises(psutil.AccessDenied):
        stop_everything(settings_now(), lambda *_: None, wipe=True)
    assert not (world.home / "metastore.db").exists()


@pytest.mark.usefixtures("launches")
def test_a_driver_of_an_earlier_deployment_is_not_taken_for_one_of_this(
    world: World, living_driver: psutil.Process
) -> None:
    world.deploy("sales")
    world.driver_row("sales", living_driver)
    assert living_driver.pid == launch(world)
    change(world, started_at=time.time() - 3600)
    deploy_again(world)
    raises(lambda: launch(world), Unavailable, "a driver would be started")
    assert not living_driver.is_running() or living_driver.status() == psutil.STATUS_ZOMBIE


@pytest.mark.usefixtures("launches")
def test_a_driver_that_is_stopping_is_waited_for_and_not_taken_for_one_that_runs(
    world: World, living_driver: psutil.Process
) -> None:
    world.deploy("sales", desired=RUNNING)
    world.driver_row("sales", living_driver, state=control.STOPPING)
    status = control.status(world.registry, "sales")
    assert (True, "", False) == (status.alive, status.needs_recovery, control.is_up(status))
    ends = threading.Timer(0.5, living_driver.terminate)
    ends.start()
    told: list[str] = []
    started = time.monotonic()

    def tell(_step: str, detail: str) -> None:
        told.append(detail)

    raises(
        lambda: control.launch(settings_now(), world.registry, "sales", on_progress=tell),
        Unavailable,
        "a driver would be started",
    )
    assert time.monotonic() - started >= 0.5
    assert f"waiting for driver {living_driver.pid} to stop" == told[0]


def test_a_driver_that_died_while_stopping_is_to_be_recovered(world: World) -> None:
    world.deploy("sales", desired=RUNNING)
    world.dead_driver("sales", state=control.STOPPING)
    status = control.status(world.registry, "sales")
    assert ("dead", True) == (status.state, "died" in status.needs_recovery)


def test_a_driver_that_began_behind_the_deployment_is_of_it(world: World, living_driver: psutil.Process) -> None:
    world.deploy("sales")
    deploy_again(world)
    world.driver_row("sales", living_driver)
    assert living_driver.pid == launch(world)
