"""A batch that a task has committed already, run again: the server says so to every client, also to a slow one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statestore.client import StoreClient
from statestore.config import RocksConfig, ServerConfig
from statestore.server import StoreServer
from statestore.staging import EMIT_NOTHING, SCHEMA
from tests.support.task import TaskWorld, keys_of

KEYS = keys_of(0, 1, 3)
# Longer than a server needs to answer.
_LATE_S = 0.3


class Late:
    """A connection whose client sends its first bytes when the server could have answered and left."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def do_exchange(self, *given: Any) -> Any:
        opened = self._client.do_exchange(*given)
        time.sleep(_LATE_S)
        return opened

    def close(self) -> None:
        self._client.close()


@pytest.fixture
def server(kafka: str, unique: str, tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """Where a server listens whose task has committed batch 0, and the driver's epoch."""
    world = TaskWorld(kafka, unique, tmp_path / "state", None)
    address = tmp_path / "s.sock"
    server = StoreServer(ServerConfig("s", str(address), world.kafka, RocksConfig(), states=tmp_path / "states"))
    epoch = world.start_driver()
    with StoreClient(address, timeout_s=30) as client:
        client.open_task(world.spec, epoch)
        reading = client.read("q-0", epoch=epoch, batch=0)
        _, token = reading.states(KEYS)
        reading.close()
        writing = client.write("q-0", epoch=epoch, batch=0, attempt=1, token=token)
        writing.add(rows())
        assert writing.close() == len(KEYS)
        assert client.commit("q-0", epoch=epoch, batch=0, attempt=1, plan="p", ends={})["committed_now"]
    yield address, epoch
    server.close_tasks()
    server.shutdown()
    world.close()


def rows() -> pa.RecordBatch:
    count = len(KEYS)
    columns = [KEYS, [bytes(8)] * count, [1] * count, [EMIT_NOTHING] * count, [None] * count, [None] * count]
    return pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


@pytest.mark.parametrize("late", [False, True], ids=["prompt", "late"])
def test_it_is_read_and_written_without_an_error(server: tuple[Path, int], late: bool) -> None:
    address, epoch = server
    with StoreClient(address, timeout_s=30) as client:
        if late:
            client._client = Late(client._client)
        for attempt in range(2, 5):
            reading = client.read("q-0", epoch=epoch, batch=0)
            assert reading.already
            reading.close()
            writing = client.write("q-0", epoch=epoch, batch=0, attempt=attempt, token=0)
            writing.add(rows())
            assert writing.close() == 0
