"""What `run` and `recover` make of what is desired, which Dagster and other machines act on."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import structlog
from typer.testing import CliRunner

from ops import control, environment, recovery_plans
from ops.cli.main import app
from ops.recovery_plans import UNRECOVERABLE
from pipelines import pipeline_driver
from pipelines.engine import jvm
from pipelines.metastore.embedded import want
from pipelines.metastore.lent import lent
from pipelines.pipeline_driver import PipelineDriver
from pipelines.registry import RUNNING, STOPPED, PipelineDefinition, Registry
from pipelines.settings import Settings
from statestore.errors import Fenced, Unavailable
from tests.ops.dagster_world import World, world

__all__ = ["world"]


@pytest.fixture(autouse=True)
def no_jvm_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs here is in the tests' own process, whose JVM and its folders others use."""
    monkeypatch.setattr(jvm, "end", lambda: None)
    monkeypatch.setattr(jvm, "remove_files", lambda work: None)


def desired(world: World) -> str:
    return world.registry.pipeline("sales").desired


@pytest.mark.parametrize(
    ("before", "error", "after"),
    [
        (STOPPED, None, STOPPED),
        (STOPPED, Unavailable("kafka does not answer"), STOPPED),
        (STOPPED, KeyboardInterrupt(), STOPPED),
        (STOPPED, Fenced("a newer driver exists"), RUNNING),
        (RUNNING, None, RUNNING),
        (RUNNING, Unavailable("kafka does not answer"), RUNNING),
    ],
    ids=["end", "error", "ctrl-c", "taken over", "started before", "started before, error"],
)
def test_a_pipeline_is_desired_to_run_while_it_runs_in_the_foreground(
    world: World,
    kafka: str,
    monkeypatch: pytest.MonkeyPatch,
    before: str,
    error: BaseException | None,
    after: str,
) -> None:
    world.deploy("sales", desired=before)
    world.connect(kafka, monkeypatch)
    during: list[str] = []

    def run_pipeline(*_: object, until_end: bool) -> dict[str, Any]:
        during.append(desired(world))
        if error is not None:
            raise error
        return {"records": 3}

    monkeypatch.setattr(pipeline_driver, "run_pipeline", run_pipeline)
    monkeypatch.setattr(environment, "with_spark", lambda settings, _tell: settings)
    result = CliRunner().invoke(app, ["run", "sales", "--until-end"])
    structlog.reset_defaults()
    assert ([RUNNING], after) == (during, desired(world))
    assert (error is None) == (0 == result.exit_code), result.output


def test_who_starts_what_runs_in_the_foreground_is_not_undone_by_its_end(
    world: World, kafka: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.deploy("sales", desired=STOPPED)
    world.connect(kafka, monkeypatch)
    monkeypatch.setattr(control, "launch", lambda *_, **__: 7)

    def run_pipeline(*_: object, until_end: bool) -> dict[str, Any]:
        assert 0 == CliRunner().invoke(app, ["start", "sales"]).exit_code
        return {"records": 3}

    monkeypatch.setattr(pipeline_driver, "run_pipeline", run_pipeline)
    monkeypatch.setattr(environment, "with_spark", lambda settings, _tell: settings)
    result = CliRunner().invoke(app, ["run", "sales", "--until-end"])
    structlog.reset_defaults()
    assert (0, RUNNING) == (result.exit_code, desired(world)), result.output
    assert [] == list((world.home / "locks").glob("*.lent-*"))


def test_whoever_wants_it_to_run_keeps_what_runs_for_now(world: World) -> None:
    world.deploy("sales", desired=RUNNING)
    world.deploy("sales2", desired=RUNNING, table="towns")
    settings = environment.settings_now()
    with lent(world.home, "sales") as is_lent, lent(world.home, "sales2") as is_other_lent:
        want("sales", RUNNING, settings, world.registry, for_now=True)
        assert is_lent()
        want("sales", RUNNING, settings, world.registry)
        assert (False, True) == (is_lent(), is_other_lent())


def test_a_database_that_is_broken_at_the_end_does_not_replace_the_runs_own_error(
    world: World, kafka: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.deploy("sales", desired=STOPPED)
    world.connect(kafka, monkeypatch)
    database, aside = world.home / "metastore.db", world.home / "aside"

    def run_pipeline(*_: object, until_end: bool) -> None:
        database.rename(aside)
        database.mkdir()
        raise Unavailable("kafka does not answer")

    monkeypatch.setattr(pipeline_driver, "run_pipeline", run_pipeline)
    monkeypatch.setattr(environment, "with_spark", lambda settings, _tell: settings)
    try:
        result = CliRunner().invoke(app, ["run", "sales"])
    finally:
        structlog.reset_defaults()
        database.rmdir()
        aside.rename(database)
    assert 1 == result.exit_code
    assert "kafka does not answer" in result.output
    assert "pipeline sales may still be desired to run" in result.output
    assert "stop it with: rollforward stop sales" in result.output


def test_a_run_to_the_end_that_is_stopped_before_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(home=tmp_path, bootstrap_servers="127.0.0.1:1", metrics=False)
    registry = Registry(settings.metastore)
    # By the clock of another machine.
    deployed_at = time.time() + 3600
    definition = PipelineDefinition(name="p", sql="", sources=[], queries=[], deployed_at=deployed_at)
    driver = PipelineDriver(definition, settings, registry, until_end=True)
    monkeypatch.setattr(driver, "_start", driver.request_stop)
    with pytest.raises(Unavailable, match="stopped before the end of its input"):
        driver.run()
    row = registry.driver("p")
    assert row is not None
    assert ("stopped", "") == (row.state, row.error)
    assert control.is_of(row, deployed_at)
    registry.close()


@pytest.mark.parametrize("before", [STOPPED, RUNNING])
def test_a_recovery_that_starts_nothing_leaves_what_is_desired(
    world: World, kafka: str, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    world.deploy("sales", desired=before)
    world.connect(kafka, monkeypatch)
    plan = {"task": "cities-0", "way": UNRECOVERABLE}
    monkeypatch.setattr(recovery_plans, "plans_of", lambda *_: [plan])
    result = CliRunner().invoke(app, ["recover", "sales", "--json"])
    assert (1, [plan]) == (result.exit_code, json.loads(result.stdout.splitlines()[-1])["plans"])
    assert before == desired(world)


def test_a_recovery_starts_what_was_stopped_and_tells_of_what_it_recovers(
    world: World, kafka: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.deploy("sales")
    pid = world.dead_driver("sales")
    world.log.desire("sales", STOPPED)
    world.connect(kafka, monkeypatch)
    monkeypatch.setattr(recovery_plans, "plans_of", lambda *_: [{"task": "cities-0", "way": "nothing"}])
    monkeypatch.setattr(control, "launch", lambda *_, **__: 7)
    told = json.loads(CliRunner().invoke(app, ["recover", "sales", "--json"]).stdout.splitlines()[-1])
    assert (7, True, f"driver {pid} died") == (told["pid"], told["relaunched"], told["cause"])
    assert RUNNING == desired(world)
