"""`rollforward serve` as people run it: processes that answer over HTTP."""

from __future__ import annotations

import os
import re
import signal
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import requests

from pipelines.settings import Settings
from tests.metastore.conftest import Open, Serve, script
from tests.support.served import TOKEN, Server
from tests.support.waiting import await_


def test_a_statement_over_http_and_what_is_told_of_it(serve: Serve, unique: str) -> None:
    server = serve()
    server.await_ready()
    text = script(unique).text
    assert {"key": "k", "sequence": 0, "repeated": False}.items() <= server.post(text, unique, "k").json().items()
    assert server.post(text, unique, "k").json()["repeated"]
    assert ("k", unique) == tuple(server.get("/statements/k").json()[name] for name in ("key", "pipeline"))
    assert 404 == server.get("/statements/other").status_code
    assert 409 == server.post(f"RESUME {unique};", key="k").status_code
    assert 1 == server.post(f"RESUME {unique};").json()["sequence"]
    [shown] = server.get("/pipelines").json()
    assert (unique, "running", text) == (shown["name"], shown["desired"], shown["sql"])
    assert shown == server.get(f"/pipelines/{unique}").json()
    wrong = server.post("CREATE TABEL x", unique)
    assert (400, "SqlError") == (wrong.status_code, wrong.json()["error"]["kind"])
    assert "SqlError" == server.post("CREATE TABEL x").json()["error"]["kind"], "one statement needs no pipeline"
    assert "script has no pipeline" in server.post(text).json()["error"]["message"]
    assert 400 == server.http.post(server.url + "/statements", json={"x": 1}, timeout=60).status_code
    wrong_figures = [f"/log?newest={newest}" for newest in (-1, 0, 1_001)] + ["/incidents?limit=-1"]
    assert {400} == {server.get(path).status_code for path in wrong_figures}
    assert 200 == server.http.post(server.url + "/checkpoint", timeout=60).status_code
    assert ["checkpoint"] == [command["kind"] for command in server.get("/log").json()["commands"]][-1:]
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(30) in (0, -signal.SIGTERM)


def test_nothing_is_told_without_the_token(serve: Serve, unique: str) -> None:
    server = serve()
    for headers in (
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer \u00e9"},
        {"Authorization": "Basic x"},
    ):
        encoded = {name: value.encode("latin-1") for name, value in headers.items()}
        for method, path in (("GET", "/pipelines"), ("GET", "/log"), ("POST", "/statements"), ("POST", "/checkpoint")):
            answer = requests.request(method, server.url + path, headers=encoded, json={}, timeout=60)
            assert 401 == answer.status_code, (path, headers)
            answer = requests.request(method, server.url + path, headers=encoded, data="no JSON", timeout=60)
            assert 401 == answer.status_code, (path, headers)
    assert 401 == head_of(server, **{"Content-Length": "64000000"})
    token = {"Authorization": f"Bearer {TOKEN}"}
    assert 413 == head_of(server, **token, **{"Content-Length": "64000000"})
    assert 411 == head_of(server, **token, **{"Transfer-Encoding": "chunked"})
    assert 200 == requests.get(server.url + "/live", timeout=60).status_code


def head_of(server: Server, **headers: str) -> int:
    """The answer to a request of which only the head has come."""
    address = urlsplit(server.url)
    with closing(HTTPConnection(str(address.hostname), address.port, timeout=60)) as connection:
        connection.putrequest("POST", "/statements")
        for name, value in {"Content-Type": "application/json", **headers}.items():
            connection.putheader(name, value)
        connection.endheaders()
        return connection.getresponse().status


def test_what_is_dropped_over_http_leaves_nothing(serve: Serve, opened: Open, topic: str, unique: str) -> None:
    server = serve()
    server.await_ready()
    name = unique.upper()
    source = f"CREATE STREAM {name} (k VARCHAR KEY, a INT) WITH (kafka_topic='{topic}', value_format='json')"
    for statement in (
        source,
        f"CREATE TABLE {name}A AS SELECT k, COUNT(*) AS n FROM {name} GROUP BY k",
        f"CREATE TABLE {name}B AS SELECT k, COUNT(*) AS n FROM {name} GROUP BY k",
        f"PAUSE CTAS_{name}A",
        f"PAUSE CTAS_{name}B",
        f"DROP TABLE {name}A DELETE TOPIC",
        f"TERMINATE CTAS_{name}B",
    ):
        answer = server.post(statement)
        assert 200 == answer.status_code, answer.text
    left = {found for found in opened().log.admin.topics() if unique in found.lower()}
    dead_letters = {f"ctas_{unique}{table}-dead-letters" for table in "ab"}
    assert {topic, f"{name}B", *dead_letters} == left


def test_the_documentation_comes_from_the_server_itself(serve: Serve) -> None:
    server = serve()
    page = requests.get(server.url + "/docs", timeout=60).text
    parts = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert parts and not any(part.startswith(("http:", "https:", "//")) for part in parts), parts
    assert all(200 == requests.get(f"{server.url}/{part}", timeout=60).status_code for part in parts)
    assert "/statements" in requests.get(server.url + "/openapi.json", timeout=60).json()["paths"]


def test_a_degraded_server_lives_reads_and_refuses(serve: Serve, opened: Open, unique: str) -> None:
    server = serve()
    server.await_ready()
    server.post(script(unique).text, unique)
    log = opened().log
    log.admin.delete([log.topic_name])

    def reason() -> str:
        return (server.get("/ready").json()["degraded"] or {}).get("reason", "")

    await_("the server is degraded", lambda: reason() == "missing")
    assert 503 == server.get("/ready").status_code
    assert 200 == server.get("/live").status_code
    assert [unique] == [shown["name"] for shown in server.get("/pipelines").json()]
    refused = server.post(f"RESUME {unique};")
    assert (503, "MetastoreDegraded") == (refused.status_code, refused.json()["error"]["kind"])
    assert "rollforward metastore restore" in refused.json()["error"]["hint"]


def test_a_server_lives_before_it_is_ready(serve: Serve) -> None:
    server = serve(ROLLFORWARD_BOOTSTRAP_SERVERS="127.0.0.1:1", ROLLFORWARD_REQUEST_TIMEOUT_S="2")
    assert 200 == server.get("/live").status_code
    ready = server.get("/ready")
    assert (503, False) == (ready.status_code, ready.json()["restored"])
    assert 503 == server.post("RESUME p;").status_code


def test_a_made_token_is_the_owners_alone(service: Settings) -> None:
    from ops.cli.serve import api_token

    assert "ROLLFORWARD_API_TOKEN" not in os.environ
    token, path = api_token(service)
    assert (0o600, token) == (Path(path).stat().st_mode & 0o777, api_token(service)[0])
    assert len(token) > 30
