"""The store server: a process that owns tasks and serves them over Arrow Flight.

    do_exchange  read    keys in, committed states out, batch by batch
                 write   rows in (`staging.SCHEMA`), one acknowledgement when the attempt is complete
    do_action    open, close, commit, snapshot, figures, ping
    do_get       entries of a store, for queries

One process per core: two tasks in one interpreter compete for it. Where it listens and who may call, `channel.py` says.
Started by a driver, the process reads its configuration from the first line of its standard input and ends when that
input ends, so it never outlives that driver. On machines of their own servers outlive drivers. It exits with
`EXIT_FENCED` when a newer driver exists.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import structlog

from statestore import allocator, channel, entryhashes, logs, partitioner, sortedcolumns, wire
from statestore.batches import BatchesLog, Order
from statestore.config import KafkaConfig, ObjectsConfig, RocksConfig, ServerConfig, SnapshotConfig, TaskSpec
from statestore.errors import EXIT_FENCED, Fenced, InvalidConfig, InvalidInput, RollforwardError, Unavailable
from statestore.failpoints import reach
from statestore.kafka import messages
from statestore.kafka.reader import Reader
from statestore.listener import RestoreMeter
from statestore.no_pandas import keep_pandas_out
from statestore.ownership import require_newest
from statestore.snapshots.schedule import Snapshotter
from statestore.snapshots.service import Snapshots
from statestore.store import Isolation
from statestore.task import Task

log = structlog.get_logger()
STATES = pa.schema([("state", pa.binary())])
ENTRIES = pa.schema([("key", pa.binary()), ("value", pa.binary())])
_QUERY_ROWS = 5_000
# What a server that is told to end gives the calls under way, and then its stores; most take less.
_CALLS_END_S = 3.0
_STORES_CLOSE_S = 3.0


class StoreServer(flight.FlightServerBase):  # type: ignore[misc]
    """Serves the tasks that the driver opens on it."""

    def __init__(self, config: ServerConfig) -> None:
        super().__init__(**channel.server_arguments(config.address))
        if not channel.is_remote(config.address):
            Path(config.address).chmod(0o600)
        self._config = config
        self._tasks: dict[str, Task] = {}
        self._restoring: dict[str, RestoreMeter] = {}
        self._openings: dict[str, threading.Lock] = {}
        self._reader = Reader(config.kafka)
        self._snapshots = None if config.snapshots is None else Snapshots(config.snapshots)
        threading.Thread(target=self._connect, name="connect", daemon=True).start()
        self._snapshotter: Snapshotter | None = None
        if config.snapshots is not None:
            self._snapshotter = Snapshotter(config.snapshots, lambda: list(self._tasks.values()))
            self._snapshotter.start()

    def _connect(self) -> None:
        """Before the first task is opened, so that its recovery does not wait for it."""
        self._reader.connect()
        if self._snapshots is not None:
            self._snapshots.connect()

    def _task(self, command: dict[str, Any]) -> Task:
        """The task that a command names, of the pipeline that it names, or of any: epochs and names alone may be another's."""
        name, pipeline = command["task"], command["pipeline"]
        task = self._tasks.get(name)
        if task is None or pipeline not in ("", task.spec.pipeline):
            raise Unavailable("task is not on this server", task=name, pipeline=pipeline, server=self._config.name)
        return task

    def _task_of(self, command: dict[str, Any]) -> Task:
        """The task, for the driver that has opened it and for its Spark tasks.

        Each driver counts attempts from 0, so an older one could name an attempt of the newer that is not complete.
        """
        task = self._task(command)
        _require_not_older(task, command)
        if command["epoch"] > task.epoch:
            raise Unavailable("task is still an older driver's", task=task.spec.name, epoch=task.epoch)
        return task

    # Flight's entry points: each turns our errors into Flight's.

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        command = wire.loads(descriptor.command)
        try:
            task = self._task_of(command)
            if command["op"] == "read":
                self._read(task, command, reader, writer)
            else:
                self._write(task, command, reader, writer)
        except RollforwardError as error:
            raise self._refusal(error) from error

    def do_action(self, context: Any, action: Any) -> Iterator[bytes]:
        command = wire.loads(action.body) if action.body is not None and len(action.body) else {}
        try:
            yield wire.dumps(**self._act(action.type, command))
        except RollforwardError as error:
            raise self._refusal(error) from error

    def do_get(self, context: Any, ticket: Any) -> Any:
        command = wire.loads(ticket.ticket)
        return flight.GeneratorStream(ENTRIES, self._told(command))

    def _told(self, command: dict[str, Any]) -> Iterator[pa.RecordBatch]:
        """The entries; Flight asks for them when `do_get` has returned, so that their errors are turned here."""
        try:
            task = self._task(command)
            with task.spoiling(in_query=True):
                yield from self._entries(task, command)
        except RollforwardError as error:
            raise self._refusal(error) from error

    def _refusal(self, error: RollforwardError) -> flight.FlightServerError:
        # A server that outlives drivers serves the newer one meanwhile: only the call of the older is refused.
        if isinstance(error, Fenced) and self._config.states is None:
            log.warning("fenced", error=str(error))
            threading.Timer(0.2, os._exit, [EXIT_FENCED]).start()
        return wire.to_flight(error)

    # The work.

    def _read(self, task: Task, command: dict[str, Any], reader: Any, writer: Any) -> None:
        task.await_commit(command["after"])
        task.begin_read()
        writer.begin(STATES)
        already = command["batch"] <= task.committed_batch
        writer.write_metadata(wire.dumps(already=already))
        for chunk in _sent(reader):
            if already:
                continue
            states, token, stream_time_ms = task.read(chunk.data.column(0))
            answer = pa.record_batch([states], schema=STATES)
            writer.write_with_metadata(answer, wire.dumps(token=token, stream_time_ms=stream_time_ms))

    def _write(self, task: Task, command: dict[str, Any], reader: Any, writer: Any) -> None:
        if command["batch"] <= task.committed_batch:
            for _ in _sent(reader):
                pass
            writer.write_metadata(wire.dumps(already=True, rows=0))
            return
        order = None if command["order"] is None else Order(*command["order"])
        staged = task.begin_stage(
            batch=command["batch"], attempt=command["attempt"], token=command["token"], order=order
        )
        for chunk in _sent(reader):
            if chunk.data is None:
                continue
            task.check_stage(chunk.data)
            staged.add(chunk.data)
            reach("stage.in-stream")
        task.close_stage(staged)
        writer.write_metadata(wire.dumps(already=False, rows=staged.rows))

    def _act(self, name: str, command: dict[str, Any]) -> dict[str, Any]:
        match name:
            case "open":
                return self._open(command)
            case "close":
                return self._close(command)
            case "commit":
                task = self._task_of(command)
                fields = {name: command[name] for name in ("batch", "attempt", "plan", "ends")}
                now = task.commit(**fields)
                return {"committed_now": now, "apply_s": task.apply_s}
            case "snapshot":
                return self._snapshot(self._task(command))
            case "figures":
                return {"pid": os.getpid(), "tasks": [self._figures(task) for task in list(self._tasks.values())]}
            case "ping":
                # Takes no lock: a task that waits for Kafka is no reason to call the server dead.
                return {"pid": os.getpid()}
            case "restoring":
                found = [(task, meter.figures()) for task, meter in list(self._restoring.items())]
                return {"restoring": [{"task": task, **figures} for task, figures in found if figures is not None]}
            case _:
                raise InvalidInput("server has no such action", action=name)

    def _snapshot(self, task: Task) -> dict[str, Any]:
        if self._snapshotter is None:
            raise InvalidConfig("snapshots are turned off", hint="set snapshot_url, or leave it empty for a folder")
        return self._snapshotter.take(task)

    def _figures(self, task: Task) -> dict[str, Any]:
        figures = task.figures()
        if self._snapshotter is not None:
            figures["snapshot"] = self._snapshotter.figures(task)
        return figures

    def _open(self, command: dict[str, Any]) -> dict[str, Any]:
        spec = self._here(wire.task_from_fields(command["task"]))
        # Who is given up and comes back asks again while its first request goes on, and drivers follow each other.
        with self._openings.setdefault(spec.name, threading.Lock()):
            return self._open_alone(spec, command)

    def _open_alone(self, spec: TaskSpec, command: dict[str, Any]) -> dict[str, Any]:
        old = self._tasks.get(spec.name)
        if old is not None:
            if old.spec.pipeline != spec.pipeline:
                raise InvalidConfig(
                    "store server has a task of this name of another pipeline",
                    task=spec.name,
                    server=self._config.name,
                    pipeline=spec.pipeline,
                    other=old.spec.pipeline,
                    hint="give each pipeline store servers of its own; restart this one if the other pipeline is gone",
                )
            # Epochs are of one batches topic: a pipeline that was dropped and deployed again begins anew.
            if old.spec.store.changelog_topic_id == spec.store.changelog_topic_id:
                self._require_to_follow(old, spec, command)
            del self._tasks[spec.name]
            old.close()
        config = self._config
        task = Task(
            spec,
            command["epoch"],
            config.kafka,
            config.rocks,
            transactions=config.transactions,
            snapshots=self._snapshots,
            reader=self._reader,
        )
        meter = self._restoring[spec.name] = RestoreMeter(task=spec.name)
        try:
            opened = task.open(meter)
        finally:
            del self._restoring[spec.name]
        self._tasks[spec.name] = task
        return opened.to_json()

    def _close(self, command: dict[str, Any]) -> dict[str, Any]:
        """Let a task go for the driver that has opened it, or a newer one; of another pipeline's it knows nothing."""
        name = command["task"]
        with self._openings.setdefault(name, threading.Lock()):
            task = self._tasks.get(name)
            if task is None or task.spec.pipeline != command["pipeline"] or task.epoch > command["epoch"]:
                return {"closed": False}
            del self._tasks[name]
            task.close()
            return {"closed": True}

    def _require_to_follow(self, old: Task, spec: TaskSpec, command: dict[str, Any]) -> None:
        """Raise `Fenced` unless the driver that asks has opened the task itself, or is the newest.

        The log says that and not the epochs alone: they are offsets, so where Kafka was put back the newest driver's may be
        the smaller one. Asked before the task is let go, which an opening that is refused would take from its owner.
        """
        epoch = command["epoch"]
        if epoch != old.epoch:
            require_newest(BatchesLog(self._reader, spec.batches_topic, tasks=spec.tasks), epoch, spec.transactional_id)
        if epoch < old.epoch:
            log.warning("task is of a time that kafka has lost", task=spec.name, epoch=epoch, lost=old.epoch)

    def _here(self, spec: TaskSpec) -> TaskSpec:
        """The task with its folder on this machine: the driver knows only its own."""
        if self._config.states is None:
            return spec
        return replace(spec, folder=self._config.states / spec.pipeline / spec.name)

    def _entries(self, task: Task, command: dict[str, Any]) -> Iterator[pa.RecordBatch]:
        isolation = Isolation(command["isolation"])
        lower, upper = _unhex(command.get("lower")), _unhex(command.get("upper"))
        if command.get("key") is not None:
            key = bytes.fromhex(command["key"])
            value = task.entry(key, isolation)
            entries = iter([] if value is None else [(key, value)])
        else:
            entries = task.entries(lower, upper, isolation)
        yield from entry_batches(entries)

    def close_tasks(self) -> None:
        """Release every task's folder."""
        if self._snapshotter is not None:
            self._snapshotter.close()
        for task in list(self._tasks.values()):
            task.close()


