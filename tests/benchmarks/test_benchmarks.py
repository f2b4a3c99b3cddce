"""The harness: from end to end on few records, and the parts that could make a wrong figure look right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from tests.benchmarks import document, report
from tests.benchmarks.__main__ import main
from tests.benchmarks.cpu import CpuMeter
from tests.benchmarks.outputs import WrongResult, require_equal
from tests.benchmarks.progress import watch
from tests.benchmarks.rounds import failures, interleaved
from tests.benchmarks.scenarios.latency import latencies_ms
from tests.benchmarks.scenarios.soak import growth
from tests.benchmarks.systems import SYSTEMS, System
from tests.benchmarks.workloads import WORKLOADS

RECORDS = 20_000
RUN = f"--workload key-totals-10000 --system rollforward kafka-streams --records {RECORDS} --batch 4000 --rounds 1"


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    """A folder with a document that has the markers."""
    (tmp_path / "benchmarks.md").write_text(f"prose\n\n{document.BEGIN}\n{document.END}\n\nmore prose\n")
    return tmp_path


def test_ours_and_kafka_streams_give_right_results_and_figures(docs: Path) -> None:
    main([*RUN.split(), "--docs", str(docs)])
    rows = report.read(docs / "benchmarks.json")
    assert all(row["value"] is not None for row in rows), rows
    for system in ("rollforward", "kafka-streams"):
        mine = {row["metric"]: row for row in rows if row["system"] == system}
        assert RECORDS > mine["whole_run_records_per_s"]["value"] > 0
        assert mine["first_commit_s"]["ratio_ours_to_this"] > 0
        assert f"make bench BENCH='{RUN} --docs {docs}'" == mine["first_commit_s"]["command"]
        assert {system, "kafka", "cores"} <= set(mine["first_commit_s"]["versions"])
    text = (docs / "benchmarks.md").read_text()
    assert text.startswith("prose\n\n")
    assert text.endswith("\n\nmore prose\n")
    assert "| kafka-streams | exactly-once |" in text


def test_a_wrong_missing_or_extra_row_is_refused() -> None:
    right = {"1": {"N": 2}, "2": {"N": 1}}
    require_equal("t", right, dict(right))
    for wrong in ({"1": {"N": 2}}, {**right, "3": {"N": 1}}, {**right, "2": {"N": 2}}):
        with pytest.raises(WrongResult):
            require_equal("t", right, wrong)


def test_a_doubled_record_of_a_stream_is_refused() -> None:
    right = pa.table({"A": [1, 2]})
    require_equal("s", right, pa.table({"A": [2, 1]}))
    with pytest.raises(WrongResult, match="3 records instead of 2"):
        require_equal("s", right, pa.table({"A": [1, 1, 2]}))


def test_a_wrong_column_or_value_of_a_stream_is_refused() -> None:
    right = pa.table({"A": [1, 2]})
    wrong_values = ([1, 3], [1, None], ["1", "2"], [1.0, 2.0])
    for wrong in (*(pa.table({"A": values}) for values in wrong_values), pa.table({"B": [1, 2]}), pa.table({})):
        with pytest.raises(WrongResult):
            require_equal("s", right, wrong)


@dataclass
class Counted:
    """A meter that has read this."""

    spent: dict[str, float]

    def by_kind(self) -> dict[str, float]:
        return self.spent


BUSY = """
import time
while time.process_time() < 0.2:
    pass
