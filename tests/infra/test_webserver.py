"""Dagster's pages, queries and websockets work, and another site's page in the same browser can do nothing there."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from socket import create_connection
from typing import Any
from urllib.parse import urlencode

import pytest
from starlette.types import Receive, Scope, Send
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin, Subprotocol

from infra import ports
from infra.dagster import Dagster
from infra.webserver import Gate

DEFINITIONS = Path(__file__).parent / "definitions"
MUTATION = "mutation { setNuxSeen }"
OWN, EVIL = "127.0.0.1:3000", "https://evil.example"


def told(method: str = "GET", path: str = "/", *, operators: str = "", **headers: str) -> int:
    """The status that the gate gives, 200 for what it lets through; `WS` opens a websocket. Host is ours unless named."""
    named = {"host": OWN, **{name.lower(): value for name, value in headers.items()}}
    is_socket = method == "WS"
    scope: dict[str, Any] = {
        "type": "websocket" if is_socket else "http",
        "path": path,
        "headers": [(name.encode(), value.encode()) for name, value in named.items()],
        **({} if is_socket else {"method": method}),
    }
    sent: list[Any] = []

    async def receive() -> Any:
        raise AssertionError("nothing is read before it is let through")

    async def send(message: Any) -> None:
        sent.append(message)

    async def let_through(_: Scope, __: Receive, ___: Send) -> None:
        sent.append({"status": 200})

    asyncio.run(Gate(let_through, operators.split(","))(scope, receive, send))
    # A websocket that is closed before it is accepted is answered with 403.
    return 403 if sent[0].get("type") == "websocket.close" else int(sent[0]["status"])


@pytest.mark.parametrize("host", [OWN, "localhost:3000", "LOCALHOST", "[::1]:8080"])
def test_the_names_of_loopback_are_let_in(host: str) -> None:
    assert 200 == told(host=host)
    assert 200 == told("POST", "/graphql", host=host, origin=f"http://{host}")
    assert 200 == told("WS", "/graphql", host=host, origin=f"http://{host}")


@pytest.mark.parametrize(
    "host", ["evil.example:3000", "127.0.0.1.evil.example", "evil.example@evil.example", "", "[", "0.0.0.0", "127.1"]
)
def test_another_name_that_leads_here_is_refused(host: str) -> None:
    for path in ("/", "/graphql", "/server_info"):
        for method in ("GET", "POST", "WS"):
            assert 403 == told(method, path, host=host, origin=f"http://{host}")


@pytest.mark.parametrize("origin", [EVIL, "null", "", "http://127.0.0.1:8888", "http://localhost:3000", "http://["])
def test_a_page_of_another_origin_changes_nothing(origin: str) -> None:
    for method in ("POST", "OPTIONS", "PUT", "WS"):
        assert 403 == told(method, "/graphql", origin=origin)
        assert 403 == told(method, "/report_asset_check/a", origin=origin)


def test_a_program_without_an_origin_is_let_in() -> None:
    assert 200 == told("POST", "/graphql")
    assert 200 == told("WS", "/graphql")


def test_graphql_is_not_executed_by_get() -> None:
    for accept in ("image/*", "*/*", "application/json", ""):
        assert 403 == told("GET", "/graphql", accept=accept)
    assert 200 == told("GET", "/graphql", accept="text/html,*/*")
    assert 200 == told("GET", "/assets", accept="*/*")


@pytest.mark.parametrize("host", ["ui.example.com", OWN])
def test_a_name_that_the_operator_gives_is_let_in(host: str) -> None:
    operators = " UI.example.com,other.example.com"
    for method in ("POST", "WS"):
        assert 200 == told(method, "/graphql", operators=operators, host=host, origin="https://ui.example.com")
        assert 403 == told(method, "/graphql", operators=operators, host=host, origin=EVIL)
    assert 403 == told(operators=operators, host="evil.example")


@pytest.mark.parametrize("named", ["ui.example.com:8443", "ui.example.com", "[2001:db8::1]:8443", "2001:db8::1"])
def test_a_name_that_is_given_with_its_port_is_let_in(named: str) -> None:
    host = "ui.example.com:8443" if "ui" in named else "[2001:db8::1]:8443"
    assert 200 == told("POST", "/graphql", operators=named, host=host, origin=f"https://{host}")
    assert 403 == told("POST", "/graphql", operators=named, host="evil.example:8443", origin=EVIL)


@pytest.fixture
def dagster(tmp_path: Path, leftovers: Callable[[], list[int]]) -> Iterator[Dagster]:
    dagster = Dagster(home=tmp_path / "dagster", logs=tmp_path / "logs", records=tmp_path / "run")
    env = {"PYTHONPATH": str(DEFINITIONS), "ROLLFORWARD_BOOTSTRAP_SERVERS": ""}
    dagster.start(module="tiny_definitions", config=DEFINITIONS / "dagster.yaml", env=env)
    yield dagster
    dagster.stop()


def ask(url: str, body: bytes | None = None, **headers: str) -> tuple[int, str]:
    """Status and text of one request; with a body it is a POST."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, named), timeout=60) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_dagsters_own_pages_work_and_other_sites_are_kept_out(dagster: Dagster) -> None:
    url, query = f"{dagster.url}/graphql", urlencode({"query": MUTATION})
    # As its page does: the document, what it loads, a query, a change.
    code, page = ask(f"{dagster.url}/overview", Accept="text/html")
    assert 200 == code
    script = re.search(r'src="(/[^"]+\.js)"', page)
    assert script is not None and 200 == ask(f"{dagster.url}{script[1]}")[0]
    own = {"Content_Type": "application/json", "Origin": dagster.url or ""}
    for text in ("{ version }", MUTATION):
        code, answer = ask(url, json.dumps({"query": text}).encode(), **own)
        assert (200, True) == (code, "errors" not in json.loads(answer)), answer
    assert (200, True) == (ask(url, Accept="text/html")[0], "GraphiQL" in ask(url, Accept="text/html")[1])
    assert 403 == ask(f"{url}?{query}", Accept="image/*")[0]
    assert 403 == ask(f"{url}?{query}", b"", Content_Type="text/plain", Origin=EVIL)[0]
    assert 403 == ask(f"{url}?{query}", b"", Content_Type="text/plain", Host="evil.example")[0]
    assert "Cannot query field 'nothing'" in subscribed(dagster)
    for foreign in ({"origin": EVIL}, {"host": "evil.example"}, {"host": "evil.example", "origin": EVIL}):
        with pytest.raises(InvalidStatus) as refused:
            subscribed(dagster, **foreign)
        assert 403 == refused.value.response.status_code


def subscribed(dagster: Dagster, *, origin: str = "", host: str = ports.HOST) -> str:
    """What is wrong with a subscription, asked through a websocket as Dagster's page opens it."""
    with (
        create_connection((ports.HOST, dagster.port or 0)) as connection,
        connect(
            f"ws://{host}:{dagster.port}/graphql",
            sock=connection,
            origin=Origin(origin or dagster.url or ""),
            subprotocols=[Subprotocol("graphql-ws")],
            proxy=None,
        ) as socket,
    ):
        socket.send(json.dumps({"type": "connection_init"}))
        assert {"type": "connection_ack"} == json.loads(socket.recv(timeout=60))
        socket.send(json.dumps({"type": "start", "id": "1", "payload": {"query": "subscription { nothing }"}}))
        return str(json.loads(socket.recv(timeout=60))["payload"]["message"])
