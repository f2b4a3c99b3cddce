"""A metastore with rows as drivers and deploys write them, a Dagster instance, and a process that passes for a driver."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import psutil
import pytest

from ops.environment import settings_now
from pipelines.metastore.embedded import metastore
from pipelines.plan import query_to_json
from pipelines.registry import RUNNING, STOPPED, Registry
from pipelines.sql import parse_pipeline
from tests.support.batches import batch_row
from tests.support.metastore import LocalLog, spoil

SQL = """
CREATE STREAM events (city VARCHAR, amount INT) WITH (kafka_topic = '{topic}', value_format = 'json');
CREATE TABLE {table} AS SELECT city, COUNT(*) AS n, AVG(amount) AS mean FROM events GROUP BY city EMIT CHANGES;
"""


class World:
    """One home with its metastore."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.service = f"t{uuid.uuid4().hex}"
        self.url = f"sqlite:///{home / 'metastore.db'}"
        self._registry: Registry | None = None

    @property
    def registry(self) -> Registry:
        """Made when first asked for, so that a test can begin without any."""
        self._registry = self._registry or Registry(self.url)
        return self._registry

    @property
    def log(self) -> LocalLog:
        """Where definitions are written."""
        return LocalLog(self.registry.engine, self.service)

    def deploy(self, name: str, *, topic: str = "events", table: str = "cities", desired: str = STOPPED) -> None:
        """What a deploy leaves in the metastore."""
        sql = SQL.format(topic=topic, table=table)
        parsed = parse_pipeline(sql, pipeline=name)
        self.log.define(
            name,
            sql=sql,
            sources=[{"name": source.name, "topic": source.topic} for source in parsed.sources],
            queries=[
                {"plan": query_to_json(query), "batches_topic_id": "b", "changelog_topic_id": "c"}
                for query in parsed.queries
            ],
            desired=desired,
        )

    def connect(self, kafka: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Put what is deployed into a command log on this broker, for statements that have to be written."""
        monkeypatch.setenv("ROLLFORWARD_BOOTSTRAP_SERVERS", kafka)
        with metastore(settings_now()) as opened:
            opened.restore_from_here()

    def spoil(self, name: str, queries: str) -> None:
        """Overwrite a pipeline's queries with other text."""
        spoil(self.registry.engine, name, queries)

    def add_batches(self, pipeline: str, count: int, *, first: int = 0, query: str = "cities") -> None:
        """Finished batches, the newest an hour old."""
        for batch in range(first, first + count):
            self.registry.add_batch(
                batch_row(
                    pipeline,
                    query,
                    batch,
                    records=1000 + batch,
                    dead_letters=1,
                    changed_keys=10,
                    seconds=0.5,
                    commit_seconds=0.02,
                    lag=7,
                    state_keys=10 + batch,
                    state_bytes=100 + batch,
                    offsets={"0": [batch, batch + 1]},
                    finished_at=time.time() - 3600,
                )
            )

    def driver_row(
        self, pipeline: str, process: psutil.Process, *, state: str = "running", error: str = "", host: str = ""
    ) -> None:
        """The row of a driver that is the given process, on this machine or, as far as the row says, another."""
        self.log.desire(pipeline, RUNNING)
        created, host = process.create_time(), host or socket.gethostname()
        self.registry.driver_started(pipeline, pid=process.pid, process_started=created, host=host)
        self.registry.driver_seen(
            pipeline, pid=process.pid, process_started=created, host=host, state=state, error=error
        )

    def dead_driver(self, pipeline: str, *, state: str = "running", error: str = "") -> int:
        """A driver that ran and was killed; gives its pid."""
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        self.driver_row(pipeline, psutil.Process(child.pid), state=state, error=error)
        child.kill()
        child.communicate()
        return child.pid


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """An empty home that every entry point takes for its own; nothing is in it yet."""
    home = tmp_path / "home"
    monkeypatch.setenv("ROLLFORWARD_HOME", str(home))
    monkeypatch.setenv("ROLLFORWARD_CONFIG", "/dev/null")
    for name in ("ROLLFORWARD_BOOTSTRAP_SERVERS", "ROLLFORWARD_METASTORE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ROLLFORWARD_OBSERVE_EVERY_S", "0")
    world = World(home)
    monkeypatch.setenv("ROLLFORWARD_SERVICE", world.service)
    yield world


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    """A Dagster of its own, on disk."""
    with dg.instance_for_test() as instance:
        yield instance


@pytest.fixture
def living_driver() -> Iterator[psutil.Process]:
    """A process that lives as long as the test."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield psutil.Process(child.pid)
    child.kill()
    child.communicate()
