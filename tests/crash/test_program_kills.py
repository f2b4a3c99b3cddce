"""SIGKILL at every step of a program's own loop: outputs and stores equal the model each time.

The program is a process of its own, with a store of every mechanism; the next one finds what the killed one left.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from statestore.failpoints import PROGRAM_POINTS, arm, is_armed
from tests.support.counting import Input

_EVERY = ("direct", "indexed", "secondary", "auto", "memory", "windows", "cached")
# How often a point is passed before it kills: more than one commit, and the second half of a step that is passed often.
_PASSES = {"program.taken": 30, "program.in-send": 100, "program.in-apply": 10}


@pytest.fixture
def counted(kafka: str, unique: str) -> Input:
    """Input, output and model of the program."""
    return Input(kafka, unique)


def run(counted: Input, folder: Path, points: Path) -> tuple[int, dict[str, Any]]:
    """Run the program until its input ends or it is killed; gives exit status and what its stores hold."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.counting", counted.bootstrap, counted.application, str(folder)],
        env={**os.environ, "ROLLFORWARD_FAILPOINTS": str(points), "PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        check=False,
        timeout=120,
    )
    return done.returncode, json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {}


# Every point costs two processes: the short form takes those with the hardest outcomes.
SHORT = ("program.in-restore", "program.begun", "program.offsets-sent", "program.committed", "program.in-apply")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("at", [SHORT, pytest.param(PROGRAM_POINTS, marks=pytest.mark.slow)], ids=["short", "all"])
def test_a_program_killed_at_a_step_loses_and_repeats_nothing(
    counted: Input, tmp_path: Path, points: Path, at: tuple[str, ...]
) -> None:
    for point in at:
        counted.send(40)
        if point == "program.in-restore":
            # So that every store has something to restore.
            arm(points, "program.committed")
            assert -signal.SIGKILL == run(counted, tmp_path / "state", points)[0]
        arm(points, point, passes=_PASSES.get(point, 0))
        assert -signal.SIGKILL == run(counted, tmp_path / "state", points)[0], point
        assert not is_armed(points, point)
        status, content = run(counted, tmp_path / "state", points)
        assert 0 == status, point
        assert {name: dict(counted.sent) for name in _EVERY} == content, point
        assert counted.expected_outputs() == counted.outputs(), point
