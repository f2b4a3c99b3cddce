"""A server on another machine may stay silent for ever: nobody waits for it longer than until it is given up."""

from __future__ import annotations

import threading
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from pipelines.engine import servers
from pipelines.engine.hosted import RemoteServer
from pipelines.engine.servers import StoreServers
from statestore.config import KafkaConfig, StoreSpec, TaskSpec
from statestore.errors import Fenced, Unavailable
from tests.support.waiting import await_

TRACE: ContextVar[str] = ContextVar("TRACE", default="none")


def server() -> RemoteServer:
    # Questions are asked by whoever asks: the client is not looked at.
    client: Any = None
    return RemoteServer("tls://away:1", client)


def test_whoever_waits_is_freed_when_the_server_is_given_up() -> None:
    away, asked, never = server(), threading.Event(), threading.Event()
    failed: list[BaseException] = []

    def question() -> bool:
        asked.set()
        return never.wait(60)

    def wait() -> None:
        try:
            away.ask(question)
        except Unavailable as error:
            failed.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert asked.wait(10)
    assert waiting.is_alive()
    away.give_up()
    await_("the end of the waiting", lambda: not waiting.is_alive(), 10)
    never.set()
    assert "store server does not answer" in str(failed[0])


def test_answers_and_errors_come_through_and_the_context_goes_along() -> None:
    def fenced() -> None:
        raise Fenced("a newer driver")

    TRACE.set("this batch")
    assert server().ask(TRACE.get) == "this batch"
    with pytest.raises(Fenced, match="a newer driver"):
        server().ask(fenced)


class Machine:
    """Store servers by address, as the client of a driver of pipeline `p` sees them: the tasks they have."""

    def __init__(self, *addresses: str) -> None:
        self.tasks: dict[str, dict[str, int]] = {address: {} for address in addresses}

    def client(self, address: str, **_: object) -> Machine.Client:
        return Machine.Client(self.tasks[address])

    class Client:
        def __init__(self, tasks: dict[str, int]) -> None:
            self._tasks = tasks

        def act(self, action: str) -> dict[str, Any]:
            assert action == "figures"
            of_p = {"pipeline": "p", "state": "running"}
            return {"tasks": [{**of_p, "task": name, "epoch": epoch} for name, epoch in self._tasks.items()]}

        def open_task(self, spec: TaskSpec, epoch: int) -> dict[str, Any]:
            self._tasks[spec.name] = epoch
            return {}

        def close_task(self, spec: TaskSpec, epoch: int) -> bool:
            assert self._tasks.pop(spec.name) <= epoch
            return True

        def close(self) -> None:
            pass


def test_servers_of_other_machines_let_go_of_what_has_moved_and_of_a_driver_that_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine("here", "there")
    monkeypatch.setattr(servers, "StoreClient", machine.client)
    monkeypatch.setattr(servers, "require_answer", lambda *_: None)
    kafka = KafkaConfig("127.0.0.1:1")
    store = StoreSpec("q", "c", "id")
    specs = [TaskSpec("p", "q", number, 2, "b", "o", "d", store, tmp_path / str(number)) for number in range(2)]
    # It was given up once, and has come back with what it had.
    machine.tasks["there"] = {"q-0": 3, "other-0": 7}
    found = StoreServers(
        "p", 0, tmp_path, kafka, transactions=True, log_file=tmp_path / "log", addresses=("here", "there")
    )
    found.assign(specs, 4)
    found.ensure("start")
    assert {"here": {"q-0": 4}, "there": {"q-1": 4, "other-0": 7}} == machine.tasks
    found.close()
    assert {"here": {}, "there": {"other-0": 7}} == machine.tasks
