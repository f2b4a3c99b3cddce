"""A pipeline that a real Dagster looks after, and what a person can see and click of it."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import psutil

from infra.dagster import Dagster
from ops import control
from ops.cli.context import DAGSTER_MODULE, dagster_yaml, stack_environment
from pipelines.metastore.embedded import deploy
from pipelines.registry import Registry
from pipelines.settings import Settings
from tests.support.feed import SQL, Feed

LAUNCH = """mutation Launch($job: String!, $config: RunConfigData!, $location: String!, $repository: String!) {
  launchRun(executionParams: {runConfigData: $config, selector: {jobName: $job,
    repositoryLocationName: $location, repositoryName: $repository}}) {
    __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }"""
RUNS = "{ runsOrError(limit: 20) { ... on Runs { results { runId status jobName tags { key value } } } } }"
REPOSITORIES = "{ repositoriesOrError { ... on RepositoryConnection { nodes { name location { name } } } } }"


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
        return self.ask(RUNS)["runsOrError"]["results"]

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
