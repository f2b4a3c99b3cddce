"""`make crash-matrix`: every fault against the real broker, one after the other, and a report of how recovery went."""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

from tests.crash.matrix.bench import Bench
from tests.crash.matrix.faults import FAULTS
from tests.crash.matrix.run import Outcome, report, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="make crash-matrix", description=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of input, moments, victims and order")
    parser.add_argument("--only", default="", help=f"faults, with commas between: {', '.join(FAULTS)}")
    parser.add_argument("--minutes", type=float, default=0, help="go on with random faults for so long; 0: each once")
    parser.add_argument("--small", action="store_true", help="the driver computes small batches itself, as by default")
    parser.add_argument("--report", type=Path, default=Path("build/crash-matrix.json"))
    arguments = parser.parse_args()
    chosen = arguments.only.split(",") if arguments.only else list(FAULTS)
    unknown = set(chosen) - set(FAULTS)
    if unknown:
        parser.error(f"no such fault: {', '.join(sorted(unknown))}")
    print(f"seed {arguments.seed}; replay with --seed {arguments.seed}", flush=True)
    choose = random.Random(arguments.seed)
    if not arguments.only:
        choose.shuffle(chosen)
    # Whoever ends it shall find nothing of it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    logs = arguments.report.with_suffix(".logs")
    home = Path(tempfile.mkdtemp(prefix="crash-matrix-"))
    outcomes: list[Outcome] = []
    try:
        with closing(Bench(home, arguments.seed, small=arguments.small)) as bench:
            deadline = time.monotonic() + arguments.minutes * 60
            for number, name in enumerate(chosen):
                outcomes += run(bench, [name], arguments.seed + number, logs=logs)
                report(arguments.report, arguments.seed, outcomes)
            while time.monotonic() < deadline:
                outcomes += run(bench, [choose.choice(chosen)], choose.randrange(1 << 30), logs=logs)
                report(arguments.report, arguments.seed, outcomes)
    finally:
        shutil.rmtree(home)
    failed = [outcome.fault for outcome in outcomes if outcome.problems]
    print(f"{len(outcomes)} faults, {len(failed)} with problems: {', '.join(failed) or 'none'}; {arguments.report}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
