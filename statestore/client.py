"""The other end of a store server: used by Spark's Python workers (`read`, `write`) and by the driver (the rest)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.flight as flight

from statestore import channel, wire
from statestore.batches import Order
from statestore.config import TaskSpec
from statestore.staging import SCHEMA

_LOOK_TIMEOUT_S = 1.0
_KEYS = pa.schema([("key", pa.binary())])
# What a call raises. A stream that ends under its client is an OSError of Arrow's, or one without the answer.
_CALL_ERRORS = (flight.FlightError, pa.ArrowException, OSError, StopIteration)


@contextmanager
def _ours() -> Iterator[None]:
    """Errors of a call as ours."""
    try:
        yield
    except _CALL_ERRORS as error:
        raise wire.from_flight(error) from error


class StoreClient:
    """A connection to one server. Errors are ours: `Unavailable` when the server is gone.

    `address` is a socket's path or `tls://host:port`, see `channel.py`; `timeout_s` bounds every call. Tasks are those of
    `pipeline`, or of any if it is empty.
    """

    def __init__(self, address: Path | str, *, pipeline: str = "", timeout_s: float | None = None) -> None:
        self._pipeline = pipeline
        self._client = channel.client(address)
        self._address, self._options = address, channel.options(address, timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def act(self, action: str, **command: Any) -> dict[str, Any]:
        """Run one action and give its answer."""
        return self._act(action, command, self._options)

    def look(self, action: str, *, timeout_s: float) -> dict[str, Any]:
        """Run one action that only looks, in that time whatever bounds the other calls."""
        return self._act(action, {}, channel.options(self._address, timeout_s))

    def _act(self, action: str, command: dict[str, Any], options: flight.FlightCallOptions) -> dict[str, Any]:
        with _ours():
            results = list(self._client.do_action((action, self._command(**command)), options))
            return wire.loads(results[0].body)

    def _command(self, **fields: Any) -> bytes:
        return wire.dumps(**{"pipeline": self._pipeline, **fields})

    def open_task(self, spec: TaskSpec, epoch: int) -> dict[str, Any]:
        """Make the server own the task; gives how its recovery went."""
        return self.act("open", task=wire.task_to_fields(spec), epoch=epoch)

    def close_task(self, spec: TaskSpec, epoch: int) -> bool:
        """Make the server let the task go, unless a newer driver has opened it; gives whether it had it."""
        closed: bool = self.act("close", task=spec.name, pipeline=spec.pipeline, epoch=epoch)["closed"]
        return closed

    def restoring(self) -> list[dict[str, Any]]:
        """How far the tasks are that are being restored now: `RestoreMeter`'s figures, and `task`."""
        # A heartbeat asks, which must not wait for a server that hangs.
        found: list[dict[str, Any]] = self.look("restoring", timeout_s=_LOOK_TIMEOUT_S)["restoring"]
        return found

    def commit(
        self, task: str, *, epoch: int, batch: int, attempt: int, plan: str, ends: Mapping[str, int]
    ) -> dict[str, Any]:
        """Commit a staged attempt; gives whether it was not committed before (`committed_now`), and the seconds of applying it.

        `ends` is where the input stands then.
        """
        return self.act("commit", task=task, epoch=epoch, batch=batch, attempt=attempt, plan=plan, ends=dict(ends))

    def snapshot(self, task: str) -> dict[str, Any]:
        """Take a snapshot of the task's committed version now; gives how it went."""
        return self.act("snapshot", task=task)

    def read(self, task: str, *, epoch: int, batch: int, after: int = -1) -> Reading:
        """Open a stream that answers keys with committed states. `epoch` is that of the driver whose batch it is.

        Waits for the commit of batch `after`, if that is staged; raises `Unavailable` if it will not come.
        """
        command = self._command(op="read", task=task, epoch=epoch, batch=batch, after=after)
        return Reading(self._client, self._options, command)

    def write(
        self, task: str, *, epoch: int, batch: int, attempt: int, token: int, order: Order | None = None
    ) -> Writing:
        """Open a stream that stages rows. `order` is the stream time after them and how many records came too late."""
        said = None if order is None else (order.stream_time_ms, order.dropped)
        command = self._command(
            op="write", task=task, epoch=epoch, batch=batch, attempt=attempt, token=token, order=said
        )
        return Writing(self._client, self._options, command)

    def entries(self, task: str, **command: Any) -> Iterator[pa.RecordBatch]:
        """Entries of the task's store as batches of key and stored value."""
        with _ours():
            reader = self._client.do_get(flight.Ticket(self._command(task=task, **command)), self._options)
            for chunk in reader:
                yield chunk.data


def require_answer(address: Path | str, timeout_s: float) -> None:
    """Raise `Unavailable` unless the server gives a sign of life: a machine that is frozen or cut off keeps connections."""
    with StoreClient(address, timeout_s=timeout_s) as client:
        client.act("ping")


class Reading:
    """One READ stream of one task. `stream_time_ms` is that of the version of the newest answer."""

    def __init__(self, client: Any, options: Any, command: bytes) -> None:
        self.stream_time_ms = -1
        with _ours():
            self._writer, self._reader = client.do_exchange(flight.FlightDescriptor.for_command(command), options)
            self._writer.begin(_KEYS)
            self.already: bool = wire.loads(self._reader.read_chunk().app_metadata)["already"]

    def states(self, keys: pa.Array) -> tuple[pa.Array, int]:
        """Committed states of the keys, null where there is none, and the version's token."""
        with _ours():
            self._writer.write_batch(pa.record_batch([keys], schema=_KEYS))
            answer = self._reader.read_chunk()
        version = wire.loads(answer.app_metadata)
        self.stream_time_ms = version["stream_time_ms"]
        return answer.data.column(0), version["token"]

    def close(self) -> None:
        """End the stream."""
        with _ours():
            self._writer.close()


class Writing:
    """One WRITE stream of one task. Nothing counts until `close` has returned."""

    def __init__(self, client: Any, options: Any, command: bytes) -> None:
        with _ours():
            self._writer, self._reader = client.do_exchange(flight.FlightDescriptor.for_command(command), options)
            self._writer.begin(SCHEMA)

    def add(self, rows: pa.RecordBatch) -> None:
        """Send rows of `staging.SCHEMA`."""
        with _ours():
            self._writer.write_batch(rows)

    def close(self) -> int:
        """Say that the attempt is complete; gives the number of rows the server has staged."""
        with _ours():
            self._writer.done_writing()
            rows: int = wire.loads(self._reader.read_chunk().app_metadata)["rows"]
            self._writer.close()
            return rows
