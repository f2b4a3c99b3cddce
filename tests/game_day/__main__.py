"""`make game-day`: half an hour of seeded faults; the report goes to a JSON file, and its incidents to the terminal."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from tests.game_day.day import live


def main() -> int:
    """0 if every result is exact and the goal for the median is met."""
    parser = argparse.ArgumentParser(prog="game-day", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--report", type=Path, default=Path("build/game-day.json"))
    asked = parser.parse_args()
    print(f"seed {asked.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="game-day-") as folder:
        report = live(Path(folder) / "home", seed=asked.seed, minutes=asked.minutes)
    asked.report.parent.mkdir(parents=True, exist_ok=True)
    asked.report.write_text(json.dumps(report, indent=1) + "\n")
    print(f"{len(report['incidents'])} faults, {report['records']} records, {len(report['differences'])} differences")
    print(f"from fault to new committed output: median {report['median_s']} s (goal {report['goal_median_s']} s)")
    return 0 if report["goal_met"] and not report["differences"] else 1


if __name__ == "__main__":
    sys.exit(main())
