"""The process whose memory is measured: `python -m tests.statestore.memory_child <folder> <mechanism> <bytes>`.

It writes so many bytes in one transaction, reads some back, commits, and prints as JSON how much its memory grew, at
its highest, until before the commit and over all.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

from statestore.kinds.key_value import KeyValue
from statestore.store import TransactionalMechanism
from statestore.taskstores import TaskStores
from tests.statestore.test_memory import CONFIG, COPY_BYTES_MAX, UNCOMMITTED_BYTES_MAX, VALUE_BYTES


def resident(field: str) -> int:
    """Bytes: `VmRSS` is now, `VmHWM` the most so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def main() -> None:
    folder, mechanism, total = Path(sys.argv[1]), TransactionalMechanism(sys.argv[2]), int(sys.argv[3])
    task = TaskStores(folder, rocks=CONFIG, uncommitted_bytes_max=UNCOMMITTED_BYTES_MAX, copy_bytes_max=COPY_BYTES_MAX)
    store = KeyValue("s", mechanism=mechanism)
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
    print(json.dumps({"uncommitted": known, "writing": writing, "committing": resident("VmHWM") - before}))
    task.close()


if __name__ == "__main__":
    main()
