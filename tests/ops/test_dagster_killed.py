"""SIGKILL of Dagster's daemon and of a run's worker: no orphan, no second driver, and the stream goes on."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from infra import process
from infra.dagster import DAEMON, WEBSERVER, Dagster
from ops import control
from ops.cli.context import DAGSTER_MODULE, dagster_yaml, stack_environment
from pipelines.metastore.embedded import deploy, want
from pipelines.registry import RUNNING, STOPPED, Registry
from pipelines.settings import Settings
from tests.support.feed import SQL, Feed, create_topic
from tests.support.stores import all_differences

LAUNCH = """mutation Launch($job: String!, $config: RunConfigData!, $location: String!, $repository: String!) {
  launchRun(executionParams: {runConfigData: $config, selector: {jobName: $job,
    repositoryLocationName: $location, repositoryName: $repository}}) {
    __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }"""
RUNS = "{ runsOrError(limit: 20) { ... on Runs { results { runId status jobName tags { key value } } } } }"
REPOSITORIES = "{ repositoriesOrError { ... on RepositoryConnection { nodes { name location { name } } } } }"


def await_(what: str, found: Callable[[], Any], timeout_s: float = 180) -> Any:
    """The first true answer."""
    deadline = time.monotonic() + timeout_s
    while not (answer := found()):
        assert time.monotonic() < deadline, f"{what} did not happen in {timeout_s} s"
        time.sleep(0.1)
    return answer


class Watched:
    """A Dagster over one service, and the pipeline that it looks after."""

    def __init__(self, settings: Settings, feed: Feed) -> None:
        self.settings, self.feed, self.name = settings, feed, feed.topic
        self.registry = Registry(settings.metastore)
        self.dagster = Dagster(settings.home / "dagster", settings.home / "logs", settings.home / "run")
        deploy(SQL.format(topic=feed.topic), self.name, settings, self.registry)

    def start(self) -> list[str]:
        return self.dagster.start(module=DAGSTER_MODULE, config=dagster_yaml(), env=self._env())

    def _env(self) -> dict[str, str]:
        return {**stack_environment(self.settings), "PYTHONPATH": str(Path(__file__).parents[2])}

    def ask(self, query: str, **variables: Any) -> Any:
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(f"{self.dagster.url}/graphql", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)["data"]

    def click(self, job: str, op: str) -> None:
        """What the launchpad's button does."""
        [repository] = self.ask(REPOSITORIES)["repositoriesOrError"]["nodes"]
        config = {"ops": {op: {"config": {"pipeline": self.name}}}}
        where = {"location": repository["location"]["name"], "repository": repository["name"]}
        told = self.ask(LAUNCH, job=job, config=config, **where)["launchRun"]
        assert "LaunchRunSuccess" == told["__typename"], told

    def runs(self) -> list[dict[str, Any]]:
        return self.ask(RUNS)["runsOrError"]["results"]  # type: ignore[no-any-return]

    def worker(self) -> int | None:
        """Pid of the process that works on the newest run."""
        for run in self.runs():
            for tag in run["tags"]:
                if tag["key"] == "rollforward/worker" and run["status"] == "STARTED":
                    return int(tag["value"].split("/")[1])
        return None

    def driver(self) -> int | None:
        row = self.registry.driver(self.name)
        return row.pid if row is not None and control.is_alive(row) else None

    def state(self) -> str:
        return control.status(self.registry, self.name).state

    def drivers(self) -> list[int]:
        """Every process that runs the pipeline's driver."""
        found = []
        for one in psutil.process_iter(["cmdline"]):
            words = one.info["cmdline"] or []
            if words[-2:] == ["pipelines.driver", self.name] and one.status() != psutil.STATUS_ZOMBIE:
                found.append(one.pid)
        return found

    def caught_up(self) -> bool:
        newest = self.registry.newest_batches(self.name)
        return bool(newest) and sum(end for _, end in newest[0].offsets.values()) == self.feed.sent

    def close(self) -> None:
        self.dagster.stop()
        for pid in self.drivers():
            psutil.Process(pid).kill()
        self.registry.close()


@pytest.fixture
def watched(settings: Settings, kafka: str, unique: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    create_topic(kafka, unique)
    monkeypatch.delenv("ROLLFORWARD_CONFIG", raising=False)
    watched = Watched(settings.model_copy(update={"tasks": 2, "store_servers": 1}), Feed(kafka, unique, seed=11))
    yield watched
    watched.close()


@pytest.mark.timeout(600)
def test_dagster_may_die_at_any_time(watched: Watched, record_property: Callable[[str, object], None]) -> None:
    watched.feed.send(500)
    want(watched.name, RUNNING, watched.settings, watched.registry)
    assert {DAEMON, WEBSERVER} == set(watched.start())

    # The sensor's run has started the driver and waits for it: now the worker and the daemon die.
    driver = await_("a driver", watched.driver)
    worker = await_("the run's worker", watched.worker)
    os.kill(worker, signal.SIGKILL)
    record = process.read_record(watched.dagster.record(DAEMON))
    assert record is not None
    os.kill(record.pid, signal.SIGKILL)
    await_("the stream goes on", watched.caught_up)
    assert [driver] == watched.drivers()

    # Another daemon finds the driver and starts none; the dead worker's run is ended and blocks nothing.
    watched.feed.send(500)
    assert [DAEMON] == watched.start()
    await_("the stream goes on", watched.caught_up)
    await_("the dead run is ended", lambda: all(run["status"] not in ("STARTED", "STARTING") for run in watched.runs()))
    assert [driver] == watched.drivers()

    # The driver dies: one recovery run, whose worker dies in the middle too, and one driver.
    began = time.monotonic()
    os.kill(driver, signal.SIGKILL)
    second = await_("another driver", lambda: watched.driver() not in (None, driver) and watched.driver())
    await_("the driver runs", lambda: watched.state() == "running")
    watched.feed.send(500)
    await_("the stream goes on", watched.caught_up)
    record_property("kill_to_output_s", round(time.monotonic() - began, 1))
    print(f"driver killed to new committed output: {time.monotonic() - began:.1f} s")
    assert [second] == watched.drivers()

    # Paused and resumed with the buttons of the user interface.
    await_("no run at work", lambda: all(run["status"] not in ("STARTED", "STARTING") for run in watched.runs()))
    watched.click("stop_pipeline", "stop")
    await_("paused", lambda: watched.state() == "stopped" and not watched.drivers())
    assert STOPPED == watched.registry.pipeline(watched.name).desired
    watched.feed.send(500)
    watched.click("launch_pipeline", "launch")
    await_("resumed", watched.caught_up)
    assert 1 == len(watched.drivers())
    assert [] == all_differences(watched, watched.feed)  # type: ignore[arg-type]
