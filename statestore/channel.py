"""How a store server and its clients find and trust each other.

    /run/…/x.sock           on one machine: a unix socket of mode 0600 in a folder of mode 0700; the file system decides
    tls://host:port         between machines: TLS, and a token with every call

The secrets come from the environment of each process and travel nowhere else, neither in Spark's settings nor in the
commands between processes:

    ROLLFORWARD_STORE_TOKEN         the token, the same everywhere
    ROLLFORWARD_STORE_CA            file of the authority whose certificates clients accept (PEM)
    ROLLFORWARD_STORE_CERTIFICATE   files of a server's certificate and key (PEM)
    ROLLFORWARD_STORE_KEY
"""

from __future__ import annotations

import hmac
import os
from pathlib import Path
from typing import Any

import pyarrow.flight as flight

from statestore.errors import InvalidConfig

TLS = "tls://"
_HEADER = "authorization"
TOKEN, CA = "ROLLFORWARD_STORE_TOKEN", "ROLLFORWARD_STORE_CA"
CERTIFICATE, KEY = "ROLLFORWARD_STORE_CERTIFICATE", "ROLLFORWARD_STORE_KEY"


def is_remote(address: Path | str) -> bool:
    """Whether the address is of another machine."""
    return str(address).startswith(TLS)


def may_listen(address: Path | str) -> bool:
    """False if nobody can be there: the socket's file is gone. Of another machine only a call can tell."""
    return is_remote(address) or Path(address).exists()


def _secret(name: str, what: str) -> str:
    value = os.environ.get(name, "")
    if not value:
        raise InvalidConfig(f"{what} is not in the environment", variable=name, hint="set it for every process")
    return value


def _location(address: Path | str) -> str:
    return f"grpc+{address}" if is_remote(address) else f"grpc+unix://{address}"


def client(address: Path | str) -> Any:
    """A Flight client of the server at `address`. Connects when it is first used."""
    if not is_remote(address):
        return flight.FlightClient(_location(address))
    authority = Path(_secret(CA, "certificate authority of the store servers")).read_bytes()
    return flight.FlightClient(_location(address), tls_root_certs=authority)


def options(address: Path | str, timeout_s: float | None) -> Any:
    """Options of every call to that server: its bound in seconds, and the token."""
    if not is_remote(address):
        return flight.FlightCallOptions(timeout=timeout_s)
    token = f"Bearer {_secret(TOKEN, 'token of the store servers')}"
    return flight.FlightCallOptions(timeout=timeout_s, headers=[(_HEADER.encode(), token.encode())])


def server_arguments(address: Path | str) -> dict[str, Any]:
    """What a Flight server takes to listen at `address`."""
    if not is_remote(address):
        return {"location": _location(address)}
    chain = Path(_secret(CERTIFICATE, "certificate of the store server")).read_bytes()
    key = Path(_secret(KEY, "key of the store server")).read_bytes()
    return {
        "location": _location(address),
        "tls_certificates": [(chain, key)],
        "middleware": {"token": _RequireToken(_secret(TOKEN, "token of the store servers"))},
    }


class _RequireToken(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Refuses calls without the token, in constant time."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self._wanted = f"Bearer {token}".encode()

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> None:
        given = next(iter(headers.get(_HEADER, [])), "")
        if not hmac.compare_digest(str(given).encode(), self._wanted):
            raise flight.FlightUnauthenticatedError("token is missing or wrong")
