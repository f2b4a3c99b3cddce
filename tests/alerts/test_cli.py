"""What the command line shows of incidents, rights and pipelines that do not run."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from ops.alerts.incidents import Incidents
from ops.alerts.routes import ROUTES
from ops.cli.main import app
from tests.alerts.test_incidents import STALLED
from tests.ops.dagster_world import World, world

__all__ = ["world"]


def shown(*words: str) -> str:
    """Stdout of a command that succeeds."""
    done = CliRunner().invoke(app, words)
    assert 0 == done.exit_code, done.stdout
    return done.stdout


def test_incidents_show_alert_run_and_outcome(world: World) -> None:
    assert "There was no incident." in shown("incidents")
    world.deploy("sales")
    incidents = Incidents(world.registry.engine, ROUTES)
    incidents.take_in([STALLED], complete=False)
    [row] = incidents.waiting()
    incidents.link(row["id"], run_id="r1", url="/runs/r1")
    incidents.finish(row["id"], "run succeeded after 9.1 s")
    [told] = json.loads(shown("incidents", "--json"))
    assert ("RollforwardCommitStalled", "sales", "/runs/r1", None) == (
        *(told["name"], told["pipeline"], told["run_url"]),
        told["closed_at"],
    )
    assert "run succeeded after 9.1 s" in shown("incidents", "--pipeline", "sales")
    assert [] == json.loads(shown("incidents", "--pipeline", "other", "--json"))


def test_rights_are_those_of_the_deployed_pipelines_and_no_more(world: World) -> None:
    world.deploy("sales", topic="clicks")
    granted = json.loads(shown("acls", "--json"))
    topics = {entry["name"]: entry["prefixed"] for entry in granted if entry["resource"] == "topic"}
    assert {f"_rollforward_{world.service}_commands": False, "clicks": False, "sales-": True} == topics
    assert [] == [entry for entry in granted if entry["resource"] == "cluster"]
    lines = shown("acls", "--user", "shop")
    assert (
        "--allow-principal User:shop --operation Read --operation Describe --operation DescribeConfigs --topic 'clicks'"
        in lines
    )


def test_a_pipeline_that_does_not_run_is_shown_by_what_is_known_of_it(world: World) -> None:
    world.deploy("sales")
    world.add_batches("sales", 3)
    pid = world.dead_driver("sales")
    [line] = json.loads(shown("top", "--json"))["pipelines"]
    assert ("dead", f"driver {pid} died", 7, 2) == (
        *(line["state"], line["trouble"]),
        *(line["queries"][0]["lag"], line["queries"][0]["batch"]),
    )
    assert "driver" in shown("top", "sales", "--once")
