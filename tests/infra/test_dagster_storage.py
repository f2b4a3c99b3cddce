"""Dagster's storage is made by one process: two that make it at once can leave it with two revisions, for good."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

import psutil
import pytest

from infra import process
from infra.dagster import DAEMON, STORAGE, WEBSERVER, Dagster
from infra.errors import StartFailed
from tests.support.waiting import await_

DEFINITIONS = Path(__file__).parent / "definitions"
DATABASES = ("history/runs.db", "history/runs/index.db", "schedules/schedules.db")


@pytest.fixture
def dagster(tmp_path: Path, leftovers: Callable[[], list[int]]) -> Iterator[Dagster]:
    dagster = Dagster(home=tmp_path / "dagster", logs=tmp_path / "logs", records=tmp_path / "run")
    yield dagster
    dagster.stop()


def start(dagster: Dagster, config: Path = DEFINITIONS / "dagster.yaml") -> list[str]:
    return dagster.start(
        module="tiny_definitions",
        config=config,
        env={"PYTHONPATH": str(DEFINITIONS)},
    )


def revisions(dagster: Dagster) -> list[list[str]]:
    found = []
    for name in DATABASES:
        connection = sqlite3.connect(dagster.home / name)
        found.append([row[0] for row in connection.execute("select version_num from alembic_version")])
        connection.close()
    return found


def begun(dagster: Dagster) -> bool:
    return (dagster.home / DATABASES[0]).exists()


def test_the_storage_is_made_once_for_each_configuration_and_before_the_two_start(
    dagster: Dagster, tmp_path: Path
) -> None:
    assert [DAEMON, WEBSERVER] == start(dagster)
    assert [1, 1, 1] == [len(each) for each in revisions(dagster)]
    assert version("dagster") == (dagster.home / "storage").read_text().split()[0]
    assert process.read_record(dagster.record(STORAGE)) is None
    written = dagster.log(STORAGE).read_bytes()
    dagster.stop()
    assert [DAEMON, WEBSERVER] == start(dagster)
    assert written == dagster.log(STORAGE).read_bytes(), "made again"
    dagster.stop()
    other = tmp_path / "dagster.yaml"
    other.write_text((DEFINITIONS / "dagster.yaml").read_text() + "\n# another\n")
    start(dagster, other)
    assert len(written) < dagster.log(STORAGE).stat().st_size


def test_the_storage_is_whole_after_its_maker_and_the_command_were_killed(dagster: Dagster) -> None:
    command = multiprocessing.get_context("spawn").Process(target=start, args=(dagster,))
    command.start()
    await_("the making of the storage", lambda: begun(dagster))
    record = process.read_record(dagster.record(STORAGE))
    assert record is not None
    assert command.pid is not None
    os.kill(command.pid, signal.SIGKILL)
    command.join()
    for victim in [*psutil.Process(record.pid).children(recursive=True), psutil.Process(record.pid)]:
        victim.kill()
    assert not (dagster.home / "storage").exists()
    start(dagster)
    (revision,) = {tuple(each) for each in revisions(dagster)}
    assert 1 == len(revision)


def test_a_storage_that_cannot_be_opened_stops_the_start_and_says_why(dagster: Dagster) -> None:
    database = dagster.home / DATABASES[0]
    database.parent.mkdir(parents=True)
    database.write_text("not a database")
    with pytest.raises(StartFailed, match=r"dagster-storage ended while starting:(.|\n)*file is not a database"):
        start(dagster)
