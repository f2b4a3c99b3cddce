"""Every store's contract runs over every mechanism, on disk and in memory, through the fixtures `setup` and `task`.

def test_x(task: TaskUnderTest):
    store = task.open(KeyValue("s", **task.setup.options))
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest

from statestore.context import ChangelogRecord, RecordContext
from statestore.kinds.base import Kind
from statestore.store import TransactionalMechanism
from statestore.taskstores import TaskStores
from tests.support.task import TaskWorld, keys_of

# Two keys of task 0, which is alone.
ONE, TWO = keys_of(0, 1, 2)
K = TypeVar("K", bound=Kind)


@dataclass(frozen=True)
class Setup:
    """How a store under test keeps its writes. The bounds are small enough to spill, and to copy in pieces."""

    mechanism: TransactionalMechanism | None
    persistent: bool = True
    uncommitted_bytes_max: int = 64
    copy_bytes_max: int = 10

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of every store kind."""
        return {"mechanism": self.mechanism, "persistent": self.persistent}

    @property
    def transactional(self) -> bool:
        return self.mechanism is not None

    def __str__(self) -> str:
        mechanism = "direct" if self.mechanism is None else self.mechanism.value
        return f"{mechanism}-{'disk' if self.persistent else 'memory'}"


SETUPS = [
    Setup(None),
    Setup(None, persistent=False),
    Setup(TransactionalMechanism.INDEXED_BATCH),
    Setup(TransactionalMechanism.INDEXED_BATCH, persistent=False),
    Setup(TransactionalMechanism.SECONDARY_STORE),
    Setup(TransactionalMechanism.AUTO),
]
TRANSACTIONAL = [setup for setup in SETUPS if setup.transactional]
PERSISTENT = [setup for setup in SETUPS if setup.persistent]


@dataclass
class TaskUnderTest:
    """A real task in a folder of its own. `logged` is what its stores have sent to their changelogs."""

    setup: Setup
    folder: Path
    logged: list[ChangelogRecord] = field(default_factory=list)
    exactly_once: bool = False
    positions_in_changelog: bool = False

    def __post_init__(self) -> None:
        self.stores = self._opened()

    def _opened(self) -> TaskStores:
        return TaskStores(
            self.folder,
            sink=self.logged.append,
            exactly_once=self.exactly_once,
            positions_in_changelog=self.positions_in_changelog,
            uncommitted_bytes_max=self.setup.uncommitted_bytes_max,
            copy_bytes_max=self.setup.copy_bytes_max,
        )

    def open(self, store: K) -> K:
        """Open a store in this task."""
        store.init(self.stores)
        return store

    def at(self, offset: int, *, time_ms: int = 0, topic: str = "", partition: int = 0) -> None:
        """The writes that follow come from this input record."""
        self.stores.record = RecordContext(topic, partition, offset, time_ms)

    def restart(self, store: K, *, wipe: bool = False) -> K:
        """Close the task, with all that is not committed, and open the same store (a new object) in a new one."""
        self.stores.close()
        self.stores = self._opened()
        if wipe:
            self.stores.wipe(store.name)
        return self.open(store)

    def records(self) -> list[tuple[bytes, bytes | None, int]]:
        """Key, value and time of the changelog records so far."""
        return [(record.key, record.value, record.timestamp_ms) for record in self.logged]


@pytest.fixture(params=SETUPS, ids=str)
def setup(request: pytest.FixtureRequest) -> Setup:
    return request.param


@pytest.fixture
def task(setup: Setup, tmp_path: Path) -> Iterator[TaskUnderTest]:
    """A task that takes what it finds, so that tests of stores may commit as they like; see `exactly_once`."""
    opened = TaskUnderTest(setup, tmp_path / "task")
    yield opened
    opened.stores.close()


@pytest.fixture
def new_world(kafka: str, unique: str, tmp_path: Path) -> Iterator[TaskWorld]:
    """A pipeline's task that nobody has opened yet."""
    world = TaskWorld(kafka, unique, tmp_path / "state", None)
    yield world
    world.close()


@pytest.fixture
def world(new_world: TaskWorld) -> TaskWorld:
    """A pipeline's task that runs and has committed a batch of key `ONE`."""
    new_world.open()
    new_world.commit({ONE: b"1"})
    return new_world
