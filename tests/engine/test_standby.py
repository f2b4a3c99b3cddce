"""Store server processes that wait: they take the place of those that are needed, and outlive nobody."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pipelines.engine import servers as module
from pipelines.engine.servers import StoreServers
from statestore.config import KafkaConfig
from tests.support.waiting import await_

LAUNCHER = """
import sys, time
from pathlib import Path
from pipelines.engine.standby import Standby
standby = Standby(Path(sys.argv[1]))
standby.keep(1)
print("launched", flush=True)
time.sleep(60)
"""


def waiting(log: Path) -> set[int]:
    """Processes of servers that this process has started and that write to this log."""
    children = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
    return {child.pid for child in children if Path(f"/proc/{child.pid}/fd/2").resolve() == log}


def serving(servers: StoreServers) -> set[int]:
    return {server["pid"] for server in servers.describe()}


def ends(process: psutil.Process) -> bool:
    """Whether it ends within a few seconds."""
    try:
        process.wait(10)
    except psutil.TimeoutExpired:
        return False
    return True


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[StoreServers]:
    """Two servers without tasks, so without Kafka."""
    kafka = KafkaConfig("127.0.0.1:1")
    found = StoreServers("p", 2, tmp_path / "states", kafka, transactions=True, log_file=tmp_path / "log")
    yield found
    found.close()
    assert not waiting(tmp_path / "log")


def test_what_was_launched_before_serves(servers: StoreServers, tmp_path: Path) -> None:
    servers.launch()
    launched = waiting(tmp_path / "log")
    servers.ensure("start")
    assert launched == serving(servers) == waiting(tmp_path / "log")
    assert 2 == len(launched)


def test_one_that_died_while_it_waited_is_passed_over(servers: StoreServers, tmp_path: Path) -> None:
    servers.launch()
    first, second = sorted(waiting(tmp_path / "log"))
    psutil.Process(first).kill()
    servers.ensure("start")
    assert second in serving(servers)
    assert first not in serving(servers)
    assert 2 == len(serving(servers))


def test_a_dead_server_is_replaced_by_the_spare(
    servers: StoreServers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "_SPARE_S", 0.0)
    servers.ensure("start")
    before = serving(servers)
    time.sleep(0.01)
    servers.keep_spare()
    (spare,) = waiting(tmp_path / "log") - before
    killed = min(before)
    psutil.Process(killed).kill()
    assert ends(psutil.Process(killed))
    replaced = before - {killed} | {spare}
    await_("its replacement", lambda: servers.replace_dead() or serving(servers) == replaced)


def test_one_that_waits_ends_with_its_launcher(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", LAUNCHER, str(tmp_path / "log")], stdout=subprocess.PIPE) as launcher:
        assert launcher.stdout is not None
        assert b"launched\n" == launcher.stdout.readline()
        (child,) = psutil.Process(launcher.pid).children()
        launcher.kill()
    assert ends(child)
    assert not (tmp_path / "log").read_text()
