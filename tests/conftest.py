"""Fixtures of every suite: one broker a session, started by our own local stack from the same jars as everybody's."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from pyspark.sql import SparkSession

from infra.stack import Stack
from ops.environment import with_spark
from pipelines.engine.spark import start_session
from pipelines.settings import Settings
from tests.support.own_broker import own_broker
from tests.support.pipeline import settings_for
from tests.support.s3 import MinistackServer, S3ProxyServer

# How long one example takes says nothing on a machine that does other work as well.
hypothesis.settings.register_profile("rollforward", deadline=None)
hypothesis.settings.load_profile("rollforward")

# Half of what a start of a driver costs is Spark's, and most tests' batches are small. Those of crashes ask for it.
os.environ.setdefault("ROLLFORWARD_SPARK_START", "when-needed")


def pytest_configure() -> None:
    """The same whether the suite runs in a shell's background or not.

    `&` has SIGINT ignored, Dagster gives SIGTERM the disposition of SIGINT (`setup_interrupt_handlers`), and what is
    ignored stays so in every child: none of theirs could be ended.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A local stack with a broker."""
    with own_broker(tmp_path_factory.mktemp("stack")) as stack:
        yield stack


@pytest.fixture(scope="session")
def kafka(stack: Stack) -> str:
    """Bootstrap servers of the session's broker."""
    return stack.status().bootstrap_servers or ""


@pytest.fixture(scope="session")
def machine() -> Settings:
    """Settings with Java and its class archive found."""
    return with_spark(Settings(bootstrap_servers="unused:1"))


@pytest.fixture(scope="module")
def spark(machine: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Spark as a driver starts it."""
    session = start_session(machine, "test", tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture(scope="module", autouse=True)
def no_session_is_left() -> Iterator[None]:
    """Whoever asks Spark for a session gets the one that the process has, whatever its settings are."""
    yield
    session = SparkSession.getActiveSession()
    if session is not None:
        session.stop()


@pytest.fixture
def settings(tmp_path: Path, kafka: str, machine: Settings) -> Settings:
    """Settings of a pipeline of its own on the session's broker."""
    return settings_for(
        tmp_path / "home",
        kafka,
        java_home=machine.java_home,
        class_archive=machine.class_archive,
        batch_interval_s=0.2,
        # Tests start many short drivers: the quick compiler alone halves the CPU of a start.
        spark_conf={"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"},
    )


@pytest.fixture(scope="session")
def s3proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3ProxyServer]:
    server = S3ProxyServer(tmp_path_factory.mktemp("s3proxy"))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def ministack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MinistackServer]:
    server = MinistackServer(tmp_path_factory.mktemp("ministack"))
    yield server
    server.stop()


@pytest.fixture
def unique() -> str:
    """A name that no other test uses."""
    return f"t{os.getpid()}_{uuid.uuid4().hex[:8]}"


@pytest.fixture
def points(tmp_path: Path) -> Path:
    """Where failpoints are armed."""
    folder = tmp_path / "points"
    folder.mkdir()
    return folder
