"""Compiled functions are kept for other processes, and work where there is no place for that, too."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from statestore.compiled import compiled, fixed

PROGRAM = """
import sys
sys.path.insert(0, {folder!r})
from loop import total
print(total(10), sum(total.stats.cache_hits.values()))
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


def run(folder: Path, before: str = "") -> str:
    """What the program prints, which takes the function from its module: its result and how often its code was kept."""
    env = {
        **os.environ,
        "NUMBA_CACHE_DIR": str(folder / "kept"),
        "PYTHONPATH": os.pathsep.join(sys.path),
        # Where files can have no room Python itself would leave a part of the module's bytecode, and fail of it next time.
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    ended = subprocess.run(
        [sys.executable, "-c", before + PROGRAM.format(folder=str(folder))],
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip().splitlines()[-1]


def test_machine_code_is_kept_for_other_processes(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(LOOP)
    assert run(tmp_path) == "45 0"
    assert run(tmp_path) == "45 1"


@pytest.mark.parametrize("ending", ["nbi", "nbc"])
@pytest.mark.parametrize("damage", [b"", b"\0" * 3_000, b"rubbish"])
def test_damaged_machine_code_is_made_again(tmp_path: Path, ending: str, damage: bytes) -> None:
    (tmp_path / "loop.py").write_text(LOOP)
    assert run(tmp_path) == "45 0"
    [kept] = tmp_path.rglob(f"*.{ending}")
    kept.write_bytes(damage)
    assert run(tmp_path) == "45 0"
    assert run(tmp_path) == "45 1"


def test_machine_code_that_nobody_has_room_for_is_made_each_time(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(LOOP)
    full = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))"
    assert run(tmp_path, before=full) == "45 0"
    assert run(tmp_path, before=full) == "45 0"


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
