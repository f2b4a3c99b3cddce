"""A process killed at any step leaves each store at one committed version, with its offset, and the next goes on.

Every failpoint of the stores, and random moments: ROLLFORWARD_SEED replays those as far as a clock can.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from statestore.errors import TaskCorrupted
from statestore.failpoints import (
    DROP_POINTS,
    INDEXED_POINTS,
    SECONDARY_OPENING_POINTS,
    SECONDARY_POINTS,
    SPILL_POINTS,
    STORE_POINTS,
    STORE_RESTORE_POINTS,
    arm,
)
from statestore.kinds.key_value import KeyValue
from statestore.kinds.window import Window
from statestore.store import Isolation, TransactionalMechanism
from statestore.taskstores import TaskStores
from tests.statestore.crash_child import committed_rounds, content, stores
from tests.statestore.test_state_machine import chosen_seed

ROUNDS = 12
_RESTORE = STORE_RESTORE_POINTS + DROP_POINTS
_INDEXED = INDEXED_POINTS + _RESTORE
_SECONDARY = SECONDARY_POINTS + SECONDARY_OPENING_POINTS + _RESTORE
POINTS = [
    *(("indexed_batch", point) for point in _INDEXED),
    *(("secondary_store", point) for point in _SECONDARY),
    *(("auto", point) for point in STORE_POINTS),
    *(("direct", point) for point in _RESTORE),
]
TRANSACTIONAL = ("indexed_batch", "secondary_store", "auto")
# What has to have happened before for an opening to come to the point.
BEFORE = {
    "secondary.roll-forward": ["secondary.in-copy"],
    "secondary.discarded": ["secondary.synced"],
    "restore.before-write": ["indexed.before-write", "secondary.synced"],
    "restore.written": ["indexed.before-write", "secondary.synced"],
    "restore.ended": ["indexed.before-write", "secondary.synced"],
}


class Child:
    """The task of `crash_child`, one process after the other."""

    def __init__(self, folder: Path, mechanism: str, seed: int) -> None:
        self.folder, self.mechanism, self.seed = folder, mechanism, seed
        self.points = folder / "points"
        self.points.mkdir()

    def start(self, rounds: int = ROUNDS) -> subprocess.Popen[str]:
        environment = {
            **os.environ,
            "ROLLFORWARD_FAILPOINTS": str(self.points),
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        arguments = [str(self.folder), self.mechanism, str(self.seed), str(rounds)]
        command = [sys.executable, "-m", "tests.statestore.crash_child", *arguments]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    def dies_at(self, points: list[str], *, passes: int = 0) -> bool:
        """Run with these points armed; True if it died at one, False if it lived through all its rounds."""
        for point in points:
            arm(self.points, point, passes=passes)
        with self.start() as process:
            process.communicate(timeout=120)
        for point in points:
            (self.points / point).unlink(missing_ok=True)
        assert process.returncode in (0, -signal.SIGKILL)
        return process.returncode != 0

    def check(self, *, restored: bool = False) -> None:
        """Each store is at one committed version: at the last round, or, if that died on the way, at the one before.

        If it died while it was `restored` from nothing, at any. One without transactions says that it is of no version, or was never opened.
        """
        rounds = committed_rounds(self.folder)
        mechanism = None if self.mechanism == "direct" else TransactionalMechanism(self.mechanism)
        if mechanism is not None and not restored:
            rounds = rounds[-2:]
        copy = self.folder / "copy"
        shutil.copytree(self.folder / "task", copy)
        task = TaskStores(copy)
        for name, store in stores(mechanism).items():
            try:
                store.init(task)
            except TaskCorrupted:
                assert mechanism is None
                continue
            offset = store.recover(None)
            (found,) = (done for done in rounds if done.offsets[name] == (offset or 0))
            assert found.contents[name] == content(store)
            assert isinstance(store, KeyValue | Window)
            assert list(store.all(Isolation.READ_COMMITTED)) == list(store.all())
        task.close()
        shutil.rmtree(copy)

    def goes_on(self) -> None:
        """A process that nobody kills does its rounds, and everything ends at the last of them."""
        last = committed_rounds(self.folder)[-1].number
        assert not self.dies_at([])
        self.check()
        assert last + ROUNDS == committed_rounds(self.folder)[-1].number


@pytest.mark.parametrize(
    ("mechanism", "point"),
    # Of "auto" spilling is its own; its other points are those of the mechanism that it chooses.
    [
        pytest.param(*at, marks=pytest.mark.slow if at[0] == "auto" and at[1] not in SPILL_POINTS else ())
        for at in POINTS
    ],
)
def test_a_store_killed_at_a_failpoint_is_at_one_version_and_goes_on(
    tmp_path: Path, mechanism: str, point: str
) -> None:
    child = Child(tmp_path, mechanism, seed=1)
    if mechanism == "direct":
        # Only an opening that finds nothing restores it.
        assert not child.dies_at([])
        shutil.rmtree(tmp_path / "task")
    elif point in BEFORE:
        assert child.dies_at([other for other in BEFORE[point] if (mechanism, other) in POINTS], passes=1)
        child.check()
    assert child.dies_at([point], passes=0 if point in BEFORE else 1)
    child.check()
    child.goes_on()


@pytest.mark.parametrize("point", _RESTORE)
@pytest.mark.parametrize("mechanism", ["", *(pytest.param(one, marks=pytest.mark.slow) for one in TRANSACTIONAL)])
def test_a_store_killed_while_it_is_restored_from_nothing_is_at_one_version_and_goes_on(
    tmp_path: Path, mechanism: str, point: str
) -> None:
    # In turns, so that each has some of the points.
    turn = _RESTORE.index(point) + chosen_seed()
    mechanism = mechanism or TRANSACTIONAL[turn % len(TRANSACTIONAL)]
    child = Child(tmp_path, mechanism, seed=2)
    assert not child.dies_at([])
    shutil.rmtree(tmp_path / "task")
    # Segments are dropped after the write that leaves them behind.
    assert child.dies_at([point], passes=1)
    child.check(restored=True)
    child.goes_on()


@pytest.mark.parametrize("kills", [10, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
def test_a_store_killed_at_random_moments_is_at_one_version_and_goes_on(tmp_path: Path, kills: int) -> None:
    choose = random.Random(chosen_seed())
    mechanisms = ["direct", *TRANSACTIONAL]
    children = []
    for mechanism in mechanisms:
        (tmp_path / mechanism).mkdir()
        children.append(Child(tmp_path / mechanism, mechanism, choose.randrange(1000)))
    for number in range(kills):
        child = children[number % len(children)]
        with child.start(rounds=100_000) as process:
            if choose.random() < 0.8:
                assert process.stdout is not None
                assert "recovered\n" == process.stdout.readline()
            # The moment is what is random here: nothing is waited for.
            time.sleep(choose.uniform(0, 0.4))
            process.kill()
        assert -signal.SIGKILL == process.returncode
        child.check()
    for child in children:
        child.goes_on()
