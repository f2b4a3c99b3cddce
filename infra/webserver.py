"""Dagster's webserver behind a gate: `python -m infra.webserver` takes the words of `python -m dagster_webserver`.

The webserver asks nobody who he is, and executes any GraphQL that it gets. That it listens on loopback keeps other
machines out, and not the pages of other sites in a browser on this one. The gate refuses what only those send:

    a Host that is not this machine's       a name of theirs that was made to lead here (DNS rebinding)
    an Origin that is not the Host          forms and scripts of theirs, also those that open a websocket
    GraphQL by GET                          images and links of theirs, which have no Origin

Behind a proxy under a name of its own: ROLLFORWARD_DAGSTER_HOSTS has that name, several with commas between. Programs of
this machine are not kept out: they send what they like.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from infra import ports

HOSTS = "ROLLFORWARD_DAGSTER_HOSTS"
LOOPBACK = (ports.HOST, "localhost", "::1")
GRAPHQL = "/graphql"


class Gate:
    """Lets through what a person's own page sends, and programs; see above. `hosts` are names beside those of loopback."""

    def __init__(self, app: ASGIApp, hosts: Iterable[str] = ()) -> None:
        self._app = app
        # With a port, as in a browser's line, it is the same name.
        named = {host.strip().lower() for host in hosts if host.strip()}
        self._hosts = {*LOOPBACK, *named, *(name for host in named if (name := _name(f"//{host}")))}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, or one websocket."""
        reason = self._refused(scope) if scope["type"] in ("http", "websocket") else None
        answer: ASGIApp = self._app
        if reason is not None:
            is_socket = scope["type"] == "websocket"
            answer = WebSocketClose(1008, reason) if is_socket else PlainTextResponse(f"{reason}\n", 403)
        await answer(scope, receive, send)

    def _refused(self, scope: Scope) -> str | None:
        headers = Headers(scope=scope)
        host, origin, method = headers.get("host", "").lower(), headers.get("origin"), scope.get("method")
        if _name(f"//{host}") not in self._hosts:
            return f"host is not this server's; hint: name it in {HOSTS} before `rollforward up`"
        if origin is not None and method != "GET" and not self._is_own(origin.lower(), host):
            return f"request is from another site's page; hint: a proxy has to pass Host on, named in {HOSTS}"
        # With text/html the answer is a page to write GraphQL in, whatever the query.
        if method == "GET" and scope["path"] == GRAPHQL and "text/html" not in headers.get("accept", ""):
            return "GraphQL is not executed by GET; hint: use POST"
        return None

    def _is_own(self, origin: str, host: str) -> bool:
        # A proxy in front may speak to us under another name than people do to it.
        return origin.partition("://")[2] == host or _name(origin) in self._hosts - set(LOOPBACK)


def _name(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def main() -> None:
    """Dagster's own command, with the gate around the application that it makes."""
    cli: Any = import_module("dagster_webserver.cli")
    make = cli.create_app_from_workspace_process_context

    def gated(*args: Any, **options: Any) -> Starlette:
        app: Starlette = make(*args, **options)
        app.add_middleware(Gate, hosts=os.environ.get(HOSTS, "").split(","))
        return app

    cli.create_app_from_workspace_process_context = gated
    cli.main()


if __name__ == "__main__":
    main()
