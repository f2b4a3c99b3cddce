"""Reading a store from outside: by key, by range, or all of it, at either isolation level, as rows.

While a driver runs, its servers answer. Without one the local stores are opened read-only, and only if they stand at
the committed position; otherwise the reader is told to recover first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.deploy import DeployedQuery, deployed_queries
from pipelines.engine.arrowtypes import arrow_type
from pipelines.engine.merge import state_parts
from pipelines.engine.statecodec import StateCodec
from pipelines.engine.values import key_reader
from pipelines.lookup import Key, same_key, stored_keys
from pipelines.plan import Aggregate, Column, Query, Source
from pipelines.registry import PipelineDefinition, Registry
from pipelines.settings import Settings
from pipelines.sql.names import WINDOW_BOUNDS
from pipelines.stored import Value, value_of
from statestore.batches import BatchesLog
from statestore.channel import is_remote, may_listen
from statestore.client import StoreClient, require_answer
from statestore.config import RocksConfig, StoreSpec, TaskSpec
from statestore.errors import InvalidInput, Unavailable
from statestore.kafka.reader import Reader
from statestore.layouts import window
from statestore.layouts.bounds import within
from statestore.layouts.local import are_local
from statestore.partitioner import task_of
from statestore.placement import Placement
from statestore.server import entry_batches
from statestore.store import Isolation
from statestore.version import TaskDatabase
from statestore.windows import MAX_TIME_MS, window_end


@dataclass(frozen=True)
class Row:
    """One entry of a store: the group keys, the aggregates, and the time of its newest record in ms.

    In a windowed store the window's bounds are among the keys.
    """

    key: dict[str, Any]
    value: dict[str, Any]
    time_ms: int

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"key": self.key, "value": self.value, "time_ms": self.time_ms}


def find_store(registry: Registry, store: str) -> tuple[PipelineDefinition, DeployedQuery]:
    """The pipeline and query of a store named `store` or `pipeline.store`. Raises `InvalidInput`."""
    pipeline, _, name = store.rpartition(".")
    found = [
        (row, deployed)
        for row in registry.pipelines()
        for deployed in deployed_queries(row)
        if deployed.query.store == name and pipeline in ("", row.name)
    ]
    if len(found) == 1:
        return found[0]
    known = ", ".join(f"{row.name}.{d.query.store}" for row in registry.pipelines() for d in deployed_queries(row))
    problem = "store name is ambiguous" if found else "store does not exist"
    raise InvalidInput(problem, store=store, stores=known or "none", hint="name it as pipeline.store")


_EMPTY: Mapping[str, str | bytes] = {"string": "", "bytes": b""}


def decode_key(query: Query, raw: bytes) -> dict[str, Any]:
    """The group keys of a stored key's bytes, and the bounds of its window."""
    if query.window is not None:
        raw, start_ms, _ = window.unpack(raw)
        bounds = zip(WINDOW_BOUNDS, (start_ms, window_end(start_ms, query.window.size_ms)), strict=True)
        return decode_key(replace(query, window=None), raw) | dict(bounds)
    columns = tuple(Column(key.name, key.name, key.type, key=True) for key in query.group_by)
    source = Source(query.name, "", "json", columns, query.key_format, query.key_delimiter)
    values = key_reader(source, columns)(raw)
    # No group is of null: where DELIMITED has the same for null and an empty value, it is that.
    return {
        column.name: _EMPTY.get(column.type) if value is None else value
        for column, value in zip(columns, values, strict=True)
    }


@dataclass(frozen=True)
class _Column:
    """An aggregate as a column of rows: its name there, how many parts its state has, and its value of them."""

    name: str
    parts: int
    value: Value


