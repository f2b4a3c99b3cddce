"""A short form of the matrix: the whole of it is `make crash-matrix`."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest

from pipelines.settings import AT_ONCE
from tests.crash.matrix.bench import Bench
from tests.crash.matrix.run import run

# By whether the driver computes small batches itself.
SHORT = {False: ("kill-server",), True: ("kill-driver",)}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("small", SHORT)
def test_faults_change_nothing(tmp_path: Path, small: bool) -> None:
    seed = int(os.environ.get("ROLLFORWARD_SEED", "20261121"))
    print(f"seed {seed}; replay with ROLLFORWARD_SEED={seed}")
    with closing(Bench(tmp_path, seed, small=small, spark_start="when-needed" if small else AT_ONCE)) as bench:
        outcomes = run(bench, SHORT[small], seed)
    assert [(name, ()) for name in SHORT[small]] == [(outcome.fault, outcome.problems) for outcome in outcomes]
