"""One store server as its driver sees it: a process of its own, or a server on another machine."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from concurrent.futures import wait
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from pipelines.engine.early import beside
from statestore.client import StoreClient
from statestore.errors import Unavailable

LOST = -1
# How often whoever waits for an answer of another machine looks whether its server has been given up.
_LOOK_S = 0.2
Answer = TypeVar("Answer")


@dataclass
class LocalServer:
    """A process that the driver has started; it ends when its standard input is closed."""

    name: str
    address: str
    client: StoreClient
    process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int | None:
        """Its process id on this machine."""
        return self.process.pid

    def ended(self, *, wait_s: float = 0.0) -> int | None:
        """The exit code; None while it runs."""
        if wait_s == 0:
            return self.process.poll()
        try:
            return self.process.wait(timeout=wait_s)
        except subprocess.TimeoutExpired:
            return None

    def ask(self, question: Callable[[], Answer]) -> Answer:
        """The answer to a question that the server answers. `give_up` ends the waiting, since it ends the process."""
        return question()

    def give_up(self) -> None:
        """Kill it, stopped or not. Whoever waits for an answer gets an error."""
        self.process.kill()

    def forget(self) -> None:
        """Close the connection and let it end."""
        self.client.close()
        Path(self.address).unlink(missing_ok=True)
        if self.process.stdin is not None:
            self.process.stdin.close()

    def await_end(self, timeout_s: float) -> None:
        """Wait until it has ended; kill it if it takes longer."""
        if self.ended(wait_s=timeout_s) is None:
            self.process.kill()
            self.process.wait()
        Path(self.address).unlink(missing_ok=True)


@dataclass
class RemoteServer:
    """A server on another machine, which nobody here can kill. What it still does after `give_up` is fenced in Kafka."""

    address: str
    client: StoreClient
    lost: bool = False

    @property
    def name(self) -> str:
        """Its address."""
        return self.address

    @property
    def pid(self) -> int | None:
        """None: it is not a process of this machine."""
        return None

    def ended(self, *, wait_s: float = 0.0) -> int | None:
        """`LOST` when it has been given up."""
        return LOST if self.lost else None

    def ask(self, question: Callable[[], Answer]) -> Answer:
        """The answer to a question that the server answers. Raises `Unavailable` when it has been given up meanwhile.

        A machine that is frozen or cut off keeps its connection, and the call on it may never end: it is left behind
        in its thread. What it asked for does no harm if it comes about: who asks again has fenced it, or is told so.
        """
        answer = beside(f"ask-{self.address}", partial(copy_context().run, question))
        while not wait([answer], timeout=_LOOK_S).done:
            if self.lost:
                raise Unavailable("store server does not answer", server=self.address)
        return answer.result()

    def give_up(self) -> None:
        """Call it no more."""
        self.lost = True

    def forget(self) -> None:
        """Close the connection; who waits for an answer gets none."""
        self.give_up()
        self.client.close()

    def await_end(self, timeout_s: float) -> None:
        """It goes on."""
