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
def points(tmp_path: Path) -> Path:
    """Where failpoints are armed."""
    folder = tmp_path / "points"
    folder.mkdir()
    return folder


def run(feed: Input, folder: Path, points: Path) -> tuple[int, dict[str, Any]]:
    """Run the program until its input ends or it is killed; gives exit status and what its stores hold."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.counting", feed.bootstrap, feed.application, str(folder)],
        env={**os.environ, "ROLLFORWARD_FAILPOINTS": str(points), "PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=Path(__file__).parents[3],
        stdout=subprocess.PIPE,
        check=False,
        timeout=120,
    )
    return done.returncode, json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {}


@pytest.mark.timeout(900)
def test_a_program_killed_at_every_step_loses_and_repeats_nothing(feed: Input, tmp_path: Path, points: Path) -> None:
    for point in PROGRAM_POINTS:
        feed.send(40)
        if point == "program.in-restore":
            # So that every store has something to restore.
            arm(points, "program.committed")
            assert -signal.SIGKILL == run(feed, tmp_path / "state", points)[0]
        arm(points, point, passes=_PASSES.get(point, 0))
        assert -signal.SIGKILL == run(feed, tmp_path / "state", points)[0], point
        assert not is_armed(points, point)
        status, content = run(feed, tmp_path / "state", points)
        assert 0 == status, point
        assert {name: dict(feed.sent) for name in _EVERY} == content, point
        assert feed.expected_outputs() == feed.outputs(), point
