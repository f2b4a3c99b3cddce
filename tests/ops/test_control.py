"""Drivers as the registry tells of them: another machine's, an earlier deployment's, and what is left alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from fcntl import LOCK_EX, LOCK_SH, flock
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy import update
from sqlalchemy.exc import DatabaseError
from typer.testing import CliRunner

from infra import process
from infra.errors import CopiedHome
from infra.process import ProcessSpec
from ops import control
from ops.backups import back_up
from ops.cli import stack
from ops.cli.context import registry_of
from ops.cli.main import app
from ops.cli.stack import stop_everything, stop_pipelines
from ops.dagster import findings
from ops.doctor.examine import examine
from ops.environment import settings_now
from ops.past import require_stopped
from pipelines import past
from pipelines.heart import Heart
from pipelines.metastore import embedded
from pipelines.metastore.command import put
from pipelines.metastore.lent import lent
from pipelines.metastore.validate import PIPELINE
from pipelines.pipeline_driver import PipelineDriver
from pipelines.registry import RUNNING, STOPPED, DriverRow, PipelineDefinition, Registry
from pipelines.settings import Settings
from statestore.errors import InvalidConfig, InvalidInput, RollforwardError, Unavailable
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
    world.registry.driver_started("sales", pid=pid, process_started=0.0, host=ELSEWHERE)
    beats(world, pid)
    return pid


def beats(world: World, pid: int, *, state: str = "running") -> bool:
    """That driver is heard of."""
    return world.registry.driver_seen("sales", pid=pid, process_started=0.0, host=ELSEWHERE, state=state)


def change(world: World, **fields: float) -> None:
    """Put these into the driver's row."""
    with world.registry.engine.begin() as connection:
        connection.execute(update(DriverRow).values(**fields))


def deploy_again(world: World) -> None:
    """What dropping it and deploying it under the same name leaves: the old driver is none of its."""
    row = world.registry.pipeline("sales")
    body = {"sql": row.sql, "sources": row.sources, "queries": row.queries, "deployed_at": time.time()}
    world.log.change(put(PIPELINE, "sales", body))


@contextmanager
def launching(world: World) -> Iterator[None]:
    """Somebody is starting the pipeline's driver."""
    lock = world.home / "locks" / "sales.launch"
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        flock(file, LOCK_EX)
        yield


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
    deployed_at = world.registry.pipeline("sales").deployed_at
    of_all = control.statuses(world.registry, {"sales": deployed_at})["sales"][0]
    assert status == replace(of_all, heartbeat_age_s=status.heartbeat_age_s)
    assert ELSEWHERE == raises(lambda: launch(world), Unavailable, "runs on another machine")["host"]
    world.log.desire("sales", STOPPED)
    raises(lambda: require_stopped(settings_now(), world.registry, "sales"), InvalidInput, "pipeline is to run")
    change(world, heartbeat_at=time.time() - control.HEARTBEAT_STALE_S - 1)
    require_stopped(settings_now(), world.registry, "sales")
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
    ends = threading.Timer(0.3, lambda: beats(world, pid, state="stopped"))
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


