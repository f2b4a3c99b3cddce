"""Runs faults one after the other and tells what came of each."""

from __future__ import annotations

import json
import random
import shutil
import time
import traceback
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.crash.matrix.bench import Bench
from tests.crash.matrix.faults import FAULTS, tidy


@dataclass(frozen=True)
class Outcome:
    """Of one fault. `fault_s` is how long it lasted; `recovery_s` from its end to two new batches of every query.

    `checked_s` is how long catching up and comparing took. `views` is how many views between two batches the auditor
    has had meanwhile, `moments` how many of one task at any moment. What did not come about has no figure.
    """

    fault: str
    fault_s: float | None
    recovery_s: float | None
    checked_s: float | None
    views: int
    moments: int
    problems: tuple[str, ...]


def run(bench: Bench, names: Iterable[str], seed: int, *, logs: Path | None = None) -> list[Outcome]:
    """One outcome a fault, in order. Of a fault with problems the logs are kept in `logs`, under its name."""
    choose = random.Random(seed)
    outcomes = []
    for name in names:
        outcomes.append(_one(bench, name, choose))
        if logs is not None and outcomes[-1].problems:
            shutil.copytree(bench.settings.home / "logs", logs / name, dirs_exist_ok=True)
    return outcomes


def _one(bench: Bench, name: str, choose: random.Random) -> Outcome:
    print(f"{name}", flush=True)
    problems: list[str] = []
    fault_s = recovery_s = checked_s = None
    views, moments = bench.auditor.views, bench.auditor.moments
    try:
        bench.load.resume()
        # A fault that has failed half-way may have left no driver.
        bench.start()
        # Whatever starts or recovers is no part of the fault's figures.
        before = bench.mark()
        bench.await_("every query is at work", lambda: bench.progressed(before))
        # The moment within a batch is a part of what is tried.
        time.sleep(choose.uniform(1.0, 2.5))
        started = time.monotonic()
        FAULTS[name](bench, choose)
        fault_s, mark = _since(started), bench.mark()
        recovery_s = round(bench.await_("recovery", lambda: bench.progressed(mark)), 2)
        checking = time.monotonic()
        bench.await_caught_up()
        problems += bench.problems()
        checked_s = _since(checking)
    except Exception as error:
        at = " < ".join(f"{frame.name}:{frame.lineno}" for frame in reversed(traceback.extract_tb(error.__traceback__)))
        problems.append(f"{type(error).__name__}: {error} ({at})")
    finally:
        tidy(bench.points)
    views, moments = bench.auditor.views - views, bench.auditor.moments - moments
    if not problems and not (views and moments):
        problems.append(f"the auditor has had {views} views between batches and {moments} at any moment")
    print(f"    fault {fault_s} s, recovery {recovery_s} s, {problems or 'equal'}", flush=True)
    return Outcome(name, fault_s, recovery_s, checked_s, views, moments, tuple(problems))


def _since(started: float) -> float:
    return round(time.monotonic() - started, 2)


def report(path: Path, seed: int, outcomes: list[Outcome]) -> None:
    """Write the outcomes as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"seed": seed, "outcomes": [asdict(outcome) for outcome in outcomes]}, indent=1)
    path.write_text(text + "\n")
