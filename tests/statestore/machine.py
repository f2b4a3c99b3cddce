"""A store and everything that can happen to it, against a model: the state machine that every store kind runs through.

The model is a list: what the store holds after each record of its changelog. A version is a place in that list, so a
store is right if it equals the model at the offset it says it stands at; a crash may choose between versions where the
protocol leaves the choice, and never between parts of them.
"""

from __future__ import annotations

import shutil
from abc import abstractmethod
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import count
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from statestore.context import ChangelogRecord
from statestore.errors import TaskCorrupted, Unavailable
from statestore.failpoints import (
    DROP_POINTS,
    INDEXED_POINTS,
    SECONDARY_OPENING_POINTS,
    SECONDARY_POINTS,
    SPILL_POINTS,
    STORE_RESTORE_POINTS,
)
from statestore.kinds.base import Kind
from statestore.position import Position
from statestore.spaces.base import Changes
from statestore.store import Isolation, TransactionalMechanism
from statestore.transactions.base import noting_failure
from statestore.transactions.secondary_store import SecondaryStoreTransaction
from tests.statestore.conftest import Setup, TaskUnderTest
from tests.statestore.crashes import Killed, dying, photograph

COMMITTED = Isolation.READ_COMMITTED
UNCOMMITTED = Isolation.READ_UNCOMMITTED

BATCH = 3
"""Records a restore writes at once."""
_OPENING = (
    *SECONDARY_OPENING_POINTS,
    *DROP_POINTS,
    "secondary.in-copy",
    "secondary.before-last-write",
    "secondary.in-drop",
)
COMMIT_POINTS = {
    None: (),
    TransactionalMechanism.INDEXED_BATCH: INDEXED_POINTS + DROP_POINTS,
    TransactionalMechanism.SECONDARY_STORE: SECONDARY_POINTS + DROP_POINTS,
    TransactionalMechanism.AUTO: SPILL_POINTS + INDEXED_POINTS + SECONDARY_POINTS + DROP_POINTS,
}
# Dying at one of these leaves the version before the commit; at any other, the new one.
BEFORE_COMMIT = {*SPILL_POINTS, "indexed.before-write", "secondary.synced", "secondary.commit-file-unnamed"}


