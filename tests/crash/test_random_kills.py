"""SIGKILL at random moments: a store server, a Spark Python worker, the driver's JVM, the driver itself."""

from __future__ import annotations

import os
import random
import time

import psutil
import pytest

from tests.crash.conftest import Start
from tests.support.feed import Feed
from tests.support.pipeline import PipelineUnderTest
from tests.support.stores import all_differences

# The costly ones, which end the driver, are rarer. 20 kills, and a short form of 6.
VICTIMS = ["server"] * 9 + ["worker"] * 6 + ["jvm"] * 2 + ["driver"] * 3
SHORT = ["server"] * 3 + ["worker"] + ["jvm"] + ["driver"]


def victim(pipeline: PipelineUnderTest, kind: str, choose: random.Random) -> int | None:
    """A process to kill; None if there is none of that kind just now."""
    assert pipeline.process is not None
    if kind == "driver":
        return pipeline.process.pid
    if kind == "server":
        return choose.choice(sorted(pipeline.server_pids()) or [0]) or None
    # The JVM is told the daemon's name on its command line, so the line alone would not tell them apart.
    jvms = [child for child in psutil.Process(pipeline.process.pid).children() if child.name() == "java"]
    if kind == "jvm" or not jvms:
        return jvms[0].pid if jvms else None
    found = [worker.pid for worker in jvms[0].children(recursive=True)]
    return choose.choice(sorted(found)) if found else None


@pytest.mark.timeout(900)
@pytest.mark.parametrize("victims", [SHORT, pytest.param(VICTIMS, marks=pytest.mark.slow)], ids=["short", "all"])
def test_random_kills_change_nothing(deploy: Start, feed: Feed, victims: list[str]) -> None:
    seed = int(os.environ.get("ROLLFORWARD_SEED", "20261121"))
    print(f"seed {seed}; replay with ROLLFORWARD_SEED={seed}")
    choose = random.Random(seed)
    pipeline = deploy()
    pipeline.start()
    pipeline.await_running()
    order = victims[:]
    choose.shuffle(order)
    for kind in order:
        feed.send(300)
        # The moment is what is random here: nothing is waited for.
        time.sleep(choose.uniform(0, 1.5))
        pid = victim(pipeline, kind, choose)
        if pid is not None and psutil.pid_exists(pid):
            os.kill(pid, 9)
        if kind in ("driver", "jvm"):
            assert pipeline.process is not None
            pipeline.process.wait(60)
            pipeline.await_no_orphans()
            pipeline.start()
            pipeline.await_running()
    pipeline.await_("input is processed", pipeline.caught_up(feed.sent))
    assert all_differences(pipeline, feed) == []
