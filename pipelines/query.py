"""Reading a store from outside: by key, by range, or all of it, at either isolation level, as rows.

While a driver runs, its servers answer. Without one the local stores are opened read-only, and only if they stand at
the committed position; otherwise the reader is told to recover first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pipelines.deploy import DeployedQuery, deployed_queries
from pipelines.engine.decode import arrow_type
from pipelines.engine.merge import state_parts
from pipelines.engine.statecodec import StateCodec
from pipelines.plan import Aggregate, GroupKey, Query
from pipelines.registry import PipelineDefinition, Registry
from pipelines.settings import Settings
from statestore.batches import BatchesLog
from statestore.channel import may_listen
from statestore.client import StoreClient
from statestore.config import RocksConfig, TaskSpec
from statestore.errors import InvalidInput, Unavailable
from statestore.kafka import Reader
from statestore.partitioner import task_of
from statestore.server import entry_batches
from statestore.store import Isolation
from statestore.version import TaskDatabase


@dataclass(frozen=True)
class Row:
    """One entry of a store: the group keys, the aggregates, and the time of its newest record in ms."""

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


def encode_key(query: Query, text: str) -> bytes:
    """The key's bytes from what a person types: the value itself, or a JSON object or list for several group keys."""
    if query.key_format == "kafka":
        return _encode_plain(query.group_by[0], text)
    fields: Any = text
    try:
        fields = json.loads(text)
    except ValueError:
        if len(query.group_by) > 1:
            names = ", ".join(key.name for key in query.group_by)
            raise InvalidInput("key is not JSON", key=text, hint=f"give a JSON list of {names}") from None
    if not isinstance(fields, dict):
        values = fields if isinstance(fields, list) else [fields]
        if len(values) != len(query.group_by):
            raise InvalidInput("key has another number of parts", key=text, expected=len(query.group_by))
        fields = {key.name: value for key, value in zip(query.group_by, values, strict=True)}
    named = {str(name).upper(): value for name, value in fields.items()}
    ordered = {key.name: named.get(key.name.upper()) for key in query.group_by}
    return json.dumps(ordered, separators=(",", ":"), ensure_ascii=False).encode()


def _encode_plain(key: GroupKey, text: str) -> bytes:
    if key.type == "string":
        return text.encode()
    try:
        return int(text).to_bytes(4 if key.type == "int" else 8, "big", signed=True)
    except (ValueError, OverflowError):
        raise InvalidInput("key is not a number of the key's type", key=text, type=key.type) from None


def decode_key(query: Query, raw: bytes) -> dict[str, Any]:
    """The group keys of a key's bytes."""
    if query.key_format == "json":
        fields: dict[str, Any] = json.loads(raw)
        return fields
    key = query.group_by[0]
    value: Any = raw.decode() if key.type == "string" else int.from_bytes(raw, "big", signed=True)
    return {key.name: value}


class StoreReader:
    """Reads one query's store, wherever its tasks are."""

    def __init__(self, deployed: DeployedQuery, settings: Settings, registry: Registry | None) -> None:
        self._query = deployed.query
        self._specs = deployed.task_specs(settings.states)
        self._settings = settings
        self._registry = registry
        self._parts = [part for aggregate in self._query.aggregates for part in state_parts(aggregate)]
        self._codec = StateCodec([arrow_type(part.type) for part in self._parts])

    def get(self, key: bytes, isolation: Isolation) -> Iterator[Row]:
        """The entry of one key, if there is one."""
        task = task_of(key, self._query.tasks)
        for chunk in self._entries(self._specs[task], isolation, key=key.hex()):
            yield from self._rows(chunk)

    def scan(self, lower: bytes | None, upper: bytes | None, isolation: Isolation) -> Iterator[Row]:
        """Entries between two keys, both included, task by task; in key order within a task."""
        bounds = {name: None if at is None else at.hex() for name, at in (("lower", lower), ("upper", upper))}
        for spec in self._specs:
            for chunk in self._entries(spec, isolation, **bounds):
                yield from self._rows(chunk)

    def _entries(self, spec: TaskSpec, isolation: Isolation, **bounds: str | None) -> Iterator[pa.RecordBatch]:
        socket = self._socket(spec.name)
        if socket is not None:
            with StoreClient(socket) as client:
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
        database = TaskDatabase(spec.folder, [spec.store.name], RocksConfig(), read_only=True)
        try:
            checkpoint = database.checkpoint()
            if checkpoint is None or checkpoint.batch != position.batch:
                raise Unavailable("store is behind its committed position", task=spec.name, hint=hint)
            yield from entries_of(database, spec.store.name, **bounds)
        finally:
            database.close()

    def _rows(self, chunk: pa.RecordBatch) -> Iterator[Row]:
        times, columns = self._codec.decode(chunk.column(1))
        states = {part.name: column.to_pylist() for part, column in zip(self._parts, columns, strict=True)}
        names = {aggregate.name: column_of(aggregate, self._query) for aggregate in self._query.aggregates}
        for row, (key, time_ms) in enumerate(zip(chunk.column(0).to_pylist(), times.to_pylist(), strict=True)):
            values = {names[a.name]: _aggregate_value(a, states, row) for a in self._query.aggregates}
            yield Row(decode_key(self._query, key), values, time_ms)


def entries_of(
    database: TaskDatabase, store: str, *, key: str | None = None, lower: str | None = None, upper: str | None = None
) -> Iterator[pa.RecordBatch]:
    """The entry of a key, or those between two keys, both included; keys in hexadecimal."""
    if key is not None:
        wanted = bytes.fromhex(key)
        value = database.database.get(store, wanted)
        yield from entry_batches(iter([] if value is None else [(wanted, value)]))
        return
    low, high = (None if bound is None else bytes.fromhex(bound) for bound in (lower, upper))
    yield from entry_batches(database.database.scan(store, lower=low, upper=high))


def column_of(aggregate: Aggregate, query: Query) -> str:
    """The result column that is this aggregate, or the call itself where it is only part of an expression."""
    for output in query.outputs:
        if output.expression == f"`{aggregate.name}`":
            return output.name
    return f"{aggregate.function.removesuffix('_all')}({aggregate.argument or '*'})"


def _aggregate_value(aggregate: Aggregate, states: dict[str, list[Any]], row: int) -> Any:
    if aggregate.function != "avg":
        return states[aggregate.name][row]
    count = states[f"{aggregate.name}_count"][row]
    return states[f"{aggregate.name}_sum"][row] / count if count else None
