"""Python workers that are started ahead are those that the first batch finds."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil
import pyarrow as pa
from pyspark.sql import SparkSession

from pipelines.engine.spark import start_session, start_workers
from pipelines.names import SPARK_SOCKETS, socket_folder, spark_socket_folder
from pipelines.settings import Settings

DAEMON = "pipelines.engine.worker_daemon"


def daemons(session: SparkSession) -> set[int]:
    """Spark's Python daemons; the workers below them have their command line."""
    jvm = session.sparkContext._gateway.proc  # type: ignore[union-attr]
    return {child.pid for child in psutil.Process(jvm.pid).children() if _is_daemon(child)}


def _is_daemon(process: psutil.Process) -> bool:
    return process.status() != psutil.STATUS_ZOMBIE and DAEMON in process.cmdline()


def as_they_are(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def test_a_batch_uses_the_daemon_that_was_started_ahead(machine: Settings, tmp_path: Path) -> None:
    session = start_session(machine, "workers", tmp_path)
    try:
        # Those of an earlier session of this JVM end when they like.
        before = daemons(session)
        start_workers(session).join(timeout=60)
        [ahead] = daemons(session) - before
        assert [0, 1, 2] == [row.id for row in session.range(3).mapInArrow(as_they_are, "id long").collect()]
        assert {ahead} == daemons(session) - before
    finally:
        session.stop()


def test_workers_are_reached_by_private_unix_sockets_and_those_of_killed_processes_are_removed(
    machine: Settings, tmp_path: Path
) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        left = socket_folder() / f"{SPARK_SOCKETS}{ended.pid}"
    left.mkdir()
    session = start_session(machine, "workers", tmp_path)
    try:
        assert [0, 1] == [row.id for row in session.range(2).mapInArrow(as_they_are, "id long").collect()]
        mine = spark_socket_folder()
        assert all(path.is_socket() for path in mine.iterdir())
        assert any(mine.iterdir())
        assert 0o700 == mine.stat().st_mode & 0o777
        assert not left.exists()
    finally:
        session.stop()


def test_workers_that_do_not_start_ahead_end_nothing(machine: Settings, tmp_path: Path) -> None:
    session = start_session(machine, "workers", tmp_path)
    session.stop()
    start_workers(session).join(timeout=60)
