"""Processes that `stores` fills stores with and kills, and how long their stores take to open.

As a module it is that process: `python -m tests.benchmarks.storekilled <folder> <system> <keys> <what>`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from statestore.failpoints import arm, is_armed
from statestore.kinds.key_value import KeyValue
from statestore.store import TransactionalMechanism
from statestore.taskstores import TaskStores
from statestore.transactions.secondary_store import COPY_BYTES_MAX
from tests.benchmarks.storework import BATCH, SYSTEMS, VALUE, Keys, Meter, entries, make

ALL, PUT, COPY = "all", "put and commit", "copy"
Figures = dict[str, tuple[float, float]]
# The changes of the commit that is killed when half of it is copied.
COPIED = 1_000_000


def lived(count: int, system: str, what: str) -> tuple[Figures, dict[str, object]]:
    """CPU and wall seconds of each work of a process that was killed with a batch open, and what opening it took.

    `what` is `ALL` of the work, or `PUT`, which is needed to have something to open. Plain rocksdict is not opened.
    """
    with tempfile.TemporaryDirectory(prefix="rollforward-bench-") as folder:
        figures = json.loads(_killed(Path(folder), count, system, what, {}))
        opened = {} if SYSTEMS.get(system) is None else _opened(Path(folder), system, (count - 1) // BATCH)
        return {work: (cpu, wall) for work, (cpu, wall) in figures.items()}, opened


def in_copy(count: int = COPIED) -> dict[str, object]:
    """Opens a secondary store whose process was killed when half of a commit of so many changes was copied."""
    with tempfile.TemporaryDirectory(prefix="rollforward-bench-") as name:
        folder, points = Path(name, "task"), Path(name, "points")
        points.mkdir()
        copies = count * (len(VALUE) + 16) // COPY_BYTES_MAX
        arm(points, "secondary.in-copy", passes=copies // 2)
        _killed(folder, count, "SECONDARY_STORE", COPY, {"ROLLFORWARD_FAILPOINTS": str(points)})
        assert not is_armed(points, "secondary.in-copy")
        return _opened(folder, "SECONDARY_STORE", count)


def _killed(folder: Path, count: int, system: str, what: str, environment: dict[str, str]) -> str:
    child = [sys.executable, "-m", "tests.benchmarks.storekilled", str(folder), system, str(count), what]
    done = subprocess.run(child, check=False, stdout=subprocess.PIPE, env={**os.environ, **environment})
    assert done.returncode == -signal.SIGKILL
    return done.stdout.decode()


def _opened(folder: Path, system: str, committed: int) -> dict[str, object]:
    started, cpu = time.monotonic(), time.process_time()
    task = TaskStores(folder)
    store = KeyValue("values", mechanism=SYSTEMS[system])
    store.init(task)
    offset = store.recover(None)
    wall_ms, cpu_ms = 1000 * (time.monotonic() - started), 1000 * (time.process_time() - cpu)
    assert offset == committed
    assert store.get(next(Keys(1).shuffled())[0]) == VALUE
    task.close()
    return {
        "wall_ms": round(wall_ms),
        "cpu_ms": round(cpu_ms),
        "shown": f"{wall_ms:.0f} ms, CPU {cpu_ms:.0f} ms",
    }


def work(folder: Path, system: str, count: int, what: str) -> Figures:
    """Do it and say what it took; of our stores a batch stays open."""
    keys, figures = Keys(count), {}
    made = make(system, folder, keys)
    for name, run in made.work.items():
        if what in (ALL, name):
            with Meter() as meter:
                run(meter)
            figures[name] = meter.spent
            print(f"{system}, {name}: {meter.spent[0]:.1f} s of CPU", file=sys.stderr, flush=True)
    made.leave_open()
    return figures


def copy(folder: Path, count: int) -> None:
    """Commit all keys at once; a failpoint kills in between."""
    store = KeyValue("values", mechanism=TransactionalMechanism.SECONDARY_STORE, logged=False)
    store.init(TaskStores(folder))
    for piece in entries(Keys(count).shuffled()):
        store.put_all(piece)
    store.commit(count)


def main() -> None:
    folder, system, count, what = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
    if what == COPY:
        copy(folder, count)
        raise AssertionError("was not killed")
    print(json.dumps(work(folder, system, count, what)), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
