"""The auditor of the bank: reads the store of balances all the time, at any moment, and no money may be missing.

    between    all tasks at once, between two batches (`pipelines.consistent`): the total is that of the model there
    moment     one task after the other, whatever they are doing: each is the model at a position that it has committed

The second kind of view is also had in the middle of a batch's commits, when one task is behind it and another before it. A
task's position says where the input stood, so the model knows what its accounts have there, leg for leg: money under
way from one task to another is known to be, and a batch that is cut between the legs of a transfer is no finding.

What a view shows is committed, and all but the newest commit of a task can be seen in its log. So a view that fits no position
is a finding when a newer one than those that were there when it had been read has come. One that shows fewer legs than
another that was complete before it began is a finding at once. A view that the auditor cannot have, since a server is away,
is no finding; any other error is.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from traceback import extract_stack

from pipelines.consistent import ConsistentReader, View
from pipelines.deploy import deployed_queries
from pipelines.query import Row, StoreReader
from pipelines.registry import Registry
from pipelines.settings import Settings
from statestore.batches import BatchesLog
from statestore.errors import RollforwardError, Unavailable
from statestore.kafka.reader import Reader
from statestore.partitioner import task_of
from statestore.store import Isolation
from tests.crash.matrix.workload import Balances, Book, Workload

Ends = Mapping[int, int]


def balances(rows: tuple[Row, ...]) -> Balances:
    """What a view shows."""
    return {row.key["ACCOUNT"]: (row.value["N"], row.value["BALANCE"]) for row in rows}


def total(accounts: Balances) -> int:
    """All the money."""
    return sum(balance for _, balance in accounts.values())


def legs_of(accounts: Balances) -> int:
    """How many legs have been counted; they only get more."""
    return sum(count for count, _ in accounts.values())


def finding(view: View, book: Book) -> str | None:
    """What is wrong with a view between two batches; None if it is the model there."""
    wanted, found = book.balances(view.ends), balances(view.rows)
    if found == wanted:
        return None
    return f"batch {view.batch}: the accounts add up to {total(found)} in place of {total(wanted)}"


@dataclass
class TaskView:
    """What one task showed at some moment. `known` is how many positions of it were in the log at some time after that."""

    task: int
    found: Balances
    known: int | None = None


@dataclass
class Positions:
    """Where one task has stood, oldest first; read on from where the last reading ended."""

    log: BatchesLog
    task: int
    ends: list[Ends] = field(default_factory=lambda: [{}])
    _next: int = 0

    def read_on(self) -> int:
        """How many there are now, with the one before all input."""
        for one in self.log.positions(self.task, start=self._next):
            self._next = one.offset + 1
            self.ends.append({int(partition): end for partition, end in one.position.ends.items()})
        return len(self.ends)


def fits(view: TaskView, ends: Sequence[Ends], book: Book, tasks: int) -> bool:
    """Whether the view is the model at one of these positions, for the accounts that are the task's."""

    def own(found: Balances) -> Balances:
        return {a: b for a, b in found.items() if task_of(a.to_bytes(8, "big"), tasks) == view.task}

    legs = legs_of(view.found)
    # From the newest on, since it is nearly always the newest or the one before, and legs only get more.
    for end in reversed(ends):
        wanted = own(book.balances(end))
        if wanted == view.found:
            return True
        if legs_of(wanted) < legs:
            return False
    return False


class Auditor:
    """Two threads that audit until `close`. `views` and `moments` count the views of either kind that were judged."""

    def __init__(self, pipeline: str, settings: Settings, registry: Registry, load: Workload) -> None:
        (deployed,) = [q for q in deployed_queries(registry.pipeline(pipeline)) if q.query.name == "balances"]
        self._between = ConsistentReader(deployed, settings, registry)
        self._store = StoreReader(deployed, settings, registry)
        self._tasks = deployed.query.tasks
        log = BatchesLog(Reader(settings.kafka_config()), deployed.batches_topic, tasks=self._tasks)
        self._positions = [Positions(log, task) for task in range(self._tasks)]
        self._load = load
        self._open: list[TaskView] = []
        self._legs = [0] * self._tasks
        self.findings: list[str] = []
        self.views = self.moments = 0
        self.newest = -1
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(look,), daemon=True) for look in (self._look_between, self._look)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, look: Callable[[], None]) -> None:
        while not self._ended.wait(0.25):
            # While a fault lasts there may be nobody to ask, no moment between two batches, or no store to open.
            try:
                with suppress(Unavailable):
                    look()
            except RollforwardError as error:
                self._tell(f"{type(error).__name__}: {error}")

    def _tell(self, found: str) -> None:
        print(f"    auditor: {found}", flush=True)
        self.findings.append(found)

    # Between two batches.

    def _look_between(self) -> None:
        view = self._between.read(timeout_s=5)
        book = self._load.book(timeout_s=120)
        if book is None:
            return
        self.views += 1
        if view.batch < self.newest:
            self._tell(f"a view of batch {view.batch} came after one of batch {self.newest}")
        self.newest = max(self.newest, view.batch)
        found = finding(view, book)
        if found is not None:
            self._tell(found)

    # At any moment.

    def _look(self) -> None:
        try:
            for task in range(self._tasks):
                found = balances(tuple(self._store.scan_task(task, Isolation.READ_COMMITTED)))
                self._open.append(TaskView(task, found))
                if legs_of(found) < self._legs[task]:
                    self._tell(f"task {task} went back from {self._legs[task]} legs to {legs_of(found)}")
                self._legs[task] = max(self._legs[task], legs_of(found))
        finally:
            self._judge()

    def _judge(self) -> None:
        book = self._load.book(timeout_s=0.1) if self._open else None
        if book is None:
            return
        for view in list(self._open):
            positions = self._positions[view.task]
            newest = positions.read_on()
            if fits(view, positions.ends, book, self._tasks):
                self.moments += 1
                self._open.remove(view)
            elif view.known is None:
                view.known = newest
            elif newest > view.known:
                self._open.remove(view)
                self._tell(f"task {view.task} at no position of it: its accounts add up to {total(view.found)}")

    def settle(self, timeout_s: float = 60) -> None:
        """Return when one more view of each kind has been judged, and all that were had before. Nothing may be under way.

        The audit itself must not have died.
        """
        before, deadline = (self.views, self.moments), time.monotonic() + timeout_s
        waiting = set(map(id, self._open))
        while self.views == before[0] or self.moments == before[1] or waiting & set(map(id, self._open)):
            alive = all(thread.is_alive() for thread in self._threads)
            if time.monotonic() > deadline or not alive:
                raise AssertionError(f"views not judged in {timeout_s} s: {self._open[:1]}, {self._places()}")
            time.sleep(0.05)

    def _places(self) -> str:
        """Where in the code the threads are."""
        frames = sys._current_frames()
        found = [frames[thread.ident] for thread in self._threads if thread.ident in frames]
        return "; ".join(" < ".join(f"{f.name}:{f.lineno}" for f in reversed(extract_stack(frame))) for frame in found)

    def close(self) -> None:
        """End the audit."""
        self._ended.set()
        for thread in self._threads:
            thread.join(60)