print("busy enough", flush=True)
input()
"""


def test_a_process_that_ends_takes_nothing_away_from_what_others_have_spent() -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", BUSY], stdin=pipe, stdout=pipe) as child:
        assert child.stdout is not None
        assert b"busy enough\n" == child.stdout.readline()
        meter = CpuMeter(os.getpid())
        child.communicate(b"\n")
    assert meter.seconds() >= 0


def test_steady_state_lies_between_two_commits_behind_the_warm_up() -> None:
    steps = iter([0, 10, 50, 80, 100])
    meters = iter([Counted({"jvm": 3.0}), Counted({"jvm": 2.0, "workers": 0.5})])
    seen = watch(lambda: next(steps), lambda: next(meters), lambda: None, warm_up=40, total=100, timeout_s=60)
    assert seen.steady is not None
    assert (50, 2, {"jvm": 2.0, "workers": 0.5}) == (seen.steady.records, seen.steady.commits, seen.steady.cpu)


def test_without_two_commits_there_is_no_steady_state() -> None:
    seen = watch(lambda: 100, lambda: Counted({"main": 1.0}), lambda: None, warm_up=40, total=100, timeout_s=60)
    assert seen.steady is None


def test_latency_is_that_of_the_first_result_that_counts_a_record() -> None:
    sent = pd.DataFrame([(7, 100), (8, 101), (7, 110), (7, 130)], columns=["auction", "ms"])
    seen = pd.DataFrame([(7, 3, 150.0), (8, 2, 160.0), (7, 4, 200.0)], columns=["auction", "count", "ms"])
    assert [50.0, 59.0, 40.0, 70.0] == latencies_ms(sent, seen, known=np.ones(9, np.int64)).tolist()


def test_growth_is_that_of_the_lows_behind_the_first_third() -> None:
    def of(at: int, phase: int) -> int:
        # Rises for 280 s and falls: 500 MB at first, then a megabyte an hour behind that.
        return int(1e6 * (500.0 if at < 1200 else 100 + at / 3600 + 40 * ((at + phase) % 280) / 280))

    samples = [(float(at), {1: of(at, 0), 2: of(at, 140)}) for at in range(0, 3600, 5)]
    assert pytest.approx(2.0, abs=1.0) == growth(samples)["growth_mb_per_hour"]
    flat = [(float(at), {1: 100_000_000}) for at in range(0, 30, 5)]
    assert pytest.approx(0.0, abs=1e-6) == growth(flat)["growth_mb_per_hour"]


def test_a_failure_ends_a_systems_rounds_and_no_others() -> None:
    runs: list[str] = []

    def one(kind: type[System], run: str) -> dict[str, float]:
        runs.append(kind.name)
        if kind.name == "spark":
            raise WrongResult("1 of 2 keys are wrong")
        return {"records_per_s": float(len(runs))}

    found = interleaved("w", [SYSTEMS["spark"], SYSTEMS["rollforward"]], 2, one, lambda line: None)
    assert ["spark", "rollforward", "rollforward"] == runs
    assert ["spark failed: 1 of 2 keys are wrong"] == failures(found)
    assert [{"records_per_s": 2.0}, {"records_per_s": 3.0}] == found["rollforward"]


def test_who_ran_first_runs_last_in_the_next_round() -> None:
    runs: list[str] = []

    def one(kind: type[System], run: str) -> dict[str, float]:
        runs.append(kind.name)
        return {"records_per_s": 1.0}

    interleaved("w", [SYSTEMS["spark"], SYSTEMS["rollforward"]], 3, one, lambda line: None)
    assert ["spark", "rollforward", "rollforward", "spark", "spark", "rollforward"] == runs


def test_rows_hold_the_median_and_ours_against_it() -> None:
    found = {"rollforward": [{"records_per_s": v} for v in (90.0, 300.0, 200.0)], "spark": [{"records_per_s": 50.0}]}
    versions = {"rollforward": {"v": "1"}, "spark": {"v": "2"}}
    ours, spark = report.rows_of("w", found, units={"records_per_s": "records/s"}, command="c", versions=versions)
    assert (200.0, 1.0, [90.0, 300.0, 200.0]) == (ours["value"], ours["ratio_ours_to_this"], ours["rounds"])
    assert (50.0, 4.0, "records/s", {"v": "2"}) == (
        *(spark[name] for name in ("value", "ratio_ours_to_this", "unit", "versions")),
    )


def test_a_new_run_replaces_only_what_it_has_measured() -> None:
    old = [{"workload": w, "system": s, "value": 1} for w in ("a", "b") for s in ("x", "y")]
    new = [{"workload": "a", "system": "x", "value": 2}]
    assert {("a", "x", 2), ("a", "y", 1), ("b", "x", 1), ("b", "y", 1)} == {
        (row["workload"], row["system"], row["value"]) for row in report.merged(old, new)
    }


def test_plots_are_the_same_bytes_for_the_same_figures(docs: Path) -> None:
    rows = list(some_rows())
    (docs / "benchmarks.json").write_text(json.dumps(rows))
    document.update(docs)
    first = {file.name: file.read_bytes() for file in (docs / "images").iterdir()}
    document.update(docs)
    assert first == {file.name: file.read_bytes() for file in (docs / "images").iterdir()}
    assert 2 == len(first)


def some_rows() -> Iterator[report.Row]:
    """Rows as a run writes them."""
    units = {"records_per_s": "records/s", "cpu_us_per_record": "µs"}
    for workload in WORKLOADS:
        found = {
            system: [{"records_per_s": 1000.0 + number, "cpu_us_per_record": 5.0}]
            for number, system in enumerate(SYSTEMS)
        }
        versions = {system: {"date": "2026-01-01", "cores": "2"} for system in SYSTEMS}
        yield from report.rows_of(workload, found, units=units, command="make bench", versions=versions)


def test_the_model_of_every_workload_counts_every_record_once() -> None:
    for name, table, column in (
        ("key-totals-10000", "totals", "N"),
        ("auction-day", "days", "BIDS"),
        ("flights", "carrier_delays", "FLIGHTS"),
    ):
        rows = WORKLOADS[name].expected(1_000)[table]
        assert isinstance(rows, dict)
        assert 1_000 == np.sum([row[column] for row in rows.values()]), name
