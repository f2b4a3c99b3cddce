"""The store servers of one driver: started, watched, replaced when they die, ended with the driver.

A server learns its configuration from its standard input and ends when that closes, so none outlives the driver, even
one that was killed. Tasks are spread over the servers in turn.

A server that has died is replaced at once, also while nothing is to be done, by a process that has been waiting for it. One that does not answer is killed: then
every call that waits for it fails, and it is replaced like one that has died. Its tasks are fenced in Kafka when they
are opened elsewhere, so a server that only slept could do no harm if it could not be killed.

Servers on machines of their own are only connected to. When one is away its tasks are opened on those that are there,
which recover them from snapshot and changelog; they stay there until the driver starts again. Such a server lets a task
go that has moved, and all of a driver's when that ends in order: it may serve for months.
"""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from threading import RLock
from typing import Any

import structlog

from pipelines import names
from pipelines.engine.early import beside
from pipelines.engine.hosted import Answer, LocalServer, RemoteServer
from pipelines.engine.standby import Standby
from pipelines.processes import runs
from statestore import wire
from statestore.client import StoreClient, require_answer
from statestore.config import KafkaConfig, RocksConfig, SnapshotConfig, TaskSpec
from statestore.errors import EXIT_FENCED, Fenced, RollforwardError, Unavailable
from statestore.objects.open import modules_of

log = structlog.get_logger()
_START_S = 30.0
_OPEN_ATTEMPTS = 8
_OBSERVE_S = 5.0
_CLOSE_S = 10.0
_LEAST_CLOSE_S = 0.1
# How long the end waits for who is opening tasks.
_YIELD_S = 1.0
# When a process is launched that takes a dead server's place: not while tasks are being opened, and first batches run.
_SPARE_S = 5.0


@dataclass(frozen=True)
class ServerSeen:
    """One server at one moment: its tasks' figures, and how far the restores under way are, 0 to 1."""

    number: int
    answers: bool
    tasks: list[dict[str, Any]]
    restored: dict[str, float]


@dataclass(frozen=True)
class _Assigned:
    spec: TaskSpec
    epoch: int
    server: int


