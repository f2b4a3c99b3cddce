"""A server on another machine may stay silent for ever: nobody waits for it longer than until it is given up."""

from __future__ import annotations

import threading
from contextvars import ContextVar
from typing import Any

import pytest

from pipelines.engine.hosted import RemoteServer
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
