"""A short form of the matrix: the whole of it is `make crash-matrix`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.crash.matrix.bench import Bench
from tests.crash.matrix.run import run

SHORT = ("kill-server", "kill-driver")


@pytest.mark.timeout(600)
def test_faults_change_nothing(tmp_path: Path) -> None:
    seed = int(os.environ.get("ROLLFORWARD_SEED", "20261121"))
    print(f"seed {seed}; replay with ROLLFORWARD_SEED={seed}")
    bench = Bench(tmp_path, seed)
    try:
        outcomes = run(bench, SHORT, seed)
    finally:
        bench.close()
    assert [(name, ()) for name in SHORT] == [(outcome.fault, outcome.problems) for outcome in outcomes]
    assert outcomes[-1].views > 0
