"""SIGKILL at every step of a program's own loop: outputs and stores equal the model each time.

The program is a process of its own, with a store of every mechanism; the next one finds what the killed one left.
"""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path

import pytest

from statestore.failpoints import PROGRAM_POINTS, arm, is_armed
from tests.support.child import run_program
from tests.support.counting import Input

run = partial(run_program, "tests.support.counting")
_EVERY = ("direct", "indexed", "secondary", "auto", "memory", "windows", "cached")
# How often a point is passed before it kills: more than one commit, and the second half of a step that is passed often.
_PASSES = {"program.taken": 30, "program.in-send": 100, "program.in-apply": 10}


@pytest.fixture
def counted(kafka: str, unique: str) -> Input:
    """Input, output and model of the program."""
    return Input(kafka, unique)


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