class StoreServers:
    """All servers of a pipeline's driver. Used from several query threads; starting and replacing take turns."""

    def __init__(
        self,
        pipeline: str,
        count: int,
        states: Path,
        kafka: KafkaConfig,
        *,
        transactions: bool,
        log_file: Path,
        snapshots: SnapshotConfig | None = None,
        answer_timeout_s: float = 20.0,
        addresses: tuple[str, ...] = (),
    ) -> None:
        """`addresses` are those of servers on machines of their own; without them `count` are started here."""
        self._addresses = addresses
        count = len(addresses) or count
        self._answer_timeout_s = answer_timeout_s
        self.pipeline = pipeline
        self._kafka = kafka
        self._transactions = transactions
        self._log_file = log_file
        self._snapshots = snapshots
        self._prefix = names.socket_prefix(states, pipeline)
        self._numbers = itertools.count()
        self._servers: list[LocalServer | RemoteServer | None] = [None] * count
        self._assigned: dict[str, _Assigned] = {}
        # Where this driver has opened each task. A server that was given up and came back may have slept.
        self._opened: dict[str, LocalServer | RemoteServer] = {}
        self._turn = itertools.count()
        self._standby = Standby(log_file, () if snapshots is None else modules_of(snapshots.objects))
        self._spare_from = math.inf
        self._replacing: Future[None] | None = None
        self._closing = False
        self._lock = RLock()
        self._workers = ThreadPoolExecutor(max_workers=16, thread_name_prefix="store-servers")
        self._pings = ThreadPoolExecutor(max_workers=count, thread_name_prefix="pings")
        # Addresses of servers on other machines that were given up and have not answered since.
        self._silent: set[str] = set()
        self.on_lost: Callable[[str], None] = lambda _address: None
        self.on_opened: Callable[[str, dict[str, Any]], None] = lambda _cause, _opened: None

    def launch(self) -> None:
        """Launch the processes of the servers, which `ensure` then finds waiting: they import meanwhile."""
        if not self._addresses:
            self._standby.keep(len(self._servers))

    def assign(self, specs: list[TaskSpec], epoch: int) -> None:
        """Take the tasks of one query in; They are opened by `ensure`, with the query's `epoch`."""
        for spec in specs:
            self._assigned[spec.name] = _Assigned(spec, epoch, next(self._turn) % len(self._servers))

    def ensure(self, cause: str, *, only: str | None = None) -> None:
        """Make every server run and every task (of query `only`) stand open. Raises `Fenced` if a server met a newer driver.

        Other errors are the tasks' own: `Unrecoverable` and the like.
        """
        with self._lock:
            opening = [a for a in self._assigned.values() if only is None or a.spec.query == only]
            for attempt in range(1, _OPEN_ATTEMPTS + 1):
                try:
                    for number in range(len(self._servers)):
                        self._revive(number)
                    self._move_tasks()
                    waiting = [self._workers.submit(self._open_if_needed, assigned, cause) for assigned in opening]
                    for error in [future.exception() for future in waiting]:
                        if error is not None:
                            raise error
                    self._release_moved()
                    self._spare_from = time.monotonic() + _SPARE_S
                    return
                except Unavailable as error:
                    # A server may die while it recovers, or Kafka may be away for a while.
                    log.warning("tasks are not open yet", pipeline=self.pipeline, attempt=attempt, error=str(error))
                    if attempt == _OPEN_ATTEMPTS or self._closing:
                        raise
                    time.sleep(min(5.0, 0.1 * 2**attempt))

    def _revive(self, number: int) -> None:
        if self._closing:
            raise Unavailable("store servers are being ended", pipeline=self.pipeline)
        server = self._servers[number]
        if server is not None:
            code = server.ended()
            if code is None:
                return
            log.warning("store server died", pipeline=self.pipeline, server=server.name, exit_code=code)
            server.forget()
            self._servers[number] = None
            if code == EXIT_FENCED:
                raise Fenced("a store server met a newer driver", server=server.name)
        self._servers[number] = self._reach(self._addresses[number]) if self._addresses else self._start()

    def _reach(self, address: str) -> RemoteServer | None:
        try:
            self._ping(address)
        except Unavailable as error:
            log.warning("store server is away", pipeline=self.pipeline, server=address, error=str(error))
            return None
        self._silent.discard(address)
        return RemoteServer(address, StoreClient(address, pipeline=self.pipeline))

    def _move_tasks(self) -> None:
        """Give the tasks of servers that are away to those that are there."""
        there = [number for number, server in enumerate(self._servers) if server is not None]
        if not there:
            raise Unavailable("no store server answers", addresses=", ".join(self._addresses))
        for turn, (name, assigned) in enumerate(self._assigned.items()):
            if assigned.server not in there:
                self._assigned[name] = replace(assigned, server=there[turn % len(there)])
                log.warning("task moves to another server", pipeline=self.pipeline, task=name)

    def _start(self) -> LocalServer:
        number = next(self._numbers)
        name = f"{self.pipeline}-{os.getpid()}-{number}"
        socket = names.socket_folder() / f"{self._prefix}-{os.getpid()}-{number}.sock"
        socket.unlink(missing_ok=True)
        config = wire.dumps(
            name=name,
            address=str(socket),
            kafka=asdict(self._kafka),
            rocks=asdict(RocksConfig()),
            transactions=self._transactions,
            snapshots=None if self._snapshots is None else asdict(self._snapshots),
        )
        process = self._standby.take(config)
        return LocalServer(name, str(socket), self._connect(process, socket), process)

    def _connect(self, process: subprocess.Popen[bytes], socket: Path) -> StoreClient:
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise Unavailable("store server did not start", exit_code=process.returncode, log=self._log_file)
            if socket.exists():
                try:
                    self._ping(socket)
                    return StoreClient(socket, pipeline=self.pipeline)
                except Unavailable as error:
                    log.debug("store server does not answer yet", error=str(error))
            time.sleep(0.02)
        process.kill()
        raise Unavailable("store server did not answer in time", log=self._log_file, seconds=_START_S)

    def _ping(self, address: Path | str) -> None:
        require_answer(address, self._answer_timeout_s)

    def end_silent(self) -> None:
        """Give up the servers that do not answer. What they have committed is committed, and the rest runs again.

        Nothing tells Spark's workers that wait for an answer of another machine that none will come: `on_lost` is called
        for each such server, at every call, since a job that waits for it may have begun only now.
        """
        living = [server for server in self._servers if server is not None and server.ended() is None]
        asked = [
            (server, self._pings.submit(server.client.look, "ping", timeout_s=self._answer_timeout_s))
            for server in living
        ]
        for server, answer in asked:
            error = answer.exception()
            if isinstance(error, Unavailable) and server.ended() is None:
                log.error(
                    "store server is silent and is given up",
                    pipeline=self.pipeline,
                    server=server.name,
                    seconds=self._answer_timeout_s,
                    error=str(error),
                )
                if self._addresses:
                    self._silent.add(server.address)
                server.give_up()
        for address in list(self._silent):
            self.on_lost(address)

    def replace_dead(self) -> None:
        """Have servers that have died replaced, and all of their tasks opened again: beside, since that may take minutes.

        Raises what the last time failed of.
        """
        if self._replacing is None and self._is_lacking():
            self._replacing = beside("replacement of servers", partial(self.ensure, "a store server died"))
        if self._replacing is not None and self._replacing.done():
            done, self._replacing = self._replacing, None
            done.result()

    def _is_lacking(self) -> bool:
        """Whether a server has died, or a query has replaced one and opened its own tasks alone."""
        if any(server is not None and server.ended() is not None for server in self._servers):
            return True
        return any(
            server is not self._servers[self._assigned[task].server] for task, server in list(self._opened.items())
        )

    def keep_spare(self) -> None:
        """Have a process wait that takes a dead server's place, once tasks have been open for a while."""
        is_time = not self._addresses and time.monotonic() > self._spare_from
        # Who holds it is opening tasks, and sets a later time.
        if is_time and self._lock.acquire(blocking=False):
            try:
                self._standby.keep(1)
                self._spare_from = time.monotonic() + _SPARE_S
            finally:
                self._lock.release()

    def _open_if_needed(self, assigned: _Assigned, cause: str) -> None:
        name, server = assigned.spec.name, self._server(assigned.spec.name)
        if self._opened.get(name) is server and self._is_open(assigned, server):
            return
        opened = server.ask(lambda: server.client.open_task(assigned.spec, assigned.epoch))
        self._opened[name] = server
        self.on_opened(cause, opened)

    def _is_open(self, assigned: _Assigned, server: LocalServer | RemoteServer) -> bool:
        figures = {task["task"]: task for task in _figures(server)}
        found = figures.get(assigned.spec.name, {})
        wanted = ("running", self.pipeline, assigned.epoch)
        return (found.get("state"), found.get("pipeline"), found.get("epoch")) == wanted

    def _release_moved(self) -> None:
        """Make servers of other machines let go of what has moved away: one that was given up and came back has it still."""
        for number, server in enumerate(self._servers):
            if isinstance(server, RemoteServer):
                for name in self._tasks_at(server):
                    assigned = self._assigned.get(name)
                    if assigned is not None and assigned.server != number:
                        self._release(server, assigned)

    def _tasks_at(self, server: RemoteServer) -> list[str]:
        return [task["task"] for task in _figures(server) if task["pipeline"] == self.pipeline]

    def _release(self, server: RemoteServer, assigned: _Assigned) -> None:
        name = assigned.spec.name
        try:
            server.ask(lambda: server.client.close_task(assigned.spec, assigned.epoch))
        except RollforwardError as error:
            log.warning("task was not let go", pipeline=self.pipeline, task=name, server=server.name, error=str(error))

    def _release_all(self, timeout_s: float) -> None:
        """Make servers of other machines let go of what this driver has opened there."""
        asked = [
            self._workers.submit(self._release, server, self._assigned[name])
            for name, server in list(self._opened.items())
            if isinstance(server, RemoteServer) and server.ended() is None
        ]
        wait(asked, timeout=timeout_s)

    def _server(self, task: str) -> LocalServer | RemoteServer:
        server = self._servers[self._assigned[task].server]
        if server is None:
            raise Unavailable("store server is not running", task=task)
        return server

    def sockets(self, query: str) -> tuple[str, ...]:
        """Address of each task's server, by task number. Raises `Unavailable` where one has ended or is given up."""
        specs = sorted((a.spec for a in self._assigned.values() if a.spec.query == query), key=lambda s: s.number)
        return tuple(self._living(spec.name).address for spec in specs)

    def _living(self, task: str) -> LocalServer | RemoteServer:
        server = self._server(task)
        if server.ended() is not None:
            raise Unavailable("store server has ended", task=task, server=server.name)
        return server

    def at(self, address: str, work: Callable[[], Answer]) -> Answer:
        """What comes of work that waits for the server at this address; `Unavailable` as soon as that is given up."""
        for server in self._servers:
            if server is not None and server.address == address:
                return server.ask(work)
        raise Unavailable("store server is not running", server=address)

    def commit(self, task: str, *, batch: int, attempt: int, plan: str, ends: Mapping[str, int]) -> dict[str, Any]:
        """Commit a staged attempt. A server that is gone for good raises `Unavailable`, one that was fenced `Fenced`."""
        server = self._server(task)
        try:
            epoch = self._assigned[task].epoch
            return server.ask(
                lambda: server.client.commit(task, epoch=epoch, batch=batch, attempt=attempt, plan=plan, ends=ends)
            )
        except Unavailable:
            self._raise_if_fenced(server)
            raise

    def _raise_if_fenced(self, server: LocalServer | RemoteServer) -> None:
        if server.ended(wait_s=0.5) == EXIT_FENCED:
            raise Fenced("a store server met a newer driver", server=server.name)

    def snapshot(self) -> list[dict[str, Any]]:
        """Take a snapshot of every task that has committed something; those that fail are told in the log."""
        waiting = {name: self._workers.submit(self._snapshot, name) for name in self._assigned}
        taken = []
        for name, future in waiting.items():
            try:
                taken.append(future.result())
            except RollforwardError as error:
                log.warning("no snapshot was taken", pipeline=self.pipeline, task=name, error=str(error))
        return taken

    def _snapshot(self, task: str) -> dict[str, Any]:
        server = self._server(task)
        return server.ask(lambda: server.client.snapshot(task))

    def figures(self, query: str) -> list[dict[str, Any]]:
        """Each task's numbers, from the servers that answer."""
        found = []
        for number, server in enumerate(self._servers):
            if server is not None and server.ended() is None:
                mine = self._only_assigned(number, _figures(server))
                found += [task for task in mine if task["task"].rpartition("-")[0] == query]
        return found

    def _only_assigned(self, number: int, tasks: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Without tasks that have moved away, which a server that came back may still have, and another pipeline's."""
        ours = [task for task in tasks if task["pipeline"] == self.pipeline]
        return [task for task in ours if (a := self._assigned.get(task["task"])) is not None and a.server == number]

    def observe(self) -> list[ServerSeen]:
        """Every server as it is now, for people; one that does not answer in time is told as such."""
        return [self._seen(number, server) for number, server in enumerate(list(self._servers))]

    def _seen(self, number: int, server: LocalServer | RemoteServer | None) -> ServerSeen:
        if server is None or server.ended() is not None:
            return ServerSeen(number, False, [], {})
        try:
            tasks = self._only_assigned(number, server.client.look("figures", timeout_s=_OBSERVE_S)["tasks"])
            restored = {one["task"]: one["percent"] / 100 for one in server.client.restoring()}
        except RollforwardError:
            return ServerSeen(number, False, [], {})
        return ServerSeen(number, True, tasks, restored)

    def describe(self, *, restoring: bool = False) -> list[dict[str, Any]]:
        """Where each server listens and what it owns: enough for a reader to find a task. Asks how restores go, too."""
        return [
            {
                "name": server.name,
                "pid": server.pid,
                "socket": server.address,
                "tasks": sorted(name for name, a in self._assigned.items() if a.server == number),
                "restoring": self._restoring(server) if restoring else [],
            }
            for number, server in enumerate(self._servers)
            if server is not None
        ]

    def _restoring(self, server: LocalServer | RemoteServer) -> list[dict[str, Any]]:
        try:
            return server.client.restoring()
        except RollforwardError as error:
            # It is only told, and whoever opens the tasks learns of a dead server by itself.
            log.info("server does not say how restores go", server=server.name, error=str(error))
            return []

    def close(self, timeout_s: float = _CLOSE_S) -> None:
        """End every server that was started here: first asked, after `timeout_s` killed.

        Those of other machines go on, without this driver's tasks.
        """
        deadline = time.monotonic() + timeout_s
        self._closing = True
        # Whoever opens tasks holds the lock, and may do so for long; what it starts now ends with this process.
        held = self._lock.acquire(timeout=min(timeout_s, _YIELD_S))
        try:
            living = [server for server in self._servers if server is not None]
            self._servers = [None] * len(self._servers)
            self._release_all(max(_LEAST_CLOSE_S, deadline - time.monotonic()))
            for server in living:
                server.forget()
            for server in living:
                server.await_end(max(_LEAST_CLOSE_S, deadline - time.monotonic()))
            self._standby.close()
        finally:
            if held:
                self._lock.release()
        self._workers.shutdown(wait=False)
        self._pings.shutdown(wait=False)

    def sweep(self) -> None:
        """Remove sockets that killed drivers of this pipeline have left behind."""
        for socket in names.socket_folder().glob(f"{self._prefix}-*.sock"):
            owner = int(socket.stem.split("-")[1])
            if not runs(owner):
                socket.unlink(missing_ok=True)


def _figures(server: LocalServer | RemoteServer) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = server.ask(lambda: server.client.act("figures"))["tasks"]
    return found