def test_what_destroys_something_does_not_go_by_what_was_seen_last(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_: object) -> None:
        raise Unavailable("kafka does not answer")

    world.deploy("sales")
    monkeypatch.setenv("ROLLFORWARD_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    monkeypatch.setattr(embedded, "metastore", away)
    settings = settings_now()
    assert embedded.refresh(settings) is None
    raises(lambda: require_stopped(settings, world.registry, "sales"), Unavailable, "does not answer")
    raises(lambda: embedded.want("sales", STOPPED, settings, world.registry), Unavailable, "does not answer")


def test_whoever_stops_waits_for_a_slow_broker_and_down_and_a_start_of_what_runs_do_not(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []

    def slow(settings: Settings) -> None:
        waited.append(settings.request_timeout_s)
        raise Unavailable("kafka does not answer")

    world.deploy("sales")
    monkeypatch.setenv("ROLLFORWARD_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    monkeypatch.setattr(embedded, "metastore", slow)
    settings = settings_now()
    look_s, whole_s = embedded.LOOK_TIMEOUT_S, settings.request_timeout_s
    for quickly in (False, True):
        stop = partial(embedded.want, "sales", STOPPED, settings, world.registry, quickly=quickly)
        raises(stop, Unavailable, "does not answer")
    world.log.desire("sales", RUNNING)
    assert not embedded.want("sales", RUNNING, settings, world.registry)
    # What is to be stopped is a statement, which `down` also waits for.
    raises(stop, Unavailable, "does not answer")
    assert [whole_s, look_s, look_s, look_s, whole_s] == waited


@pytest.mark.parametrize(("is_up", "told"), [(False, []), (True, ["is ended, but the metastore may still want"])])
def test_down_tells_what_may_be_started_again_of_what_ran_alone(
    world: World, living_driver: psutil.Process, monkeypatch: pytest.MonkeyPatch, is_up: bool, told: list[str]
) -> None:
    def away(_: object) -> None:
        raise Unavailable("kafka does not answer")

    world.deploy("sales")
    if is_up:
        world.driver_row("sales", living_driver)
    monkeypatch.setenv("ROLLFORWARD_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    monkeypatch.setattr(embedded, "metastore", away)
    texts: list[str] = []
    stopped = stop_pipelines(settings_now(), lambda _name, detail: texts.append(detail))
    assert told == [text[:42] for text in texts if "may still" in text]
    assert (["sales"] if is_up else []) == stopped


@pytest.mark.parametrize("first", ["lock", "mark", "log", "backup", "past", "registry", "doctor"])
def test_the_home_is_its_users_alone_whatever_makes_it(world: World, tmp_path: Path, first: str) -> None:
    settings = Settings(home=world.home / "below", metastore_url=f"sqlite:///{tmp_path / 'elsewhere.db'}")
    with ExitStack() as stack:
        umask = os.umask(0o022)
        stack.callback(os.umask, umask)
        match first:
            case "lock":
                stack.enter_context(control._launching(settings, "sales"))
            case "mark":
                stack.enter_context(lent(settings.home, "sales"))
            case "log":
                registry = stack.enter_context(closing(Registry(settings.metastore)))
                definition = PipelineDefinition(name="sales", sql="", sources=[], queries=[], deployed_at=0.0)
                settings = settings.model_copy(update={"bootstrap_servers": "127.0.0.1:1"})
                PipelineDriver(definition, settings, registry, until_end=True)
            case "backup":
                with pytest.raises(InvalidConfig):
                    back_up(settings, keep=1)
            case "past":
                stack.enter_context(past._own_folder(settings))
            case "registry":
                stack.enter_context(registry_of(settings))
            case "doctor":
                list(examine(settings))
        made = [settings.home, *(path for path in settings.home.iterdir() if path.is_dir())]
        assert {0o700} == {folder.stat().st_mode & 0o777 for folder in made}


def test_a_driver_is_alive_when_the_clock_has_been_set(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.deploy("sales")
    heart = Heart("sales", world.registry, lambda: ("running", []), lambda: None)
    heart.start(metrics_port=None)
    try:
        moved = psutil.boot_time() + 30
        monkeypatch.setattr(psutil._psplatform, "boot_time", lambda: moved)
        driver = world.registry.driver("sales")
        assert driver is not None and control.is_alive(driver)
        assert "" == control.status(world.registry, "sales").needs_recovery
    finally:
        heart.end("stopped", "")


def test_down_of_a_copied_home_leaves_the_drivers_of_the_original_alone(
    world: World, tmp_path: Path, living_driver: psutil.Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.deploy("sales")
    world.driver_row("sales", living_driver)
    record = world.home / "run" / "kafka.json"
    process.start(ProcessSpec("kafka", ("/bin/sleep", "600"), {}, world.home, world.home / "kafka.log", record))
    try:
        shutil.copytree(world.home, tmp_path / "copy")
        monkeypatch.setenv("ROLLFORWARD_HOME", str(tmp_path / "copy"))
        with pytest.raises(CopiedHome, match="of which this one is a copy"):
            stop_everything(settings_now(), lambda *_: None, wipe=True)
    finally:
        assert process.stop(record)
    assert living_driver.is_running()
    assert (tmp_path / "copy" / "metastore.db").exists()


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


def test_a_driver_that_is_being_started_is_waited_for_and_ended(world: World, living_driver: psutil.Process) -> None:
    world.deploy("sales", desired=STOPPED)

    def comes_up() -> None:
        started = living_driver.create_time()
        world.registry.driver_started("sales", pid=living_driver.pid, process_started=started, host="here")

    begun, met = threading.Event(), threading.Event()

    def start() -> None:
        with launching(world):
            begun.set()
            met.wait(10)
            comes_up()
            psutil.wait_procs([living_driver], timeout=30)

    starts = threading.Thread(target=start)
    starts.start()
    assert begun.wait(10)
    settings = settings_now()
    assert control.end_running(settings, world.registry, "sales", timeout_s=20, on_progress=lambda *_: met.set())
    assert met.is_set()
    assert not control.is_running(settings, world.registry, "sales")
    starts.join()


def test_a_driver_that_does_not_come_up_is_told_and_one_that_is_to_run_by_now_is_left_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.deploy("sales", desired=STOPPED)
    monkeypatch.setattr(control, "_LAUNCH_S", 0.3)

    def end() -> bool:
        return control.end_running(settings_now(), world.registry, "sales")

    with launching(world):
        raises(end, Unavailable, "still being started")
        world.log.desire("sales", RUNNING)
        assert not end()


def test_the_time_that_a_driver_took_to_end_is_none_of_its_launch(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.deploy("sales", desired=STOPPED)
    monkeypatch.setattr(control, "_LAUNCH_S", 0.3)
    ended = iter([True])

    def end_driver(*_: object, **__: object) -> bool:
        time.sleep(0.5)
        return next(ended, False)

    # Whoever has started it sees its end a moment later.
    looks = iter([True, False])
    monkeypatch.setattr(control, "end_driver", end_driver)
    monkeypatch.setattr(control, "is_launching", lambda *_: next(looks))
    assert control.end_running(settings_now(), world.registry, "sales")


def test_two_that_look_for_a_launch_see_none(world: World) -> None:
    lock = world.home / "locks" / "sales.launch"
    lock.parent.mkdir(parents=True)
    lock.touch()
    with lock.open() as file:
        flock(file, LOCK_SH)
        assert not control.is_launching(settings_now(), "sales")


def test_what_is_found_of_a_pipeline_is_not_of_a_dropped_one_but_for_what_that_left(
    world: World, living_driver: psutil.Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.deploy("sales")
    world.dead_driver("sales", state="failed", error="batch failed query=`cities` batch=`7`")
    change(world, started_at=time.time() - 3600)
    deploy_again(world)
    monkeypatch.setattr(findings, "_remains", lambda _driver: [living_driver])
    found = findings.look(settings_now(), world.registry, "sales")
    assert "no driver was ever started" in found.text()
    assert "batch failed" not in found.text()
    assert f"still there of an earlier driver: pid {living_driver.pid}" in found.text()


def test_nothing_is_changed_under_a_driver_that_is_being_started(world: World) -> None:
    world.deploy("sales", desired=STOPPED)
    with launching(world):
        raises(lambda: require_stopped(settings_now(), world.registry, "sales"), InvalidInput, "pipeline is to run")
        result = CliRunner().invoke(app, ["drop", "sales"])
    assert 1 == result.exit_code
    assert "pipeline still runs, or is being started" in result.output
    require_stopped(settings_now(), world.registry, "sales")


def test_down_ends_a_driver_whose_pipeline_was_dropped(world: World, living_driver: psutil.Process) -> None:
    started = living_driver.create_time()
    world.registry.driver_started("gone", pid=living_driver.pid, process_started=started, host="here")
    assert ["gone"] == stop_pipelines(settings_now(), lambda *_: None)
    assert not living_driver.is_running() or living_driver.status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("state", ["failed", "fenced", "running"])
def test_what_a_dead_driver_of_an_earlier_deployment_ended_of_says_nothing_of_this(world: World, state: str) -> None:
    world.deploy("sales")
    world.dead_driver("sales", state=state, error="batch failed query=`cities` batch=`7`")
    change(world, started_at=time.time() - 3600)
    of_its_own = control.status(world.registry, "sales").state
    assert ("dead" if state == "running" else state) == of_its_own
    deploy_again(world)
    status = control.status(world.registry, "sales")
    assert ("never started", "", "") == (status.state, status.error, status.needs_recovery)
    deployed_at = world.registry.pipeline("sales").deployed_at
    assert (status, None) == control.statuses(world.registry, {"sales": deployed_at})["sales"]


def test_a_living_driver_of_an_earlier_deployment_is_seen(world: World, living_driver: psutil.Process) -> None:
    world.deploy("sales")
    world.driver_row("sales", living_driver)
    change(world, started_at=time.time() - 3600)
    deploy_again(world)
    assert living_driver.pid == control.status(world.registry, "sales").pid


def test_a_heartbeat_is_that_of_the_process_that_began_the_row(world: World) -> None:
    world.deploy("sales")
    pid = unused(world)
    assert beats(world, pid)
    others = ({"process_started": 1.0, "host": ELSEWHERE}, {"process_started": 0.0, "host": "machine-c"})
    for other in others:
        assert not world.registry.driver_seen("sales", pid=pid, **other, state="stopped")  # type: ignore[arg-type]
        world.registry.spark_page("sales", pid=pid, **other, url="http://other")  # type: ignore[arg-type]
    row = world.registry.driver("sales")
    assert row is not None
    assert ("running", None) == (row.state, row.spark_url)


def test_the_row_of_an_earlier_driver_of_the_same_number_is_not_taken_for_the_new_one(
    world: World, living_driver: psutil.Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.deploy("sales")
    world.driver_row("sales", living_driver)
    change(world, process_started=0.0)
    monkeypatch.setattr(control, "with_spark", lambda settings, _tell: settings)
    monkeypatch.setattr(control, "driver_environment", lambda _settings: {})

    class Started:
        pid = living_driver.pid

        def __init__(self, *_: object, **__: object) -> None:
            pass

        def poll(self) -> None:
            return None

    monkeypatch.setattr(subprocess, "Popen", Started)
    raises(
        lambda: control.launch(settings_now(), world.registry, "sales", timeout_s=0.3),
        Unavailable,
        "driver is not running yet",
    )
