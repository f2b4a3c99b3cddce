"""A network between Kafka's clients and the broker that can be cut: a proxy in a process of its own.

    python -m tests.support.network LISTEN TARGET     forwards every connection on loopback, from port to port, until
                                                      whoever started it ends, even if it is stopped then

The broker listens for it on a second port and advertises the proxy's, so that a client that was given the proxy's address
never finds another. Killed, its connections end and new ones are refused, as behind a switch that is off.
Stopped, it swallows what is sent and delivers it, late, when it goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from infra import ports
from infra.broker import Broker
from infra.files import write_atomic
from tests.support.waiting import await_

_CHUNK = 256 * 1024
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class ProxiedBroker(Broker):
    """A broker that is also to be reached through a proxy: on port `proxied`, which it calls `proxy`."""

    proxied: int = 0
    proxy: int = 0

    def _write_config(self, *, client: int, controller: int) -> None:
        super()._write_config(client=client, controller=controller)
        text = self._config.read_text()
        for setting, more in (
            ("listeners", f"PROXIED://{ports.HOST}:{self.proxied}"),
            ("advertised.listeners", f"PROXIED://{ports.HOST}:{self.proxy}"),
            ("listener.security.protocol.map", "PROXIED:PLAINTEXT"),
        ):
            text = text.replace(f"\n{setting}=", f"\n{setting}={more},")
        # It ends transactions that have expired as soon as they have, and not up to ten seconds later.
        text += "transaction.abort.timed.out.transaction.cleanup.interval.ms=1000\n"
        write_atomic(self._config, text)


class Network:
    """The proxy, running from the start. `address` is what clients take as `bootstrap.servers`."""

    def __init__(self, *, proxy: int, proxied: int) -> None:
        self.address = f"{ports.HOST}:{proxy}"
        self._port = proxy
        self._command = [sys.executable, "-m", "tests.support.network", str(proxy), str(proxied)]
        self._start()

    def _start(self) -> None:
        root = Path(__file__).parents[2]
        self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, cwd=root)
        await_("the proxy listens", self._listens)

    def _listens(self) -> bool:
        owner = ports.owner(self._port)
        return owner is not None and owner.pid == self._process.pid

    @contextmanager
    def cut(self) -> Iterator[None]:
        """Every connection ends, and none comes about within."""
        self.close()
        try:
            yield
        finally:
            self._start()

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Connections stay, and nothing comes through them within; what was sent arrives afterwards."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End the proxy."""
        self._process.kill()
        self._process.wait()


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(ConnectionError):
        writer.close()
        await writer.wait_closed()


async def _serve(listen: int, target: int) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            broker_reader, broker_writer = await asyncio.open_connection(ports.HOST, target)
        except ConnectionError:
            # The broker is down: so is what the client has opened.
            writer.close()
            return
        await asyncio.gather(_forward(reader, broker_writer), _forward(broker_reader, writer))

    server = await asyncio.start_server(connected, ports.HOST, listen)
    async with server:
        await server.serve_forever()


def _end_with_parent() -> None:
    """Linux kills this process when the one that started it ends; one that is stopped would not notice by itself."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    _end_with_parent()
    asyncio.run(_serve(int(sys.argv[1]), int(sys.argv[2])))