class StoreMachine(RuleBasedStateMachine):
    """What does not depend on the kind. `steps` counts the rules run by all machines, so that a run can say its length."""

    setup: ClassVar[Setup]
    steps: ClassVar[int] = 0

    # For the kinds.

    operations: ClassVar[st.SearchStrategy[tuple[Any, ...]]]
    """Writes: the name of a method and its arguments. The method writes, and tells `wrote` what the models are then."""

    @abstractmethod
    def made(self) -> Kind:
        """A store, not opened, named `s`."""

    @abstractmethod
    def nothing(self) -> Any:
        """The model of a new store."""

    @abstractmethod
    def expected(self, model: Any) -> list[Any]:
        """What `found` gives if the store equals the model."""

    @abstractmethod
    def found(self, isolation: Isolation) -> list[Any]:
        """Everything in the store."""

    # State.

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(mkdtemp(prefix="machine-"))
        self.folders = 0
        self.inputs = 0

    @initialize()
    def begin(self) -> None:
        self.logged: list[ChangelogRecord] = []
        self.models = [self.nothing()]
        self.positions = [Position()]
        self.committed: int | None = None
        self.task = self._task(self._folder())
        self.store = self.task.open(self.made())

    def _folder(self) -> Path:
        self.folders += 1
        return self.root / f"{self.folders:03}"

    def _task(self, folder: Path) -> TaskUnderTest:
        return TaskUnderTest(self.setup, folder, self.logged, exactly_once=True, positions_in_changelog=True)

    def wrote(self, models: list[Any], *, taken: bool = True) -> None:
        """The store has logged one record for each of these models. `taken`: its position is at their input record now."""
        self.models += models
        position = Position({"in": {0: self.inputs}}) if taken else self.positions[-1]
        self.positions += [position] * len(models)
        assert len(self.models) == len(self.logged) + 1

    def next_input(self) -> None:
        """The writes that follow come from the next input record."""
        self.inputs += 1
        self.task.at(self.inputs, topic="in")

    def forget_uncommitted(self) -> None:
        del self.logged[self.committed or 0 :], self.models[(self.committed or 0) + 1 :]
        del self.positions[(self.committed or 0) + 1 :]

    @property
    def transactional(self) -> bool:
        return self.setup.transactional

    def visible(self, isolation: Isolation) -> int:
        """The version that a read at that isolation sees."""
        return (self.committed or 0) if isolation is COMMITTED and self.transactional else len(self.logged)

    # What is always true.

    @invariant()
    def reads_equal_the_model(self) -> None:
        StoreMachine.steps += 1
        for isolation in Isolation:
            version = self.visible(isolation)
            assert self.expected(self.models[version]) == self.found(isolation), isolation
            assert self.positions[version] == self.store.position(isolation)
        assert self.committed == self.store.committed_offset()

    # Writing, and what ends a transaction.

    @rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        self._write(self._drawn(data))

    def _drawn(self, data: st.DataObject, *, least: int = 1) -> list[tuple[Any, ...]]:
        return data.draw(st.lists(self.operations, min_size=least, max_size=8), "operations")

    def _write(self, operations: list[tuple[Any, ...]]) -> None:
        for name, *arguments in operations:
            getattr(self, name)(*arguments)

    @rule()
    def commit(self) -> None:
        self.store.commit(len(self.logged))
        self.committed = len(self.logged)

    @precondition(lambda self: self.transactional)
    @rule(data=st.data(), recover=st.booleans())
    def abort(self, data: st.DataObject, recover: bool) -> None:
        self._write(self._drawn(data))
        if recover:
            assert self.committed == self.store.recover(self.committed)
        else:
            self.store.rollback()
        self.forget_uncommitted()

    @precondition(lambda self: self.setup.mechanism is TransactionalMechanism.AUTO)
    @rule(data=st.data(), passes=st.integers(0, 2))
    def fail_in_spill(self, data: st.DataObject, passes: int) -> None:
        """The disk is full when that many spaces are copied, or later when the transaction has spilled."""
        operations, calls = self._drawn(data), count()
        put_all = SecondaryStoreTransaction.put_all

        def full(transaction: SecondaryStoreTransaction, space: str, changes: Changes) -> None:
            if next(calls) >= passes:
                raise Unavailable("disk is full")
            put_all(transaction, space, changes)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SecondaryStoreTransaction, "put_all", noting_failure(full))
            try:
                self._write(operations)
                return
            except Unavailable:
                pass
        with pytest.raises(Unavailable):
            self.store.commit(len(self.logged))
        self.store.rollback()
        self.forget_uncommitted()

    @rule()
    def flush(self) -> None:
        self.store.transaction.base.flush()

    # What ends a process.

    @rule(data=st.data())
    def close_and_reopen(self, data: st.DataObject) -> None:
        self._write(self._drawn(data, least=0))
        folder = self.task.folder
        self.task.stores.close()
        self.forget_uncommitted()
        self._open_at(folder, [self.committed])

    @rule(data=st.data(), lost=st.booleans())
    def die_and_reopen(self, data: st.DataObject, lost: bool) -> None:
        """`lost`: the disk goes with the machine."""
        self._write(self._drawn(data, least=0))
        copy = self._folder()
        if not lost:
            photograph(self.task.folder, copy) if self.setup.persistent else copy.mkdir()
        self._leave()
        self.forget_uncommitted()
        self._open_at(copy, [None if lost else self.committed])

    @precondition(lambda self: self.setup.persistent and self.transactional)
    @rule(data=st.data(), again=st.lists(st.integers(0, 2), max_size=2))
    def die_in_commit(self, data: st.DataObject, again: list[int]) -> None:
        """Kafka has committed when the store begins to, so dying there loses nothing; `again`: the openings die, too."""
        points = COMMIT_POINTS[self.setup.mechanism]
        operations, before = self._drawn(data), self.committed
        passes = data.draw(st.integers(0, len(points) - 1), "passes")

        def commit() -> None:
            self._write(operations)
            self.committed = len(self.logged)
            self.store.commit(self.committed)

        point = self._dies(points, commit, passes=passes)
        if point is None:
            return
        self.forget_uncommitted()
        for others in again:
            self._dies_opening(passes=others)
        self._open_at(self.task.folder, [before if point in BEFORE_COMMIT else self.committed])

    @precondition(lambda self: self.setup.persistent)
    @rule(passes=st.integers(0, 9))
    def lose_the_disk_and_die_in_restore(self, passes: int) -> None:
        self._leave()
        self.forget_uncommitted()
        self.task = self._task(self._folder())
        self.store = self.task.open(self.made())
        if self._dies(STORE_RESTORE_POINTS, lambda: self._replay(0), passes=passes):
            # A batch is in or it is not; the points are reached in turn, the first before each and the others after it.
            done = -(-passes // len(STORE_RESTORE_POINTS))
            at = min(done * BATCH, self.committed or 0) if done else None
            self._open_at(self.task.folder, [at if self.transactional else None])

    def _dies(self, points: Iterable[str], act: Callable[[], object], *, passes: int = 0) -> str | None:
        """The point at which `act` died, if it did. Then the task is a dead one, in the folder that is found after it."""
        copy = self._folder()
        try:
            with dying(points, self.task.folder, copy, passes=passes):
                act()
        except Killed as death:
            self._leave()
            self.task.folder = copy
            return death.point
        return None

    def _dies_opening(self, *, passes: int) -> None:
        self.task, self.store = self._task(self.task.folder), self.made()
        if not self._dies(_OPENING, lambda: self.task.open(self.store), passes=passes):
            self._leave(keep=True)

    def _leave(self, *, keep: bool = False) -> None:
        """Let go of the dead process's files."""
        with suppress(Exception):
            self.store.close()
        with suppress(Exception):
            self.task.stores.close()
        if not keep:
            shutil.rmtree(self.task.folder, ignore_errors=True)

    # What begins one.

    def _open_at(self, folder: Path, versions: list[int | None]) -> None:
        """Open what is in the folder. It stands at one of these versions; the changelog brings it to the last."""
        if not self.setup.persistent:
            versions = [None]
        self.task = self._task(folder)
        self.store = self.made()
        try:
            self.task.open(self.store)
        except TaskCorrupted:
            assert not self.transactional, "only a store without transactions may be of no version"
            self.task.stores.wipe("s")
            self.task.open(self.store)
        at = self.store.recover(self.committed)
        assert at in versions or (at is None and not self.transactional)
        assert self.expected(self.models[at or 0]) == self.found(COMMITTED)
        self._replay(at or 0)

    def _replay(self, at: int) -> None:
        end = self.committed or 0
        for first in range(at, end, BATCH):
            last = min(first + BATCH, end)
            self.store.restore(self.logged[first:last], offset=last)
        if self.committed is not None and self.store.committed_offset() is None:
            self.store.commit(self.committed)

    def teardown(self) -> None:
        with suppress(Exception):
            self.task.stores.close()
        shutil.rmtree(self.root, ignore_errors=True)


SHORT_KEYS = [b"", b"\0", b"a", b"a\0", b"b", b"\xff"]
short_keys = st.sampled_from(SHORT_KEYS)
values = st.one_of(st.binary(max_size=3), st.binary(max_size=1), st.none())
Bounds = tuple[bytes | None, bytes | None]
bounds: st.SearchStrategy[Bounds] = st.one_of(
    st.tuples(short_keys, short_keys).map(lambda ends: (min(ends), max(ends))),
    st.tuples(st.none() | short_keys, st.none() | short_keys),
)
