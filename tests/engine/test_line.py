"""Where queries are more than Spark's slots, each of them gets its turns, whatever it is called."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from typing import Any

import pytest

from pipelines.engine.line import Line
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


class Given:
    """What a thread that submits a job says of it."""

    def __init__(self) -> None:
        self.pools: list[str] = []

    def setLocalProperty(self, name: str, value: str) -> None:
        assert name == "spark.scheduler.pool"
        self.pools.append(value)


def test_nobody_of_a_new_round_overtakes_one_of_the_last() -> None:
    context, line, ended = Given(), Line(pools=2), threading.Event()
    spark: Any = context

    def next_round() -> None:
        with line.place(spark):
            ended.set()

    with line.place(spark):
        with line.place(spark):
            pass
        waiting = threading.Thread(target=next_round, daemon=True)
        waiting.start()
        # Long jobs wait for no round, and none for them.
        with line.place(spark, long=True):
            assert not ended.wait(0.3)
    assert ended.wait(10)
    waiting.join()
    assert ["001", "002", "000", "001"] == context.pools
