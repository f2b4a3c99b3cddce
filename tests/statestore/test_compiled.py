"""Compiled functions are kept for other processes, and work where there is no place for that, too."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from statestore.compiled import compiled, fixed

PROGRAM = """
import sys
sys.path.insert(0, {folder!r})
from loop import total
print(total(10))
"""
LOOP = """
from statestore.compiled import compiled

@compiled
def total(count):
    found = 0
    for number in range(count):
        found += number
    return found
"""


def run(folder: Path, cache: str) -> tuple[str, str]:
    env = {**os.environ, "NUMBA_CACHE_DIR": cache, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(folder=str(folder))],
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return ended.stdout.strip(), ended.stderr


def test_machine_code_is_kept_for_other_processes(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(LOOP)
    kept = tmp_path / "kept"
    assert run(tmp_path, str(kept)) == ("45", "")
    assert list(kept.rglob("*.nbi"))


def test_a_function_that_no_file_can_be_kept_for_is_compiled() -> None:
    found: dict[str, Callable[[int], int]] = {}
    exec("def double(number):\n    return 2 * number\n", {}, found)
    double = compiled(found["double"])
    assert double(21) == 42


def test_what_is_fixed_is_the_same_array_that_nobody_writes_to() -> None:
    written = np.arange(3)
    same = fixed(written)
    written[0] = 7
    assert (same.tolist(), same.flags.writeable, written.flags.writeable) == ([7, 1, 2], False, True)
