"""Another process reads a task's stores while its owner writes and commits: always one committed version, never more."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from statestore.committed import CommittedStores
from statestore.errors import InvalidConfig, InvalidInput, TaskCorrupted
from statestore.kinds.key_value import KeyValue
from statestore.kinds.window import Window
from statestore.store import TransactionalMechanism
from statestore.taskstores import TaskStores

KEYS = 300
MINUTE_MS = 60_000
# Commits batches for ever: every key has the batch's number, and the next batch's is always there, uncommitted.
OWNER = """
import sys
from itertools import count
from pathlib import Path
from time import sleep
from tests.statestore.test_committed import KEYS, MINUTE_MS, opened
from statestore.taskstores import TaskStores
task = TaskStores(Path(sys.argv[1]), uncommitted_bytes_max=2_000, copy_bytes_max=1_000)
values, windows = opened(task, sys.argv[2])
for number in count():
    for key in range(KEYS):
        values.put(b"%d" % key, b"%d" % number)
        windows.put(b"%d" % key, b"%d" % number, number * MINUTE_MS // 10)
    if number:
        values.commit(number)
        windows.commit(number)
        print(number, flush=True)
        # Faster ones begin and drop segments all the time, which no real stream does.
        sleep(0.01)
"""


def opened(task: TaskStores, mechanism: str) -> tuple[KeyValue, Window]:
    chosen = TransactionalMechanism[mechanism] if mechanism else None
    values = KeyValue("values", mechanism=chosen, logged=False)
    windows = Window(
        "windows", retention_ms=2 * MINUTE_MS, window_size_ms=MINUTE_MS // 10, mechanism=chosen, logged=False
    )
    values.init(task)
    windows.init(task)
    return values, windows


@pytest.fixture(params=["INDEXED_BATCH", "SECONDARY_STORE", "AUTO"])
def owner(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A process that has committed once at the least; gives the task's folder and the mechanism."""
    folder = tmp_path / "task"
    command = [sys.executable, "-c", OWNER, str(folder), request.param]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
    try:
        assert process.stdout is not None
        assert process.stdout.readline(), "the owner ended"
        yield folder, request.param
        assert process.poll() is None, "the owner ended"
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()


def test_every_opening_shows_one_committed_version_and_later_ones_later(owner: tuple[Path, str]) -> None:
    folder, mechanism = owner
    seen: list[int] = []
    deadline = time.monotonic() + 60
    while len(set(seen)) < 8:
        assert time.monotonic() < deadline, f"too few versions: {seen}"
        stores = CommittedStores(folder)
        values, windows = opened(stores, mechanism)
        found = {value for _, value in values.all()}
        assert len(list(values.all())) == KEYS
        assert len(found) == 1
        seen.append(int(next(iter(found))))
        newest = windows.committed_offset()
        assert newest is not None
        starts = dict(windows.fetch(b"7", 0, newest * MINUTE_MS // 10))
        assert int(starts[max(starts)]) == newest
        # The stores of a task without a loop around them commit one after the other.
        assert seen[-1] - newest in (0, 1)
        stores.close()
    assert seen == sorted(seen)


def test_an_open_reader_keeps_its_version(owner: tuple[Path, str]) -> None:
    folder, mechanism = owner
    stores = CommittedStores(folder)
    values, _ = opened(stores, mechanism)
    before = list(values.all())
    later = CommittedStores(folder)
    deadline = time.monotonic() + 60
    while opened(later, mechanism)[0].get(b"0") == before[0][1]:
        assert time.monotonic() < deadline
        later.close()
        later = CommittedStores(folder)
    assert list(values.all()) == before
    assert values.get(b"0") == before[0][1]
    stores.close()
    later.close()


def test_writing_is_refused(owner: tuple[Path, str]) -> None:
    folder, mechanism = owner
    stores = CommittedStores(folder)
    values, windows = opened(stores, mechanism)
    for write in (
        lambda: values.put(b"k", b"v"),
        lambda: values.delete(b"0"),
        lambda: values.commit(7),
        lambda: windows.put(b"k", b"v", 10**12),
    ):
        with pytest.raises(InvalidInput, match="open for reading only"):
            write()
    with pytest.raises(InvalidInput, match="no such store"):
        KeyValue("other", logged=False).init(stores)
    with pytest.raises(InvalidConfig, match="memory of its own process"):
        KeyValue("memory", persistent=False, logged=False).init(stores)
    stores.close()


def test_a_folder_without_stores_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="folder has no stores"):
        opened(CommittedStores(tmp_path), "INDEXED_BATCH")
    assert os.listdir(tmp_path) == []


def test_a_store_without_transactions_has_no_commit_to_read(tmp_path: Path) -> None:
    task = TaskStores(tmp_path)
    written = KeyValue("s", mechanism=None)
    written.init(task)
    written.put(b"k", b"v")
    with pytest.raises(TaskCorrupted, match="belongs to no commit"):
        KeyValue("s", mechanism=None).init(CommittedStores(tmp_path))
    written.commit(1)
    task.close()
    reader = CommittedStores(tmp_path)
    read = KeyValue("s", mechanism=None)
    with pytest.raises(InvalidInput, match="open for reading only"):
        read.init(reader)
    reader.close()