class StoreReader:
    """Reads one query's store, wherever its tasks are."""

    def __init__(self, deployed: DeployedQuery, settings: Settings, registry: Registry | None) -> None:
        self._query = deployed.query
        self._specs = deployed.task_specs(settings.states)
        self._settings = settings
        self._registry = registry
        parts = [state_parts(aggregate) for aggregate in self._query.aggregates]
        self._columns = [
            _Column(column_of(aggregate, self._query), len(own), value_of(aggregate))
            for aggregate, own in zip(self._query.aggregates, parts, strict=True)
        ]
        self._codec = StateCodec([arrow_type(part.type) for own in parts for part in own])

    def find(self, key: Key, isolation: Isolation) -> Iterator[Row]:
        """The entry of a key's values, if there is one; with windows, one for each that is kept.

        Reads the whole store for a key whose bytes cannot be told from its values.
        """
        stored = stored_keys(self._query, [key])
        if stored is None:
            names = [part.name for part in self._query.group_by]
            for row in self.scan(None, None, isolation):
                if same_key(key, tuple(row.key[name] for name in names)):
                    yield row
            return
        for each in stored:
            yield from self.get(each, isolation)

    def get(self, key: bytes, isolation: Isolation) -> Iterator[Row]:
        """The entry of one key, if there is one; with windows, one for each that is kept."""
        spec = self._specs[task_of(key, self._query.tasks)]
        if self._query.window is not None:
            yield from self._between(spec, key, key, isolation)
            return
        for chunk in self._entries(spec, isolation, key=key.hex()):
            yield from self._rows(chunk)

    def scan(self, lower: bytes | None, upper: bytes | None, isolation: Isolation) -> Iterator[Row]:
        """Entries between two keys, both included, task by task; in key order within a task."""
        for spec in self._specs:
            yield from self._between(spec, lower, upper, isolation)

    def scan_task(self, number: int, isolation: Isolation) -> Iterator[Row]:
        """All entries of one task, as of one of its versions."""
        yield from self._between(self._specs[number], None, None, isolation)

    def _between(self, spec: TaskSpec, lower: bytes | None, upper: bytes | None, isolation: Isolation) -> Iterator[Row]:
        low, high = lower, upper
        if self._query.window is not None:
            low, high = window.range_bounds(lower, upper, MAX_TIME_MS)
        bounds = {name: None if at is None else at.hex() for name, at in (("lower", low), ("upper", high))}
        for chunk in self._entries(spec, isolation, **bounds):
            yield from self._rows(self._of_keys(chunk, lower, upper))

    def _of_keys(self, chunk: pa.RecordBatch, lower: bytes | None, upper: bytes | None) -> pa.RecordBatch:
        """Without the entries of other keys that lie between the stored keys of a window's range."""
        if self._query.window is None:
            return chunk
        keys = [window.unpack(stored)[0] for stored in chunk.column(0).to_pylist()]
        return chunk.filter(pa.array([within(key, lower, upper) for key in keys], pa.bool_()))

    def _entries(self, spec: TaskSpec, isolation: Isolation, **bounds: str | None) -> Iterator[pa.RecordBatch]:
        socket = self._socket(spec.name)
        if socket is not None:
            if is_remote(socket):
                require_answer(socket, self._settings.answer_timeout_s)
            with StoreClient(socket, pipeline=spec.pipeline) as client:
                yield from client.entries(spec.name, isolation=isolation.value, **bounds)
            return
        yield from self._offline(spec, **bounds)

    def _socket(self, task: str) -> str | None:
        driver = None if self._registry is None else self._registry.driver(self._specs[0].pipeline)
        if driver is None:
            return None
        for server in driver.servers:
            if task in server["tasks"] and may_listen(server["socket"]):
                return str(server["socket"])
        return None

    def _offline(self, spec: TaskSpec, **bounds: str | None) -> Iterator[pa.RecordBatch]:
        position = BatchesLog(Reader(self._settings.kafka_config()), spec.batches_topic, tasks=spec.tasks).position(
            spec.number
        )
        if position is None:
            return
        hint = "start the pipeline: it recovers its stores"
        if not spec.folder.exists():
            raise Unavailable("store is not on this machine", task=spec.name, folder=spec.folder, hint=hint)
        database = TaskDatabase.beside(spec.folder, [spec.store.name], RocksConfig())
        try:
            checkpoint = database.checkpoint()
            if checkpoint is None or checkpoint.batch != position.batch:
                raise Unavailable("store is behind its committed position", task=spec.name, hint=hint)
            now = -1 if position.order is None else position.order.stream_time_ms
            yield from entries_of(database, spec.store, now, **bounds)
        finally:
            database.close()

    def _rows(self, chunk: pa.RecordBatch) -> Iterator[Row]:
        # What a table's rows count for is no result.
        chunk = chunk.filter(pc.invert(are_local(chunk.column(0))))
        times, columns = self._codec.decode(chunk.column(1))
        names = [column.name for column in self._columns]
        given = iter(columns)
        values = [
            map(column.value, *(part.to_pylist() for part in islice(given, column.parts))) for column in self._columns
        ]
        for key, time_ms, *found in zip(chunk.column(0).to_pylist(), times.to_pylist(), *values, strict=True):
            yield Row(decode_key(self._query, key), dict(zip(names, found, strict=True)), time_ms)


def entries_of(
    database: TaskDatabase,
    store: StoreSpec,
    stream_time_ms: int = -1,
    /,
    *,
    key: str | None = None,
    lower: str | None = None,
    upper: str | None = None,
) -> Iterator[pa.RecordBatch]:
    """The entry of a stored key, or those between two, both included, in retention by then; keys in hexadecimal."""
    placement = Placement(store)
    if key is not None:
        wanted = bytes.fromhex(key)
        (value,) = placement.get_many(database.database, [wanted])
        yield from entry_batches(iter([] if value is None else [(wanted, value)]))
        return
    low, high = (None if bound is None else bytes.fromhex(bound) for bound in (lower, upper))
    yield from entry_batches(placement.scan(database.database, lower=low, upper=high, stream_time_ms=stream_time_ms))


def column_of(aggregate: Aggregate, query: Query) -> str:
    """The result column that is this aggregate, or the call itself where it is only part of an expression."""
    for output in query.outputs:
        if output.expression == f"`{aggregate.name}`":
            return output.name
    return f"{aggregate.function.removesuffix('_all')}({aggregate.argument or '*'})"
