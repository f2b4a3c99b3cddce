"""TCP ports on the loopback interface.

Owns the choice of a free port, the file in which a component keeps its own, and the answer to "who has this one". Ports
are taken below the range from which kernels give out ports for outgoing connections, so that a stack that is down does
not lose its port to a passing client. A port that was free is not reserved: the component that binds it a moment later
may still lose a race, and says so.
"""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from infra.errors import InfraError, PortInUse
from infra.files import read_json, write_json

HOST = "127.0.0.1"
PORT_MIN = 20_000
PORT_MAX = 29_999
TRIES_MAX = 200
POLL_S = 0.05
LAST_WAIT_S = 5.0


@dataclass(frozen=True)
class Owner:
    """The process that listens on a port."""

    pid: int
    command: str


def is_free(port: int) -> bool:
    """Whether a server could bind the port on loopback now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: a connection of an earlier server in TIME_WAIT is no obstacle, a listener is.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def free_port(*, avoid: Collection[int] = ()) -> int:
    """A port between 20000 and 29999 inclusive that was free a moment ago and is not in `avoid`."""
    for _ in range(TRIES_MAX):
        port = random.randint(PORT_MIN, PORT_MAX)
        if port not in avoid and is_free(port):
            return port
    raise InfraError(
        "no free port found",
        low=PORT_MIN,
        high=PORT_MAX,
        tries=TRIES_MAX,
        hint="stop some servers on this machine, or pass a port",
    )


def owner(port: int) -> Owner | None:
    """Who listens on the port; None when nobody does or the system does not tell."""
    try:
        connections = psutil.net_connections(kind="tcp")
    except (psutil.Error, OSError):
        return None
    for connection in connections:
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
            try:
                words = psutil.Process(connection.pid).cmdline()
            except psutil.Error:
                words = []
            return Owner(connection.pid, " ".join(words)[:120] or "unknown")
    return None


def require_free(port: int, *, component: str) -> None:
    """Raises PortInUse with the port and, where the system tells, its owner's pid and command."""
    if is_free(port):
        return
    holder = owner(port)
    raise PortInUse(
        f"{component} cannot listen: the port is in use",
        port=port,
        pid=holder.pid if holder else "unknown",
        command=holder.command if holder else "unknown",
        hint="stop that process, or choose another port",
    )


def kept(folder: Path, name: str) -> int | None:
    """The port that a component of the folder had last time; None if it was never started there."""
    port = (read_json(folder / "ports.json") or {}).get(name)
    return port if isinstance(port, int) else None


def keep(folder: Path, chosen: Mapping[str, int]) -> None:
    """Remember the ports by component, so that addresses which people and clients know stay good."""
    write_json(folder / "ports.json", {**(read_json(folder / "ports.json") or {}), **chosen})


def choose(asked: int | None, last: int | None, *, component: str, avoid: Collection[int] = ()) -> int:
    """The port to listen on: the one asked for, else the one of last time, else a free one that is not in `avoid`.

    A killed server holds its port until its last thread has ended, so that of last time is waited for, LAST_WAIT_S at
    most. Raises PortInUse for one that was asked for and is taken.
    """
    if asked is not None:
        require_free(asked, component=component)
        return asked
    return last if last is not None and _comes_free(last) else free_port(avoid=avoid)


def _comes_free(port: int) -> bool:
    deadline = time.monotonic() + LAST_WAIT_S
    while not is_free(port):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True
