"""Real `rollforward serve` processes of one service, killed and stopped: each statement is in the log once, or absent.

Its client learns which by its idempotency key, every server shows the same, and that is what a replay shows.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import requests

from statestore.failpoints import METASTORE_POINTS, arm, is_armed
from tests.metastore.conftest import Open, Serve
from tests.support.ledger import Told, commands, create, differences, drawn, equals_a_replay
from tests.support.served import ANSWER_S, Server
from tests.support.waiting import await_

# From here on the statement is in the log, whatever becomes of its server.
IN_FROM = METASTORE_POINTS.index("statement.committed")


def shown(server: Server) -> list[str]:
    """The keys of the statements that a server shows, in order."""
    return [command["key"] for command in server.get("/log").json()["commands"]]


def await_same(servers: list[Server], count: int) -> None:
    """All of them show so many statements, the same ones."""
    await_(
        "all show the same",
        lambda: len(first := shown(servers[0])) == count and all(first == shown(s) for s in servers),
    )


def test_a_server_killed_at_each_step_leaves_its_statement_in_the_log_once_or_not_at_all(
    serve: Serve, points: Path, topic: str, tmp_path: Path, unique: str
) -> None:
    other, killed = serve(), serve(ROLLFORWARD_FAILPOINTS=str(points))
    other.await_ready()
    killed.await_ready()
    for number, point in enumerate(METASTORE_POINTS):
        key, text = f"{unique}-{number}", create(f"s{number}", topic)
        arm(points, point)
        # The projection's points are met by whatever is applied next, it may be before this arrives.
        answer = killed.sending(text, key=key)
        with pytest.raises(requests.ConnectionError):
            answer.result(ANSWER_S)
        assert -signal.SIGKILL == killed.process.wait(ANSWER_S), point
        assert not is_armed(points, point)
        found = other.get(f"/statements/{key}").status_code
        assert found in (200, 404), point
        if point.startswith("statement."):
            assert (number >= IN_FROM) == (found == 200), point
        killed.again()
        again = killed.post(text, key=key)
        assert (200, found == 200) == (again.status_code, again.json().get("repeated")), (point, again.text)
        assert number == again.json()["sequence"]
    await_same([other, killed], len(METASTORE_POINTS))
    for number, server in enumerate((other, killed)):
        assert equals_a_replay(server.settings, tmp_path / f"replay-{number}")


class Client:
    """Sends one statement after the other to one server, each with its key until it is answered."""

    def __init__(self, server: Server, name: str, seed: int, topic: str) -> None:
        self.told: list[Told] = []
        self.last = ""
        self._server, self._name, self._topic = server, name, topic
        self._choose = random.Random(f"{seed} {name}")
        self._ended = threading.Event()
        self._thread = ThreadPoolExecutor(1)
        self._running: Future[None] = self._thread.submit(self._run)

    def await_more(self) -> None:
        """Another statement is answered. Raises what has ended the client, if something has."""
        before = len(self.told)
        await_("an answer", lambda: len(self.told) > before or self._running.done(), ANSWER_S, tail=self._server.tail)
        if self._running.done():
            self._running.result()

    def end(self) -> list[Told]:
        """Let the open statement be answered; gives what was told of each."""
        self._ended.set()
        self._running.result(ANSWER_S)
        self._thread.shutdown()
        return self.told

    def _run(self) -> None:
        while not self._ended.is_set():
            key = f"{self._name}-{len(self.told)}"
            answer = self._answered(drawn(self._choose, self._topic), key)
            assert answer.status_code in (200, 400), answer.text
            self.told.append(Told(key, answer.json()["sequence"] if answer.status_code == 200 else None))

    def _answered(self, text: str, key: str) -> requests.Response:
        """The answer, from whichever process the server is by then."""

        def answers() -> list[requests.Response]:
            try:
                found = self._server.post(text, key=key)
            except requests.ConnectionError:
                return []
            self.last = found.text
            # In a list, since an answer that refuses is false.
            return [] if found.status_code == 503 else [found]

        return await_("an answer", answers, ANSWER_S, tail=lambda: f"{self.last}\n{self._server.tail()}")[0]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kills", [6, pytest.param(200, marks=pytest.mark.slow)])
def test_two_servers_killed_at_random_moments_have_each_statement_once_or_not_at_all(
    serve: Serve, opened: Open, topic: str, tmp_path: Path, kills: int
) -> None:
    seed = int(os.environ.get("ROLLFORWARD_SEED", "20261122"))
    print(f"seed {seed}; replay with ROLLFORWARD_SEED={seed}")
    choose = random.Random(seed)
    servers = [serve(), serve()]
    clients = [Client(server, name, seed, topic) for server, name in zip(servers, "ab", strict=True)]
    for _ in range(kills):
        number = choose.randrange(2)
        server = servers[number]
        clients[number].await_more()
        # The moment is what is random here.
        time.sleep(choose.uniform(0, 1))
        server.kill()
        server.start()
    told = [one for client in clients for one in client.end()]
    found = commands(opened())
    assert [] == differences(found, told)
    assert len(told) > kills and len(found) > 1
    for number, server in enumerate(servers):
        assert equals_a_replay(server.settings, tmp_path / f"replay-{number}")


def test_of_conflicting_statements_to_two_and_three_servers_one_is_accepted(
    serve: Serve, topic: str, tmp_path: Path
) -> None:
    servers = [serve() for _ in range(3)]
    for server in servers:
        server.await_ready()
    for number, count in enumerate((2, 3, 3)):
        sent = [server.sending(create(f"s{number}", topic, f"c{i}")) for i, server in enumerate(servers[:count])]
        answers = [one.result(ANSWER_S) for one in sent]
        refused = [answer.json()["error"]["message"] for answer in answers if answer.status_code == 400]
        assert ([200], count - 1) == ([a.status_code for a in answers if a.status_code != 400], len(refused))
        assert all(f"stream S{number} exists already" in message for message in refused), refused
        await_same(servers, number + 1)
    assert all(equals_a_replay(server.settings, tmp_path / f"{n}") for n, server in enumerate(servers))


@pytest.mark.parametrize("rival", [True, False])
def test_a_server_that_slept_past_its_transactions_time_out_is_fenced_and_validates_again(
    serve: Serve, opened: Open, points: Path, topic: str, tmp_path: Path, rival: bool
) -> None:
    sleeper, other = serve(ROLLFORWARD_FAILPOINTS=str(points), ROLLFORWARD_REQUEST_TIMEOUT_S="10"), serve()
    sleeper.await_ready()
    other.await_ready()
    assert 200 == other.post(create("s0", topic)).status_code
    arm(points, "statement.produced", with_signal="SIGSTOP")
    answer = sleeper.sending(create("s1", topic, "mine"), key="slept")
    await_("asleep", lambda: psutil.Process(sleeper.process.pid).status() == psutil.STATUS_STOPPED)
    log = opened().log
    if rival:
        assert 200 == other.post(create("s1", topic, "yours"), key="rival").status_code
    # Else the broker ends the transaction when its time is over.
    await_("the transaction has ended", lambda: log.stable_end() == log.bounds()[1])
    sleeper.send(signal.SIGCONT)
    told = answer.result(ANSWER_S)
    if rival:
        assert (400, True) == (told.status_code, "stream S1 exists already" in told.json()["error"]["message"])
        assert 404 == other.get("/statements/slept").status_code
    else:
        assert (200, 1) == (told.status_code, told.json()["sequence"]), told.text
    sleeper.await_ready()
    await_same([sleeper, other], 2)
    assert ["rival" if rival else "slept"] == shown(other)[1:]
    assert all(equals_a_replay(server.settings, tmp_path / f"{n}") for n, server in enumerate((sleeper, other)))
