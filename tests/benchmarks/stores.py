"""`make bench-stores`: every mechanism against plain rocksdict doing the same without transactions.

Systems take turns; of each system's rounds the one with the least CPU counts, and every ratio is of CPU times of one run
of this program. With `--large` all of it is done once more with so many keys, each system in one round and in a process
of its own, which is killed at its end: its store is then opened. The tables go to `docs/stores.md`, between their marks.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.replay import replayed
from tests.benchmarks.storekilled import ALL, COPIED, PUT, in_copy, lived
from tests.benchmarks.storework import PLAIN, SYSTEMS, Keys, Meter, done_by, make

REPLAY = "full replay"
RECOVER = "recover after kill -9"
IN_COPY = f"recover after kill -9 in the copy of {COPIED:,} changes"
Best = dict[str, dict[str, tuple[float, float]]]
Row = dict[str, object]


def measure(keys: Keys, rounds: int) -> Best:
    """Per system and work: CPU and wall seconds of the round with the least CPU."""
    best: Best = {}
    for number in range(rounds):
        for system in [PLAIN, *SYSTEMS]:
            with tempfile.TemporaryDirectory(prefix="rollforward-bench-") as folder:
                made = make(system, Path(folder), keys)
                for name, run in made.work.items():
                    with Meter() as meter:
                        run(meter)
                    best.setdefault(system, {})[name] = min(best.get(system, {}).get(name, meter.spent), meter.spent)
                made.close()
        print(f"round {number + 1} of {rounds} done", file=sys.stderr, flush=True)
    return best


def recovered(system: str, work: str, opened: dict[str, object]) -> list[Row]:
    """Its row, if it was opened."""
    return [{"system": system, "work": work, **opened}] if opened else []


def rows_of(keys: Keys, rounds: int) -> list[Row]:
    """Every work, and recovery of what a process killed after putting has left."""
    rows = report(measure(keys, rounds), keys.count)
    for system in SYSTEMS:
        if SYSTEMS[system] is not None:
            rows += recovered(system, RECOVER, lived(keys.count, system, PUT)[1])
    return [*rows, *recovered("SECONDARY_STORE", IN_COPY, in_copy())]


def large_rows(count: int) -> list[Row]:
    """Every work and recovery of many keys, in one round."""
    best: Best = {}
    opened: list[Row] = []
    for system in [PLAIN, *SYSTEMS]:
        best[system], found = lived(count, system, ALL)
        opened += recovered(system, RECOVER, found)
    return [*report(best, count), *opened]


def replay_row(keys: Keys, rounds: int) -> Row:
    """A changelog of one record a key, from Kafka into a new database."""
    cpu, wall = replayed(keys, rounds)
    rate = round(keys.count / cpu)
    return {"system": REPLAY, "work": REPLAY, "cpu_s": round(cpu, 3), "wall_s": round(wall, 3), "per_cpu_second": rate}


def table(rows: list[Row]) -> str:
    """Markdown: a line a system, a column a kind of work."""
    works = list(dict.fromkeys(str(row["work"]) for row in rows))
    lines = ["| | " + " | ".join(works) + " |", "|---" * (len(works) + 1) + "|"]
    for system in dict.fromkeys(str(row["system"]) for row in rows):
        found = {str(row["work"]): str(row["shown"]) for row in rows if row["system"] == system}
        lines.append(f"| {system} | " + " | ".join(found.get(work, "–") for work in works) + " |")
    return "\n".join(lines)


def report(best: Best, count: int) -> list[Row]:
    """Rows with figures, ratios of CPU to plain, and what the table shows."""
    done = done_by(count)
    rows: list[Row] = []
    for system, works in best.items():
        for work, (cpu, wall) in works.items():
            against = best[PLAIN].get(work)
            ratio = None if against is None else round(cpu / against[0], 3)
            rate = round(done[work] / cpu)
            shown = f"{rate / 1000:,.0f} k/s" + ("" if ratio is None or system == PLAIN else f", {ratio:.2f}×")
            rows.append(
                {"system": system, "work": work, "cpu_s": round(cpu, 3), "wall_s": round(wall, 3)}
                | {"per_cpu_second": rate, "cpu_ratio_to_plain": ratio, "shown": shown}
            )
    return rows


def write_table(page: Path, text: str) -> None:
    """Put the table between its marks."""
    marked = re.compile(r"(<!-- measured: mechanisms -->\n).*?(<!-- /measured: mechanisms -->)", re.DOTALL)
    page.write_text(marked.sub(lambda found: f"{found[1]}{text}\n{found[2]}", page.read_text()))


def section(rows: list[Row], note: str) -> str:
    """A table with what was measured above it, and replay below."""
    [rate] = [int(str(row["per_cpu_second"])) for row in rows if row["system"] == REPLAY]
    return "\n\n".join(
        [
            note,
            table([row for row in rows if row["system"] != REPLAY]),
            f"Full replay of as many records of a changelog in Kafka: {rate / 1000:,.0f} k/s.",
        ]
    )


def write(docs: Path, result: dict[str, object], text: str) -> None:
    """Figures and table."""
    (docs / "benchmarks-stores.json").write_text(json.dumps(result, indent=2) + "\n")
    write_table(docs / "stores.md", text)


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-stores")
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--large", type=int, default=0, help="do all of it with so many keys, too, in one round")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--docs", type=Path, default=Path("docs"))
    arguments = parser.parse_args()
    keys = Keys(arguments.keys)
    rows = [*rows_of(keys, arguments.rounds), replay_row(keys, arguments.rounds)]
    command = "make bench-stores BENCH='" + " ".join(sys.argv[1:]) + "'"
    result: dict[str, object] = {"command": command, "keys": arguments.keys, "cores": os.cpu_count(), "rows": rows}
    note = f"`{command}`, {arguments.keys:,} keys; per second of CPU, and the CPU as a multiple of plain rocksdict's:"
    text = section(rows, note)
    write(arguments.docs, result, text)
    if arguments.large:
        many = [*large_rows(arguments.large), replay_row(Keys(arguments.large), 1)]
        result |= {"large": {"keys": arguments.large, "rows": many}}
        text += "\n\n" + section(many, f"{arguments.large:,} keys, one round, each system in a process of its own:")
        write(arguments.docs, result, text)
    print(text)


if __name__ == "__main__":
    main()
