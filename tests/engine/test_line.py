"""Where queries are more than Spark's slots, each of them gets its turns, whatever it is called."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from pipelines.settings import Settings
from tests.engine.line_child import QUERIES, WORK_S


@pytest.mark.timeout(300)
def test_no_query_is_starved(machine: Settings) -> None:
    # In a process of its own: a Spark of one slot must not be the next test's.
    ran = subprocess.run(
        [sys.executable, "-m", "tests.engine.line_child"],
        env={**os.environ, "JAVA_HOME": str(machine.java_home)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    done, longest_s = told["done"], told["longest_s"]
    assert min(done.values()) >= max(done.values()) / 2, told
    # A job waits for one of each other query, not for a whole round of the line.
    a_job_s = WORK_S / sum(done.values())
    assert max(longest_s.values()) < 4 * len(QUERIES) * a_job_s, told
