"""`make bench`: ours beside its peers on one machine, in one go.

    make bench                                                    everything but the soak, three rounds
    make bench BENCH='--workload key-totals-10000 --records 500000 --rounds 1'
    make bench BENCH='--workload latency --system rollforward --rate 100000'
    make bench BENCH='--workload soak --minutes 30'
    make bench BENCH='--tables'                                   tables and plots again from the figures that are there

Figures go to docs/benchmarks.json, and from it tables and plots to docs/benchmarks.md and docs/images.
"""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from infra.jars import read_lock
from infra.stack import Stack
from ops.environment import cache_folder, with_spark
from pipelines.settings import Settings
from tests.benchmarks import document, report
from tests.benchmarks.rounds import Found, failures
from tests.benchmarks.scenarios import SCENARIOS, Options
from tests.benchmarks.systems import SYSTEMS, Broker
from tests.benchmarks.throughput import UNITS, run_workload
from tests.benchmarks.workloads import WORKLOADS

DOCS = Path("docs")


def parser() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(
        prog="make bench", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    names = [*WORKLOADS, *SCENARIOS]
    parser.add_argument("--workload", nargs="+", choices=names, metavar="NAME", help=f"of {', '.join(names)}")
    parser.add_argument("--system", nargs="+", choices=list(SYSTEMS), metavar="NAME", help=f"of {', '.join(SYSTEMS)}")
    parser.add_argument(
        "--records", type=int, help="of each throughput workload, fewer for slow systems; default: each workload's own"
    )
    parser.add_argument(
        "--batch", type=int, default=4_000_000, help="records a batch at most, ours; Spark's hold an eighth of that"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=int, help="records/s for latency and soak; default: half of the peak, 20,000")
    parser.add_argument("--seconds", type=int, default=30, help="of measuring in latency and idle")
    parser.add_argument("--state-keys", type=int, default=10_000_000, help="keys of state in restart")
    parser.add_argument("--minutes", type=float, default=30, help="of the soak")
    parser.add_argument("--docs", type=Path, default=DOCS, help="folder of benchmarks.json, benchmarks.md and images")
    parser.add_argument("--tables", action="store_true", help="measure nothing: make tables and plots again")
    return parser


def main(arguments: list[str] | None = None) -> None:
    """Measure, keep the rows after each workload, and make the tables."""
    options = parser().parse_args(arguments)
    failed: list[str] = []
    if not options.tables:
        with tempfile.TemporaryDirectory(prefix="rollforward-bench-") as folder:
            failed = measure(options, Path(folder), shlex.join(sys.argv[1:] if arguments is None else arguments))
    document.update(options.docs)
    if failed:
        sys.exit("\n".join(failed))


def measure(options: argparse.Namespace, folder: Path, arguments: str) -> list[str]:
    """Each workload on a broker in `folder`; rows are written when a workload is complete. Gives what failed."""
    failed: list[str] = []
    command = f"make bench BENCH='{arguments}'" if arguments else "make bench"
    path = options.docs / "benchmarks.json"
    stack = Stack(folder / "stack")
    try:
        bootstrap = stack.up(components=["kafka"]).bootstrap_servers or ""
        broker = Broker(with_spark(Settings(bootstrap_servers=bootstrap)), cache_folder(), options.batch)
        for name in options.workload or [*WORKLOADS, *(n for n, s in SCENARIOS.items() if not s.slow)]:
            found, units = run_one(name, broker, options, folder)
            failed += [f"{name}: {failure}" for failure in failures(found)]
            versions = {system: {system: SYSTEMS[system].version(), **shared_versions()} for system in found}
            rows = report.rows_of(name, found, units=units, command=command, versions=versions)
            report.write(path, report.merged(report.read(path), rows))
    finally:
        stack.down(wipe=True)
    return failed


def run_one(name: str, broker: Broker, options: argparse.Namespace, folder: Path) -> tuple[Found, Mapping[str, str]]:
    """The figures of one workload and their units."""
    systems = [SYSTEMS[system] for system in options.system or SYSTEMS]
    if name in WORKLOADS:
        workload = WORKLOADS[name]
        sizes = {"records": options.records or workload.size, "rounds": options.rounds}
        return run_workload(broker, workload, systems, **sizes, folder=folder, tell=tell), UNITS
    scenario = SCENARIOS[name]
    asked = Options(
        rounds=options.rounds,
        rate=options.rate,
        seconds=options.seconds,
        state_keys=options.state_keys,
        minutes=options.minutes,
        peaks=peaks(options.docs),
    )
    chosen = [system for system in systems if system.name in scenario.systems]
    return scenario.run(broker, chosen, asked, folder, tell), scenario.units


def peaks(docs: Path) -> dict[str, float]:
    """Records per second that each system has reached with 10,000 keys."""
    rows = report.read(docs / "benchmarks.json")
    wanted = ("key-totals-10000", "records_per_s")
    return {row["system"]: row["value"] for row in rows if wanted == (row["workload"], row["metric"])}


def shared_versions() -> dict[str, str]:
    """The broker's version and the machine."""
    kafka = next(jar.coordinate for jar in read_lock("kafka") if ":kafka_2.13:" in jar.coordinate)
    return {"kafka": kafka.split(":")[2], **report.machine()}


def tell(line: str) -> None:
    """One line of progress."""
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    # What was started is ended, too, when somebody else ends this.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    main()
