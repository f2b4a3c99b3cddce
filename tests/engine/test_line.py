"""Where queries are more than Spark's slots, each of them gets its turns, whatever it is called."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from pipelines.settings import Settings


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
    done = json.loads(ran.stdout)
    assert min(done.values()) >= max(done.values()) / 2, done
