"""`make bench-stores`: every mechanism against plain rocksdict doing the same without transactions.

Keys of 16 bytes in random order, values of 100, batches of 10,000. Systems take turns; of each system's rounds the one
with the least CPU counts, and every ratio is of CPU times of one run of this program. The table goes to
`docs/stores.md`, between its marks.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import rocksdict as rd

from statestore.config import RocksConfig
from statestore.context import ChangelogRecord
from statestore.kinds.key_value import KeyValue
from statestore.kinds.window import Window
from statestore.rocks import rocks_options
from statestore.store import Entry, TransactionalMechanism
from statestore.taskstores import TaskStores
from tests.benchmarks.replay import replayed

BATCH = 10_000
VALUE = bytes(range(100))
MINUTE_MS = 60_000
PLAIN = "plain rocksdict"
REPLAY = "full replay"
SYSTEMS: dict[str, TransactionalMechanism | None] = {
    "not transactional": None,
    "INDEXED_BATCH": TransactionalMechanism.INDEXED_BATCH,
    "AUTO": TransactionalMechanism.AUTO,
    "SECONDARY_STORE": TransactionalMechanism.SECONDARY_STORE,
}
Work = dict[str, Callable[[], None]]


def keys_of(count: int) -> list[bytes]:
    """`count` distinct keys in random order."""
    keys = [b"%016d" % number for number in range(count)]
    random.Random(1).shuffle(keys)
    return keys


def batches(items: list[bytes]) -> Iterator[list[bytes]]:
    """Pieces of `BATCH`."""
    return (items[start : start + BATCH] for start in range(0, len(items), BATCH))


def stored_window(key: bytes, start_ms: int) -> bytes:
    """A window's key as the stores have it."""
    return key + start_ms.to_bytes(8, "big") + bytes(4)