def _require_not_older(task: Task, command: dict[str, Any]) -> None:
    """Raise `Fenced` if the driver that asks is older than the one that has opened the task."""
    if command["epoch"] < task.epoch:
        raise Fenced(
            "a newer driver has opened the task", task=task.spec.name, epoch=command["epoch"], newest=task.epoch
        )


def _sent(reader: Any) -> Iterator[Any]:
    """What the client sends, to its end. A server that answers and leaves before it breaks the client's stream."""
    while True:
        try:
            chunk = reader.read_chunk()
        except StopIteration:
            return
        yield chunk


def _unhex(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


def entry_batches(entries: Iterator[tuple[bytes, bytes]]) -> Iterator[pa.RecordBatch]:
    """Entries as Arrow batches of `ENTRIES`, at least one."""
    rows: list[tuple[bytes, bytes]] = []
    for entry in entries:
        rows.append(entry)
        if len(rows) == _QUERY_ROWS:
            yield _entry_batch(rows)
            rows = []
    yield _entry_batch(rows)


def _entry_batch(rows: list[tuple[bytes, bytes]]) -> pa.RecordBatch:
    keys = pa.array([key for key, _ in rows], pa.binary())
    return pa.record_batch([keys, pa.array([value for _, value in rows], pa.binary())], schema=ENTRIES)


def config_from_fields(fields: dict[str, Any]) -> ServerConfig:
    """A server's configuration from plain values."""
    snapshots = fields.get("snapshots")
    if snapshots is not None:
        snapshots = SnapshotConfig(**{**snapshots, "objects": ObjectsConfig(**snapshots["objects"])})
    return ServerConfig(
        name=fields["name"],
        address=fields["address"],
        kafka=KafkaConfig(**fields["kafka"]),
        rocks=RocksConfig(**fields["rocks"]),
        transactions=fields["transactions"],
        snapshots=snapshots,
    )


def serve(config: ServerConfig, until: Callable[[], object] | None = None) -> None:
    """Serve until SIGTERM, or until `until` has returned; then end the process."""
    keep_pandas_out()
    allocator.give_back_often()
    # Of all ways to wait the one that a signal's handler may end whatever it interrupts. In `server.wait` none runs.
    ended: SimpleQueue[None] = SimpleQueue()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: ended.put(None))
    server = StoreServer(config)

    def end() -> None:
        assert until is not None
        until()
        ended.put(None)

    if until is not None:
        threading.Thread(target=end, daemon=True).start()
    log.info("store server ready", server=config.name, address=config.address, pid=os.getpid())
    ended.get()
    # It waits for the calls under way, of which one may wait for a client that sends no more.
    _run_for(_CALLS_END_S, server.shutdown)
    # A commit has its task until Kafka answers. What is not closed is found as after a crash.
    _run_for(_STORES_CLOSE_S, server.close_tasks)
    if not channel.is_remote(config.address):
        Path(config.address).unlink(missing_ok=True)
    os._exit(0)


def _run_for(seconds: float, work: Callable[[], object]) -> None:
    """Return when that is done, or the time is over."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)


def main() -> None:
    """Entry point of the process; see the head of this file. Modules that it is given are imported before it is told more."""
    logs.json_to_stderr()
    for module in sys.argv[1:]:
        import_module(module)
    messages.ready()
    entryhashes.ready()
    partitioner.ready()
    sortedcolumns.ready()
    line = sys.stdin.buffer.readline()
    # Whoever launched it has ended, or needs no server.
    if line:
        serve(config_from_fields(wire.loads(line)), sys.stdin.buffer.read)


if __name__ == "__main__":
    main()
