"""A transaction of ten times `uncommitted_bytes_max`: what spills stays within a bound, what does not says how large it is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from statestore.config import RocksConfig

MIB = 1024 * 1024
UNCOMMITTED_BYTES_MAX = 8 * MIB
COPY_BYTES_MAX = MIB
VALUE_BYTES = 1000
CONFIG = RocksConfig(write_buffer_bytes=MIB, block_cache_bytes=MIB)
WRITTEN = 10 * UNCOMMITTED_BYTES_MAX

# The task's RocksDB and the temporary one: memtables, as many again while they are flushed, and cached blocks.
_DATABASES = 2 * (2 * 4 * CONFIG.write_buffer_bytes + CONFIG.block_cache_bytes)
# A piece of the copy is there as RocksDB's bytes, as Python's, as a batch, and as the piece before it.
_COPY = 4 * COPY_BYTES_MAX
# Indexes and filters of open files, threads, what the allocator keeps.
_REST = 32 * MIB
BOUND = UNCOMMITTED_BYTES_MAX + _DATABASES + _COPY + _REST


def grown(folder: Path, mechanism: str) -> dict[str, int]:
    """What a process of its own says after it has written ten times the bound."""
    command = [sys.executable, "-m", "tests.statestore.memory_child", str(folder), mechanism, str(WRITTEN)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, check=True, timeout=300)
    figures: dict[str, int] = json.loads(done.stdout)
    print(mechanism, {name: f"{size / MIB:.0f} MiB" for name, size in figures.items()}, f"bound {BOUND / MIB:.0f} MiB")
    return figures


@pytest.mark.parametrize("mechanism", ["auto", "secondary_store"])
def test_memory_is_bounded_by_the_configuration_however_much_is_written(tmp_path: Path, mechanism: str) -> None:
    assert BOUND < WRITTEN
    figures = grown(tmp_path, mechanism)
    assert figures["uncommitted"] > WRITTEN
    assert figures["writing"] < BOUND
    assert figures["committing"] < BOUND


def test_an_indexed_batch_takes_what_is_written_and_says_so_that_its_task_commits(tmp_path: Path) -> None:
    """It has nowhere to go with it. A task's loop commits at its share of the budget, which `StreamTask` looks at."""
    figures = grown(tmp_path, "indexed_batch")
    assert figures["uncommitted"] > WRITTEN
    assert figures["writing"] > WRITTEN > BOUND
