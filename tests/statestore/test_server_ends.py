"""A store server ends when it is told to, also while a client has a call open, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from statestore import wire
from statestore.client import StoreClient
from statestore.lockholder import FolderLock
from tests.support.task import TaskWorld, keys_of
from tests.support.waiting import await_, require_within

ENDS_S = 5.0
# It waits for a call that hangs, and for a store that cannot be closed.
ENDS_UNCLOSED_S = 8.0
Process = subprocess.Popen[bytes]


@pytest.fixture
def world(new_world: TaskWorld) -> TaskWorld:
    return new_world


@pytest.fixture
def address(tmp_path: Path) -> Path:
    return tmp_path / "s.sock"


@pytest.fixture
def server(world: TaskWorld, address: Path, request: pytest.FixtureRequest) -> Iterator[Process]:
    """With the modules that a test is parametrized with."""
    fields = {
        "name": "s",
        "address": str(address),
        "kafka": {"bootstrap_servers": world.kafka.bootstrap_servers},
        "rocks": {},
        "transactions": True,
    }
    modules = getattr(request, "param", [])
    process = subprocess.Popen([sys.executable, "-m", "statestore.server", *modules], stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(wire.dumps(**fields) + b"\n")
    process.stdin.flush()
    await_("the server listens", address.exists)
    yield process
    process.kill()
    process.wait()


def told_by_signal(process: Process) -> None:
    process.send_signal(signal.SIGTERM)


def told_by_its_driver_s_end(process: Process) -> None:
    assert process.stdin is not None
    process.stdin.close()


@pytest.mark.parametrize("tell", [told_by_signal, told_by_its_driver_s_end])
def test_a_server_ends(world: TaskWorld, server: Process, address: Path, tell: Callable[[Process], None]) -> None:
    epoch = world.start_driver()
    with StoreClient(address, timeout_s=30) as client:
        client.open_task(world.spec, epoch)
        # Of a worker that hangs.
        reading = client.read("q-0", epoch=epoch, batch=0)
        reading.states(pa.array(keys_of(0, 1, 1)))
        started = time.monotonic()
        tell(server)
        assert os.EX_OK == server.wait(60)
        require_within(ENDS_S, started)
    assert not address.exists()
    FolderLock(world.spec.folder).close()


@pytest.mark.parametrize("server", [["tests.support.held_tasks"]], indirect=True)
def test_a_server_ends_though_a_task_is_held(world: TaskWorld, server: Process, address: Path) -> None:
    with StoreClient(address, timeout_s=30) as client:
        client.open_task(world.spec, world.start_driver())
        started = time.monotonic()
        told_by_signal(server)
        assert os.EX_OK == server.wait(60)
        require_within(ENDS_UNCLOSED_S, started)
    assert not address.exists()
    # What was not closed is in nobody's way.
    world.open()
