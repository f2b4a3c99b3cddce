"""What a store server answers, and logs, while one of its tasks is restored."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from statestore import recovery
from statestore.client import StoreClient
from statestore.config import RocksConfig, ServerConfig
from statestore.kafka.reader import Reader, Record
from statestore.server import StoreServer
from tests.support.task import TaskWorld

WAIT_S = 60


@pytest.fixture
def world(new_world: TaskWorld) -> TaskWorld:
    return new_world


@pytest.fixture
def address(world: TaskWorld, tmp_path: Path) -> Iterator[Path]:
    """Of a server in this process."""
    address = tmp_path / "s.sock"
    server = StoreServer(ServerConfig("s", str(address), world.kafka, RocksConfig(), states=tmp_path / "states"))
    yield address
    server.close_tasks()
    server.shutdown()


def test_a_server_says_how_far_a_restore_is_while_it_goes_on(
    world: TaskWorld, address: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.open()
    world.commit({b"key-%03d" % number: b"1" for number in range(100)})
    world.close()
    shutil.rmtree(world.spec.folder)
    half, go_on = threading.Event(), threading.Event()
    read, met = Reader.read, []

    def in_tens(reader: Reader, topic: str, partition: int, *, start: int, end: int) -> Iterator[list[Record]]:
        for chunk in read(reader, topic, partition, start=start, end=end):
            yield from (chunk[at : at + 10] for at in range(0, len(chunk), 10))

    def reach(point: str) -> None:
        met.append(point)
        # The sixth chunk is written and not told yet.
        if met.count("recover.in-replay") == 6 and not half.is_set():
            half.set()
            assert go_on.wait(WAIT_S)

    monkeypatch.setattr(Reader, "read", in_tens)
    monkeypatch.setattr(recovery, "reach", reach)
    with StoreClient(address, timeout_s=WAIT_S) as client, ThreadPoolExecutor(max_workers=1) as beside:
        assert [] == client.restoring()
        opening = beside.submit(client.open_task, world.spec, world.start_driver())
        try:
            assert half.wait(WAIT_S)
            with StoreClient(address, timeout_s=WAIT_S) as other:
                [told] = other.restoring()
        finally:
            go_on.set()
        assert ("q-0", "records", 50, 50) == (told["task"], told["unit"], told["amount"], told["percent"])
        assert told["per_second"] > 0
        assert told["left_s"] >= 0
        assert 100 == opening.result(WAIT_S)["records"]
        assert [] == client.restoring()
