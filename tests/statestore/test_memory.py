"""Memory is bounded, and given back.

Ten times `uncommitted_bytes_max` written: what spills stays within a bound, what does not makes its task commit.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from queue import Queue

import pytest

from statestore import allocator, server
from statestore.config import KafkaConfig, RocksConfig, ServerConfig
from tests.statestore.conftest import ONE
from tests.support.counting import Input
from tests.support.task import TaskWorld

MIB = 1024 * 1024
UNCOMMITTED_BYTES_MAX = 8 * MIB
COPY_BYTES_MAX = MIB
VALUE_BYTES = 1000
# Of an entry with key and value of 12 bytes each, for which Python takes ten times as much.
SMALL_BYTES = 24
CONFIG = RocksConfig(write_buffer_bytes=MIB, block_cache_bytes=MIB)
WRITTEN = 10 * UNCOMMITTED_BYTES_MAX

# The task's RocksDB and the temporary one: memtables, as many again while they are flushed, and cached blocks.
_DATABASES = 2 * (2 * 4 * CONFIG.write_buffer_bytes + CONFIG.block_cache_bytes)
# A piece of the copy is there as RocksDB's bytes, as Python's, as a batch, and as the piece before it.
_COPY = 4 * COPY_BYTES_MAX
# Indexes and filters of open files, threads, what the allocator keeps.
_REST = 32 * MIB
BOUND = UNCOMMITTED_BYTES_MAX + _DATABASES + _COPY + _REST

TASK_BYTES_MAX = 2 * MIB
# What waits for the commit is there once more as a batch and as what Kafka's client sends; one RocksDB; and clients.
TASK_BOUND = 3 * TASK_BYTES_MAX + _DATABASES // 2 + 10 * MIB


def measured(how: str, folder: Path, *arguments: str, written: int = WRITTEN) -> dict[str, int]:
    """What a process of its own says after it has written so many bytes."""
    command = [sys.executable, "-m", "tests.statestore.memory_child", how, str(folder), str(written), *arguments]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, check=True, timeout=500)
    figures: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    print(how, arguments, {name: f"{size / MIB:.1f} MiB" for name, size in figures.items()})
    return figures


@pytest.mark.parametrize("mechanism", ["auto", "secondary_store"])
def test_memory_is_bounded_by_the_configuration_however_much_is_written(tmp_path: Path, mechanism: str) -> None:
    assert BOUND < WRITTEN
    figures = measured("transaction", tmp_path, mechanism)
    assert figures["uncommitted"] > WRITTEN
    assert figures["writing"] < BOUND
    assert figures["committing"] < BOUND


def test_an_indexed_batch_takes_what_is_written_and_says_so_that_its_task_commits(tmp_path: Path) -> None:
    """It has nowhere to go with it. A task's loop commits at its share of the budget, which `StreamTask` looks at."""
    figures = measured("transaction", tmp_path, "indexed_batch")
    assert figures["uncommitted"] > WRITTEN
    assert figures["writing"] > WRITTEN > BOUND


def test_a_task_commits_by_the_memory_that_small_entries_take(tmp_path: Path, kafka: str, unique: str) -> None:
    Input(kafka, unique)
    figures = measured("task", tmp_path, kafka, unique, written=10 * TASK_BYTES_MAX)
    assert figures["written"] > 9 * TASK_BYTES_MAX
    assert figures["working"] < TASK_BOUND


def test_a_flush_gives_the_memtables_back_whatever_was_allocated_between_their_pieces(tmp_path: Path) -> None:
    """glibc by itself gives back nothing of the second and of every later one."""
    figures = measured("flush", tmp_path, written=10 * MIB)
    assert figures["memtables"] > 10 * MIB
    assert figures["back"] > figures["memtables"] * 0.8


def test_a_store_server_gives_memory_back_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Served(Exception):
        pass

    def not_here(_: ServerConfig) -> None:
        raise Served

    given: Queue[None] = Queue()
    monkeypatch.setattr(allocator, "EVERY_S", 0.01)
    monkeypatch.setattr(allocator, "give_back", lambda: given.put(None))
    # It is for the whole process.
    monkeypatch.setattr(server, "keep_pandas_out", lambda: None)
    monkeypatch.setattr(server, "StoreServer", not_here)
    # So are signals: who is started by a later test would not be ended by those that are ignored here.
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(Served):
        server.serve(ServerConfig("s", str(tmp_path / "socket"), KafkaConfig("127.0.0.1:1"), RocksConfig()))
    for _ in range(2):
        given.get(timeout=10)


MAPPED = """
import ctypes
from statestore import allocator

allocator.give_back_often()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]


class Mallinfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]


libc.mallinfo2.restype = Mallinfo
libc.free(libc.malloc(16 << 20))
before = libc.mallinfo2().hblks
libc.malloc(1 << 20)
print(libc.mallinfo2().hblks - before)
"""


def test_a_piece_of_a_memtable_is_mapped_for_itself_whatever_was_freed_before() -> None:
    done = subprocess.run([sys.executable, "-c", MAPPED], capture_output=True, text=True, check=True, timeout=60)
    assert "1" == done.stdout.strip()


def test_without_snapshots_a_task_remembers_no_batches_for_them(world: TaskWorld) -> None:
    before = len(world.running.steps.since_last())
    for batch in range(3):
        world.commit({ONE: b"%d" % batch})
    assert before == len(world.running.steps.since_last())
