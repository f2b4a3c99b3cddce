"""The process whose memory is measured; it prints as JSON how much that grew, at its highest.

python -m tests.statestore.memory_child transaction <folder> <bytes> <mechanism>
    Writes so many bytes in one transaction, reads some back, and commits.
python -m tests.statestore.memory_child task <folder> <bytes> <bootstrap servers> <application>
    Writes so many bytes in small entries through a `StreamTask`, which commits when it has to.
python -m tests.statestore.memory_child flush <folder> <bytes>
    Fills memtables with so many bytes, between which other things are allocated that stay, and flushes, three times.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal

from statestore import allocator
from statestore.budget import UncommittedBudget
from statestore.config import RocksConfig
from statestore.context import RecordContext
from statestore.kinds.key_value import KeyValue
from statestore.rocks.database import Database
from statestore.store import TransactionalMechanism
from statestore.streamtask import StreamTask
from statestore.taskstores import TaskStores
from tests.statestore.test_memory import CONFIG, COPY_BYTES_MAX, SMALL_BYTES, UNCOMMITTED_BYTES_MAX, VALUE_BYTES
from tests.support.counting import config_for
from tests.support.waiting import await_

_AT_ONCE = 100


def resident(field: str) -> int:
    """Bytes: `VmRSS` is now, `VmHWM` the most so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def transaction(folder: Path, total: int, mechanism: str) -> dict[str, int]:
    """What it takes until before the commit, and over all."""
    task = TaskStores(folder, rocks=CONFIG, uncommitted_bytes_max=UNCOMMITTED_BYTES_MAX, copy_bytes_max=COPY_BYTES_MAX)
    store = KeyValue("s", mechanism=TransactionalMechanism(mechanism))
    store.init(task)
    choose = random.Random(1)
    before = resident("VmRSS")
    count = total // VALUE_BYTES
    for number in range(count):
        store.put(b"%012d" % number, choose.randbytes(VALUE_BYTES))
    known = store.approximate_num_uncommitted_bytes()
    assert store.get(b"%012d" % (count // 2)) is not None
    writing = resident("VmHWM") - before
    store.commit(count)
    assert count == sum(1 for _ in store.all())
    task.close()
    return {"uncommitted": known, "writing": writing, "committing": resident("VmHWM") - before}


def task(folder: Path, total: int, bootstrap: str, application: str) -> dict[str, int]:
    """What it takes over all, and how often it committed for that reason; the interval never ends."""
    config = config_for(bootstrap, application, folder, commit_interval_ms=10**9, rocks=CONFIG)
    store = KeyValue("s", mechanism=TransactionalMechanism.INDEXED_BATCH)
    stream = StreamTask(config, [store], budget=UncommittedBudget(total // 10))
    stream.open()
    offset = stream.next_offset(config.inputs[0])
    before, count = resident("VmRSS"), total // SMALL_BYTES // _AT_ONCE * _AT_ONCE
    for first in range(0, count, _AT_ONCE):
        stream.take(RecordContext(config.inputs[0], 0, offset + first, first))
        store.put_all([(b"%012d" % number, b"%012d" % number) for number in range(first, first + _AT_ONCE)])
    stream.commit()
    grown = resident("VmHWM") - before
    assert count == sum(1 for _ in store.all())
    commits = stream.context.counters["early-commit-total", config.transactional_id]
    stream.close()
    return {"written": count * SMALL_BYTES, "working": grown, "commits": int(commits)}


def given_back(full: int, *, at_least: float) -> int | Literal[False]:
    """By how much the process is smaller than when it was full; False while it is by no more than that."""
    allocator.give_back()
    back = full - resident("VmRSS")
    return back > at_least and back


def flush(folder: Path, total: int) -> dict[str, int]:
    """What the memtables took before the last flush, and by how much the process is smaller behind it."""
    database = Database(folder, ["s"], RocksConfig(log_bytes_max=10 * total))
    stays = []
    for _ in range(3):
        for first in range(0, total // VALUE_BYTES, _AT_ONCE):
            keys = range(first, first + _AT_ONCE)
            database.write({"s": [(b"%012d" % key, bytes(VALUE_BYTES)) for key in keys]})
            stays.append(bytes(40_000))
        full, memtables = resident("VmRSS"), database.memory()["memtables"]
        database.flush()
        # They are freed behind the flush, in RocksDB's own thread.
        back = await_("memory comes back", partial(given_back, full, at_least=0.8 * memtables), 5)
    database.close()
    return {"memtables": memtables, "back": back, "kept": sum(map(len, stays))}


if __name__ == "__main__":
    how, folder, total, *arguments = sys.argv[1:]
    runs: dict[str, Callable[..., dict[str, int]]] = {"transaction": transaction, "task": task, "flush": flush}
    print(json.dumps(runs[how](Path(folder), int(total), *arguments)))
