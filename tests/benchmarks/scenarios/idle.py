"""What a system costs that has nothing to do: CPU of its processes, and records that it writes all the same."""

from __future__ import annotations

import time

from tests.benchmarks import topics
from tests.benchmarks.rounds import Figures
from tests.benchmarks.scenarios.base import Options, await_committed
from tests.benchmarks.systems import System

KEYS = 10_000
# A start costs what it costs: compilers have settled by then, and our spare store server has been launched.
SETTLE_S = 45.0
UNITS = {"cpu_percent_of_a_core": "%", "records_written": "records"}


def measure(system: System, options: Options) -> Figures:
    """One run: the input is read, compilers have settled, then the time asked for without input."""

    def written() -> int:
        return topics.end_offsets(system.broker.bootstrap, system.run)

    system.start()
    await_committed(system, KEYS)
    time.sleep(SETTLE_S)
    meter, before, began = system.cpu_meter(), written(), time.monotonic()
    time.sleep(options.seconds)
    spent = meter.seconds()
    system.require_alive()
    return {
        "cpu_percent_of_a_core": 100 * spent / (time.monotonic() - began),
        "records_written": float(written() - before),
    }
