"""Records per second, CPU per record and cold start of each system on each workload, interleaved over rounds."""

from __future__ import annotations

import time
from pathlib import Path

from tests.benchmarks import topics
from tests.benchmarks.outputs import Expected
from tests.benchmarks.progress import Window, watch
from tests.benchmarks.rounds import Figures, Found, Tell, interleaved
from tests.benchmarks.systems import Broker, System
from tests.benchmarks.workloads import Workload

# Of each run's records; young JVMs take three times as long for the first million as for the third.
WARM_UP_SHARE = 0.4
RUN_TIMEOUT_S = 3_600.0
# Longer than any commit interval here.
SETTLED_S = 5.0
UNITS = {
    "records_per_s": "records/s",
    "cpu_us_per_record": "µs",
    "commit_interval_s": "s",
    "first_commit_s": "s",
    "records": "records",
    "whole_run_records_per_s": "records/s",
}


def measure(system: System, records: int, expected: dict[str, Expected]) -> Figures:
    """One run over the topic's `records`. The results are read and compared before the figures are given."""
    system.prepare()
    system.start()
    watched = watch(
        system.committed,
        system.cpu_meter,
        system.require_alive,
        warm_up=int(records * WARM_UP_SHARE),
        total=records,
        timeout_s=RUN_TIMEOUT_S,
    )
    await_settled(system)
    system.require_correct(expected)
    cold = {"first_commit_s": watched.first_commit_s, "whole_run_records_per_s": records / watched.whole_s}
    return {**(steady_figures(watched.steady) if watched.steady else {}), **cold}


def steady_figures(window: Window) -> Figures:
    """Rates of a run's steady state; CPU by kind of process where there are several kinds."""
    per_record = {kind: spent / window.records * 1e6 for kind, spent in window.cpu.items()}
    return {
        "records_per_s": window.records / window.seconds,
        "cpu_us_per_record": sum(per_record.values()),
        **{f"cpu_us_per_record_{kind}": spent for kind, spent in per_record.items() if len(per_record) > 1},
        "commit_interval_s": window.seconds / window.commits,
        "records": float(window.records),
    }


def await_settled(system: System, timeout_s: float = 120) -> None:
    """Wait until nothing comes out any more, for systems whose progress over two stages is known to a few records."""
    deadline = time.monotonic() + timeout_s
    before = -1
    while system.inner_topics() and before != (now := topics.end_offsets(system.broker.bootstrap, system.run)):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{system.name} goes on writing without input")
        before = now
        time.sleep(SETTLED_S)


class Input:
    """Topics of one workload, filled when they are first needed: a slow system gets a shorter one."""

    def __init__(self, bootstrap: str, workload: Workload, asked: int, tell: Tell) -> None:
        self._bootstrap = bootstrap
        self._workload = workload
        self._asked = asked
        self._tell = tell
        self._made: dict[int, dict[str, Expected]] = {}
        self.prefix = f"source-{workload.name}-"

    def of(self, system: type[System]) -> tuple[str, int, dict[str, Expected]]:
        """The topic for a system, how many records it has, and the right results."""
        most = self._asked if system.most is None else min(self._asked, system.most)
        records = self._workload.records(most)
        topic = f"{self.prefix}{records}"
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
    tell: Tell,
) -> Found:
    """Figures of each round by system, or why there are none."""
    source = Input(broker.bootstrap, workload, records, tell)

    def one(kind: type[System], run: str) -> Figures:
        topic, count, expected = source.of(kind)
        system = kind(broker, workload, topic, run, folder / run)
        try:
            return measure(system, count, expected)
        finally:
            system.close()
            system.remove()

    found = interleaved(workload.name, systems, rounds, one, tell)
    topics.delete_all_of(broker.bootstrap, source.prefix)
    return found
