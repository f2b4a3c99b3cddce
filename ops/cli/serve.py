"""`serve`: the metastore over HTTP."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ops.cli.context import settings_of_here
from ops.cli.output import say
from statestore.errors import InvalidConfig

if TYPE_CHECKING:
    from pipelines.settings import Settings

TOKEN_VARIABLE = "ROLLFORWARD_API_TOKEN"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        epilog="[bold]rollforward serve --port 8088[/]\n\n"
        'curl -H "Authorization: Bearer $(cat .rollforward/api-token)" http://127.0.0.1:8088/pipelines\n\n'
        "Start as many as you like, on as many machines: they agree through Kafka. The page /docs explains every call."
    )(serve)


def serve(
    host: Annotated[
        str, typer.Option(help="Address to listen on; others than 127.0.0.1 want TLS in front.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: a free one.")] = 8088,
) -> None:
    """Serve the metastore over HTTP, until SIGTERM or Ctrl-C. Every other command works without it."""
    import uvicorn

    from ops.alerts.webhook import alert_routes
    from pipelines.metastore.api import create_app

    settings = settings_of_here()
    settings.kafka_config()
    token, where = api_token(settings)
    app = create_app(settings, token, alert_routes(settings))
    with _listening(host, port) as listening:
        say(f"Metastore  {_url(listening)}  (docs at /docs, token in {where})")
        # A statement that is under way is answered, unless Kafka keeps it waiting: then its key tells.
        bound = int(settings.request_timeout_s) + 1
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=bound))
        server.run(sockets=[listening])


@contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    """Listens from here on, so that the address that is told answers. Raises `InvalidConfig` for one that is taken."""
    try:
        listening = socket.create_server((host, port), family=_family(host))
    except OSError as error:
        hint = "choose another with --host and --port"
        raise InvalidConfig("address cannot be used", host=host, port=port, error=error, hint=hint) from error
    with listening:
        yield listening


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _url(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def api_token(settings: Settings) -> tuple[str, str]:
    """The token and where it is kept: the environment, or a file of this home that only its owner reads."""
    given = os.environ.get(TOKEN_VARIABLE, "")
    if given:
        return given, f"${TOKEN_VARIABLE}"
    path = settings.home / "api-token"
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    _make(path)
    return path.read_text(encoding="ascii").strip(), str(path)


def _make(path: Path) -> None:
    """Write a new token, whole or not at all, unless there is one."""
    beside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
        os.link(beside, path)
    except FileExistsError:
        return
    finally:
        beside.unlink(missing_ok=True)
