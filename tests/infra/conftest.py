"""What the tests of the local stack share: one Java, one cache of jars, and a check that no test leaves a process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from infra import jars
from infra.broker import Broker
from infra.java import JavaHome, find_java
from infra.process import MARK
from infra.stack import Stack


def marked_below(folder: Path) -> list[int]:
    """The pids of live processes whose record lies below a folder."""
    found = []
    for process in psutil.process_iter():
        try:
            mark = process.environ().get(MARK, "")
            if mark.startswith(f"{folder.resolve()}/") and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (psutil.Error, OSError):
            continue
    return found


@pytest.fixture(scope="session")
def java() -> JavaHome:
    return find_java(jars.default_cache())


@pytest.fixture(scope="session")
def kafka_jars(java: JavaHome) -> list[Path]:
    return jars.resolve("kafka", java)


@pytest.fixture
def leftovers(tmp_path: Path) -> Iterator[Callable[[], list[int]]]:
    """Asks for processes that were started below the test's folder; none may be there at the end."""
    yield lambda: marked_below(tmp_path)
    left = marked_below(tmp_path)
    for pid in left:
        psutil.Process(pid).kill()
    assert [] == left


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(home=tmp_path / "kafka", log=tmp_path / "kafka.log", record=tmp_path / "kafka.json")
    yield broker
    broker.stop()


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    stack = Stack(tmp_path / "home")
    yield stack
    stack.down(wipe=True)
