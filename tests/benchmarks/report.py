"""Rows of `docs/benchmarks.json`: a list of {workload, system, metric, value, unit, ratio_ours_to_this, command, versions}.

A value is the median of the rounds, which stand beside it. A system that cannot run a workload has one row with the
value null and the reason. A new run replaces the rows of the workloads and systems that it has measured and leaves the
others, so every row names the command and the versions that gave it.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

OURS = "rollforward"
Row = dict[str, Any]
Rounds = Mapping[str, "list[dict[str, float]] | str"]


def rows_of(
    workload: str, found: Rounds, *, units: Mapping[str, str], command: str, versions: Mapping[str, dict[str, str]]
) -> list[Row]:
    """The rows of one workload from the figures of each round by system."""
    medians = {system: _medians(rounds) for system, rounds in found.items() if not isinstance(rounds, str)}
    rows: list[Row] = []
    for system, rounds in found.items():
        common: Row = {"workload": workload, "system": system, "command": command, "versions": versions[system]}
        if isinstance(rounds, str):
            rows.append(
                {
                    **common,
                    "metric": "not-possible",
                    "value": None,
                    "unit": "",
                    "ratio_ours_to_this": None,
                    "note": rounds,
                }
            )
            continue
        for metric, value in medians[system].items():
            rows.append(
                {
                    **common,
                    "metric": metric,
                    "value": rounded(value),
                    "unit": unit_of(metric, units),
                    "ratio_ours_to_this": _ratio(medians.get(OURS, {}).get(metric), value),
                    "rounds": [rounded(figures[metric]) for figures in rounds if metric in figures],
                }
            )
    return rows


def unit_of(metric: str, units: Mapping[str, str]) -> str:
    """The unit of the longest known name that the metric begins with: `cpu_us_per_record_jvm` has that of its whole."""
    fitting = [name for name in units if metric.startswith(name)]
    return units[max(fitting, key=len)] if fitting else ""


def merged(old: Sequence[Row], new: Sequence[Row]) -> list[Row]:
    """Old rows, without those of the workloads and systems that are in `new`, then the new ones; sorted by workload."""
    measured = {(row["workload"], row["system"]) for row in new}
    kept = [row for row in old if (row["workload"], row["system"]) not in measured]
    return sorted([*kept, *new], key=lambda row: row["workload"])


def read(path: Path) -> list[Row]:
    """The rows of a file; none if there is no file."""
    rows = json.loads(path.read_text()) if path.exists() else []
    return rows if isinstance(rows, list) else []


def write(path: Path, rows: Sequence[Row]) -> None:
    """Replace the file."""
    path.write_text(json.dumps(list(rows), indent=2, ensure_ascii=False) + "\n")


def machine() -> dict[str, str]:
    """What the figures depend on beside the systems' versions."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        **_commit(),
        "cores": str(os.cpu_count()),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def _commit() -> dict[str, str]:
    """The commit that was measured, and whether files have changed since; nothing outside a clone."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--exclude=*", "--dirty=+changes"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return {"commit": found.stdout.strip()} if found.returncode == 0 else {}


def rounded(value: float) -> float:
    """Four digits, or whole where there are more."""
    return float(f"{value:.4g}") if abs(value) < 1_000 else float(round(value))


def _medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    metrics = dict.fromkeys(metric for figures in rounds for metric in figures)
    return {m: statistics.median(figures[m] for figures in rounds if m in figures) for m in metrics}


def _ratio(ours: float | None, this: float) -> float | None:
    return None if ours is None or not this else rounded(ours / this)