def plain(folder: Path, keys: list[bytes]) -> tuple[Work, Callable[[], None]]:
    """The same work by hand, with the options of our stores."""
    config = RocksConfig()
    options = rocks_options(config, rd.Cache(config.block_cache_bytes))
    # RocksDB bounds the log of a database only where it has several families, as every one of ours has.
    second = {"second": rocks_options(config, rd.Cache(config.block_cache_bytes))}
    values, windows = (rd.Rdict(str(folder / name), options, column_families=second) for name in ("values", "windows"))

    def write(database: rd.Rdict, entries: list[Entry]) -> None:
        batch = rd.WriteBatch(raw_mode=True)
        for key, value in entries:
            batch.put(key, value)
        database.write(batch)

    pieces = [[(key, VALUE) for key in batch] for batch in batches(keys)]
    wanted = sorted(keys[: len(keys) // 5])

    def put() -> None:
        for piece in pieces:
            write(values, piece)

    def put_windows() -> None:
        for minute in range(10):
            for batch in batches(keys[: len(keys) // 10]):
                write(windows, [(stored_window(key, minute * MINUTE_MS), VALUE) for key in batch])

    def fetch_windows() -> None:
        for key in sorted(keys[: len(keys) // 10]):
            last, found = stored_window(key, 9 * MINUTE_MS), []
            for stored, value in windows.items(from_key=stored_window(key, 0)):
                if stored > last:
                    break
                found.append((int.from_bytes(stored[-12:-4], "big"), value))
            assert len(found) == 10

    def close() -> None:
        values.close()
        windows.close()

    return {
        "put and commit": put,
        "sorted get": lambda: [values.get(key) for key in wanted] and None,
        "sorted get of many": lambda: [values.get(batch) for batch in batches(wanted)] and None,
        "range": lambda: _count(values.items(), len(keys)),
        "window put and commit": put_windows,
        "window fetch": fetch_windows,
    }, close


def _count(entries: Iterator[object], expected: int) -> None:
    assert sum(1 for _ in entries) == expected


def ours(folder: Path, keys: list[bytes], mechanism: TransactionalMechanism | None) -> tuple[Work, Callable[[], None]]:
    """A key-value store and a window store of one task."""
    task = TaskStores(folder, exactly_once=False)
    values = KeyValue("values", mechanism=mechanism, logged=False)
    windows = Window(
        "windows", retention_ms=60 * MINUTE_MS, window_size_ms=MINUTE_MS, mechanism=mechanism, logged=False
    )
    restored = KeyValue("restored", mechanism=mechanism)
    for store in (values, windows, restored):
        store.init(task)

    pieces = [[(key, VALUE) for key in batch] for batch in batches(keys)]
    wanted = sorted(keys[: len(keys) // 5])

    def put() -> None:
        for number, piece in enumerate(pieces):
            values.put_all(piece)
            values.commit(number)

    def put_windows() -> None:
        for minute in range(10):
            for batch in batches(keys[: len(keys) // 10]):
                windows.put_all((key, VALUE, minute * MINUTE_MS) for key in batch)
                windows.commit(minute)

    def fetch_windows() -> None:
        for key in sorted(keys[: len(keys) // 10]):
            _count(windows.fetch(key, 0, 9 * MINUTE_MS), 10)

    def restore() -> None:
        for number, batch in enumerate(batches(keys)):
            restored.restore([ChangelogRecord("restored", key, VALUE, 0) for key in batch], offset=number)

    return {
        "put and commit": put,
        "sorted get": lambda: [values.get(key) for key in wanted] and None,
        "sorted get of many": lambda: [values.get_many(batch) for batch in batches(wanted)] and None,
        "range": lambda: _count(values.all(), len(keys)),
        "window put and commit": put_windows,
        "window fetch": fetch_windows,
        "restore": restore,
    }, task.close


def measure(keys: list[bytes], rounds: int) -> dict[str, dict[str, tuple[float, float]]]:
    """Per system and work: CPU and wall seconds of the round with the least CPU."""
    best: dict[str, dict[str, tuple[float, float]]] = {}
    for number in range(rounds):
        for system in [PLAIN, *SYSTEMS]:
            with tempfile.TemporaryDirectory(prefix="rollforward-bench-") as folder:
                made = plain(Path(folder), keys) if system == PLAIN else ours(Path(folder), keys, SYSTEMS[system])
                work, close = made
                for name, run in work.items():
                    cpu, wall = time.process_time(), time.monotonic()
                    run()
                    spent = time.process_time() - cpu, time.monotonic() - wall
                    best.setdefault(system, {})[name] = min(best.get(system, {}).get(name, spent), spent)
                close()
        print(f"round {number + 1} of {rounds} done", file=sys.stderr, flush=True)
    return best


def recovery(count: int, system: str) -> tuple[float, dict[str, object]]:
    """Opens a store whose process was killed with a batch open: the CPU seconds of filling it, and what opening took."""
    with tempfile.TemporaryDirectory(prefix="rollforward-bench-") as folder:
        child = [sys.executable, "-m", "tests.benchmarks.stores", "--fill", folder, system, "--keys", str(count)]
        done = subprocess.run(child, check=False, stdout=subprocess.PIPE)
        assert done.returncode == -signal.SIGKILL
        filled = float(done.stdout)
        if system == PLAIN:
            return filled, {}
        started, cpu = time.monotonic(), time.process_time()
        task = TaskStores(Path(folder))
        store = KeyValue("values", mechanism=SYSTEMS[system])
        store.init(task)
        offset = store.recover(None)
        wall_ms, cpu_ms = 1000 * (time.monotonic() - started), 1000 * (time.process_time() - cpu)
        assert offset == count
        task.close()
        shown = f"{wall_ms:.0f} ms, CPU {cpu_ms:.0f} ms"
        return filled, {"wall_ms": round(wall_ms), "cpu_ms": round(cpu_ms), "shown": shown}


def fill(folder: Path, system: str, count: int) -> None:
    """Commit `count` keys, say what that took, leave a batch open, die."""
    keys = keys_of(count)
    if system == PLAIN:
        work, _ = plain(folder, keys)
        cpu = time.process_time()
        work["put and commit"]()
        print(time.process_time() - cpu, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    # What is sent to the changelog is not part of it.
    store = KeyValue("values", mechanism=SYSTEMS[system], logged=False)
    store.init(TaskStores(folder))
    pieces = [[(key, VALUE) for key in batch] for batch in batches(keys)]
    cpu = time.process_time()
    for piece in pieces:
        store.put_all(piece)
        store.commit(count)
    print(time.process_time() - cpu, flush=True)
    store.put_all([(key, b"uncommitted") for key in keys[:BATCH]])
    os.kill(os.getpid(), signal.SIGKILL)


def large_rows(count: int) -> list[dict[str, object]]:
    """Put and commit, and recovery, of many keys."""
    rows: list[dict[str, object]] = []
    against = 0.0
    for system in (PLAIN, "INDEXED_BATCH"):
        cpu, opened = recovery(count, system)
        against = against or cpu
        shown = f"{count / cpu / 1000:,.0f} k/s" + ("" if system == PLAIN else f", {cpu / against:.2f}×")
        put = {
            "work": f"put and commit, {count:,}",
            "cpu_s": round(cpu, 3),
            "cpu_ratio_to_plain": round(cpu / against, 3),
        }
        rows.append({"system": system, **put, "shown": shown})
        if system != PLAIN:
            rows.append({"system": system, "work": f"recover after kill -9, {count:,}", **opened})
    return rows


def table(rows: list[dict[str, object]]) -> str:
    """Markdown: a line a system, a column a kind of work."""
    works = list(dict.fromkeys(str(row["work"]) for row in rows))
    lines = ["| | " + " | ".join(works) + " |", "|---" * (len(works) + 1) + "|"]
    for system in dict.fromkeys(str(row["system"]) for row in rows):
        found = {str(row["work"]): str(row["shown"]) for row in rows if row["system"] == system}
        lines.append(f"| {system} | " + " | ".join(found.get(work, "–") for work in works) + " |")
    return "\n".join(lines)


def report(best: dict[str, dict[str, tuple[float, float]]], count: int) -> list[dict[str, object]]:
    """Rows with figures, ratios of CPU to plain, and what the table shows."""
    done = {"sorted get": count // 5, "sorted get of many": count // 5, "window fetch": count // 10}
    rows: list[dict[str, object]] = []
    for system, works in best.items():
        for work, (cpu, wall) in works.items():
            against = best[PLAIN].get(work)
            ratio = None if against is None else round(cpu / against[0], 3)
            rate = round(done.get(work, count) / cpu)
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


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-stores")
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--large", type=int, default=0, help="so many keys for put and commit, and recovery, besides")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--docs", type=Path, default=Path("docs"))
    parser.add_argument("--fill", nargs=2, metavar=("FOLDER", "SYSTEM"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.fill:
        fill(Path(arguments.fill[0]), arguments.fill[1], arguments.keys)
    rows = report(measure(keys_of(arguments.keys), arguments.rounds), arguments.keys)
    for system in list(SYSTEMS)[1:]:
        _, opened = recovery(arguments.keys, system)
        rows.append({"system": system, "work": "recover after kill -9", **opened})
    if arguments.large:
        rows += large_rows(arguments.large)
    cpu, wall = replayed(keys_of(arguments.keys), arguments.rounds)
    rate = round(arguments.keys / cpu)
    rows.append(
        {"system": REPLAY, "work": REPLAY, "cpu_s": round(cpu, 3), "wall_s": round(wall, 3), "per_cpu_second": rate}
    )
    command = "make bench-stores BENCH='" + " ".join(sys.argv[1:]) + "'"
    result = {"command": command, "keys": arguments.keys, "cores": os.cpu_count(), "rows": rows}
    (arguments.docs / "benchmarks-stores.json").write_text(json.dumps(result, indent=2) + "\n")
    note = f"`{command}`, {arguments.keys:,} keys; per second of CPU, and the CPU as a multiple of plain rocksdict's:"
    after = f"Full replay of {arguments.keys:,} records of a changelog in Kafka: {rate / 1000:,.0f} k/s."
    text = f"{note}\n\n{table([row for row in rows if row['system'] != REPLAY])}\n\n{after}"
    write_table(arguments.docs / "stores.md", text)
    print(text)


if __name__ == "__main__":
    main()
