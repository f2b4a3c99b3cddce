"""Every slow test is run by some target of the Makefile."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def recipe(target: str) -> str:
    """The commands of a target."""
    found = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def test_make_slow_runs_every_slow_test_that_make_crash_does_not() -> None:
    slow, crash = recipe("slow"), recipe("crash")
    left_out = set(re.findall(r"--ignore (\S+)", slow))
    assert left_out == set(re.findall(r"tests/\S+", crash))
    # Nothing but the marker chooses among the rest.
    assert re.sub(r" --ignore \S+", "", slow) == "\t@$(BIN)/python -m pytest -m slow --timeout 3600 $(TESTS)\n"
    assert '-m "slow or not slow"' in crash


def test_make_slow_runs_the_cluster_too() -> None:
    (cluster,) = re.findall(r"tests/\S+", recipe("crash-cluster"))
    assert [*(ROOT / cluster).glob("test_*.py")]
    assert not [left for left in re.findall(r"--ignore (\S+)", recipe("slow")) if cluster.startswith(left)]
