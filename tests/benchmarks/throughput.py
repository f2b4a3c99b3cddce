"""Records per second, CPU per record and cold start of each system on each workload, interleaved over rounds."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.benchmarks import topics
from tests.benchmarks.outputs import Expected
from tests.benchmarks.progress import watch
from tests.benchmarks.systems import Broker, NotPossible, System
from tests.benchmarks.workloads import Workload

Figures = dict[str, float]
# Of each run's records; young JVMs take three times as long for the first million as for the third.
WARM_UP_SHARE = 0.4
RUN_TIMEOUT_S = 3_600.0
UNITS = {
    "records_per_s": "records/s",
    "cpu_us_per_record": "µs",
    "commit_interval_s": "s",
    "first_commit_s": "s",
    "records": "records",
}


def measure(system: System, records: int, expected: dict[str, Expected]) -> Figures:
    """One run over the topic's `records`. The results are read and compared before the figures are given."""
    system.prepare()
    try:
        system.start()
        window = watch(
            system.committed,
            system.cpu,
            system.require_alive,
            warm_up=int(records * WARM_UP_SHARE),
            total=records,
            timeout_s=RUN_TIMEOUT_S,
        )
        await_finished(system)
        system.require_correct(expected)
    finally:
        system.close()
    per_record = {kind: spent / window.records * 1e6 for kind, spent in window.cpu.items()}
    return {
        "records_per_s": window.records / window.seconds,
        "cpu_us_per_record": sum(per_record.values()),
        **{f"cpu_us_per_record_{kind}": spent for kind, spent in per_record.items() if len(per_record) > 1},
        "commit_interval_s": window.seconds / window.commits,
        "first_commit_s": window.first_commit_s,
        "records": float(window.records),
    }


def await_finished(system: System, timeout_s: float = 120) -> None:
    """Wait for what a system does behind its source's last commit."""
    deadline = time.monotonic() + timeout_s
    while not system.finished():
        system.require_alive()
        if time.monotonic() > deadline:
            raise TimeoutError(f"{system.name} did not finish")
        time.sleep(0.2)


class Input:
    """Topics of one workload, filled when they are first needed: a slow system gets a shorter one."""

    def __init__(self, bootstrap: str, workload: Workload, asked: int, tell: Callable[[str], None]) -> None:
        self._bootstrap = bootstrap
        self._workload = workload
        self._asked = asked
        self._tell = tell
        self._made: dict[int, dict[str, Expected]] = {}

    def of(self, system: type[System]) -> tuple[str, int, dict[str, Expected]]:
        """The topic for a system, how many records it has, and the right results."""
        records = self._workload.records(max(1, int(self._asked * system.share)))
        topic = f"source-{self._workload.name}-{records}"
        if records not in self._made:
            self._tell(f"filling {topic}")
            topics.create(self._bootstrap, topic)
            self._workload.fill(self._bootstrap, topic, records)
            self._made[records] = self._workload.expected(records)
        return topic, records, self._made[records]


def run_workload(
    broker: Broker,
    workload: Workload,
    systems: list[type[System]],
    *,
    records: int,
    rounds: int,
    folder: Path,
    tell: Callable[[str], None],
) -> dict[str, list[Figures] | str]:
    """Figures of each round by system, or why a system cannot do it. A wrong result is an error of the whole run."""
    source = Input(broker.bootstrap, workload, records, tell)
    found: dict[str, Any] = {}
    for number in range(rounds):
        for system in systems:
            if isinstance(found.get(system.name), str):
                continue
            topic, count, expected = source.of(system)
            run = "b_" + "_".join([workload.name, system.name, str(number), broker_run()]).replace("-", "_")
            try:
                figures = measure(system(broker, workload, topic, run, folder / run), count, expected)
            except NotPossible as reason:
                tell(f"{workload.name} {system.name}: {reason}")
                found[system.name] = str(reason)
                continue
            found.setdefault(system.name, []).append(figures)
            shown = ", ".join(f"{name} {value:,.1f}" for name, value in figures.items())
            tell(f"{workload.name} {system.name} round {number + 1}: {shown}")
    return found


def broker_run() -> str:
    """A part of names that differs between runs on a broker that outlives them."""
    return str(int(time.time()) % 1_000_000)
