"""A long changelog is loaded from sorted files: every kind, every mechanism, killed at every step, is what was written."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from statestore import restore
from statestore.errors import Unavailable
from statestore.failpoints import DROP_POINTS, LOAD_COPY_POINTS, LOAD_EXPIRE_POINTS, LOAD_POINTS, arm
from statestore.kafka import blocks
from statestore.planning.plan import Way
from tests.statestore.test_state_machine import chosen_seed
from tests.support.loading import BLOCK, LOADED, MANY, MECHANISMS, RECORDS, Loading, State, config_for, create_input
from tests.support.waiting import await_

DROPPING = (*LOAD_EXPIRE_POINTS, *DROP_POINTS)
POINTS = (*LOAD_COPY_POINTS, *LOAD_POINTS, *DROPPING)
EARLY = 300
# Whether the folder is lost, or of an early commit.
BEGINNINGS = ("lost", "early")


class Written:
    """A closed task that has written everything, what it held, and its folder as it was after the first records."""

    def __init__(self, kafka: str, application: str, folder: Path, mechanism: str) -> None:
        self.mechanism, self.config = mechanism, config_for(kafka, application, folder / "state")
        # Kafka deletes windows by its own clock.
        self._begin_ms = time.time_ns() // 1_000_000
        create_input(self.config)
        self._early = folder / "early"
        self.points = folder / "points"
        self.points.mkdir()
        loading = self.loading()
        loading.task.open()
        loading.write(EARLY)
        loading.task.close()
        shutil.copytree(self.config.task_folder, self._early)
        loading.task.open()
        loading.write(RECORDS - EARLY)
        self.state, self.versions = loading.state(), loading.versions()
        loading.task.close()

    def loading(self) -> Loading:
        """The task, not opened."""
        return Loading(self.config, self.mechanism, begin_ms=self._begin_ms)

    def begin(self, beginning: str) -> None:
        """Lose the folder, or go back to the early one."""
        shutil.rmtree(self.config.task_folder, ignore_errors=True)
        if beginning == "early":
            shutil.copytree(self._early, self.config.task_folder)

    def dies_at(self, point: str, *, passes: int = 0) -> None:
        """Another process opens the task and is killed there."""
        arm(self.points, point, passes=passes)
        with self.opened_elsewhere() as process:
            assert -signal.SIGKILL == process.wait(300)

    def opened_elsewhere(self) -> subprocess.Popen[bytes]:
        """Another process that opens the task."""
        environment = {
            **os.environ,
            "ROLLFORWARD_FAILPOINTS": str(self.points),
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        about = [self.config.kafka.bootstrap_servers, self.config.application, str(self.config.folder), self.mechanism]
        command = [sys.executable, "-m", "tests.support.loading", *about]
        return subprocess.Popen(command, env=environment)

    def check(self, beginning: str) -> dict[str, Way]:
        """Open, compare, close; gives the ways."""
        loading = self.loading()
        loading.task.open()
        assert self.expected(beginning) == loading.state()
        assert self.versions == loading.versions()
        plans = loading.task.plans
        loading.task.close()
        ways = {name: plan.way for name, plan in plans.items()}
        beside = [path.name for path in self.config.task_folder.iterdir()]
        assert not [name for name in beside if name.endswith((".recovering", ".replaced"))]
        return ways

    def expected(self, beginning: str) -> State:
        # What has no changelog is gone with the folder, and with nothing else.
        return self.state if beginning == "early" else {**self.state, "unlogged": []}


@pytest.fixture
def written(kafka: str, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(restore, "LOAD_RECORDS_MIN", MANY)
    monkeypatch.setattr(blocks, "BLOCK_RECORDS", BLOCK)
    return lambda mechanism: Written(kafka, f"{unique}-{mechanism}", _made(tmp_path / mechanism), mechanism)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


@pytest.mark.parametrize("mechanism", ["", *(pytest.param(one, marks=pytest.mark.slow) for one in MECHANISMS)])
def test_what_is_loaded_is_what_was_written_and_goes_on(written: Any, mechanism: str) -> None:
    task: Written = written(mechanism or random.Random(chosen_seed()).choice(MECHANISMS))
    for beginning, way in (("early", Way.ROLL_FORWARD), ("lost", Way.FULL_REPLAY)):
        task.begin(beginning)
        ways = task.check(beginning)
        assert dict.fromkeys(LOADED, way) == {name: ways[name] for name in LOADED}
        assert set(task.check(beginning).values()) == {Way.NOTHING}
    loading = task.loading()
    loading.task.open()
    windows: Any = loading.stores["duplicates"]
    (last, before), at = list(windows.all())[-1], RECORDS
    loading.task.next_offset(task.config.inputs[0])
    loading.write(1)
    windows.put(last.key, b"one more", last.start_ms)
    # The sequence goes on: a value of the same key and window takes nobody's place.
    values = [value for _, value in windows.fetch(last.key, last.start_ms, last.start_ms)]
    assert before in values and b"one more" == values[-1]
    assert at + 1 == loading.task.next_offset(task.config.inputs[0])
    loading.task.close()


def beginnings(point: str) -> tuple[str, ...]:
    """Only an early folder is certain to have segments that the load leaves behind."""
    return ("early",) if point in DROPPING else BEGINNINGS


def killed(task: Written, beginning: str, point: str, passes: int) -> None:
    task.begin(beginning)
    task.dies_at(point, passes=passes if point == "load.in-build" else 0)
    task.check(beginning)


def test_killed_at_each_step_of_a_load(written: Any) -> None:
    choose = random.Random(chosen_seed())
    task: Written = written(choose.choice(MECHANISMS))
    for point in POINTS:
        killed(task, choose.choice(beginnings(point)), point, choose.randrange(2 * len(LOADED)))


@pytest.mark.parametrize("point", ["load.built", "load.before-rename"])
def test_a_folder_belongs_to_an_owner_that_is_paused_with_its_database_closed(written: Any, point: str) -> None:
    task: Written = written("indexed_batch")
    task.begin("early")
    arm(task.points, point, with_signal="SIGSTOP")
    with task.opened_elsewhere() as process:
        try:
            await_("a pause", lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
            with pytest.raises(Unavailable, match="another process has the task's folder open"):
                task.loading().task.open()
        finally:
            process.send_signal(signal.SIGCONT)
        process.wait(120)
    task.check("early")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_killed_at_each_step_of_a_load_of_each_mechanism(written: Any, mechanism: str) -> None:
    """Every kind is loaded by each of these, several files each."""
    task: Written = written(mechanism)
    for point in POINTS:
        for beginning in beginnings(point):
            for passes in range(0, 3 * len(LOADED), 2) if point == "load.in-build" else (0,):
                killed(task, beginning, point, passes)
