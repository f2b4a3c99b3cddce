"""A period computed again: the query's own job over the source's records of that time, beginning without any state.

    READ    no state: what is computed stands for itself
    WRITE   keys of the period against those of the store: what differs is staged, what is too much is deleted

Keys that are equal are left alone, so a period that is right changes nothing, however often it is computed. Records that
came too late for their window count here: a difference is a correction. Bad records are left out, since they went to
the dead letters when they came. Windows that the store does not keep any more are counted and left as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields, replace

import pyarrow as pa

from pipelines.engine.exchange import RESULT_DDL, ArrowFunction, Exchange, staged_rows, task_context
from pipelines.engine.exchange import result as result_row
from pipelines.engine.input import Input
from pipelines.engine.job import Counts, Job, StagedBatch, collected, uncounted
from pipelines.engine.jobs import job_of
from pipelines.engine.merge import LAST, state_parts
from pipelines.engine.record_order import RecordOrder
from pipelines.engine.resultlimit import ResultLimit
from pipelines.engine.statecodec import StateCodec
from pipelines.periods import TimeGroup, require_time_group
from pipelines.plan import Query
from pipelines.query import decode_key
from statestore.batches import Order
from statestore.client import Reading, StoreClient
from statestore.clock import now_ms
from statestore.layouts.segments import Segments, default_interval_ms
from statestore.staging import DELETED, EMIT_TOMBSTONE, EMIT_VALUE, SCHEMA
from statestore.store import Isolation

_NEVER_MS = 1 << 61
COMPARED_DDL = "{result}, keys bigint, equal bigint, changed bigint, added bigint, removed bigint, expired bigint"
Entries = dict[bytes, tuple[bytes, int, bytes | None]]


@dataclass(frozen=True)
class Compared:
    """What a period has computed again, against the stream's own result, in keys. `expired` are kept by no store.

    `tasks` had something to say: one that has committed the batch before is not asked again.
    """

    tasks: int = 0
    records: int = 0
    keys: int = 0
    equal: int = 0
    changed: int = 0
    added: int = 0
    removed: int = 0
    expired: int = 0

    def to_json(self) -> dict[str, int]:
        """Plain values."""
        return asdict(self)


_FIGURES = [field.name for field in fields(Compared)][2:]


@dataclass(frozen=True)
class Period:
    """What is computed: keys whose time lies from `from_ms`, included, to `to_ms`, not included."""

    from_ms: int
    to_ms: int
    dry_run: bool = False


class RecomputeJob:
    """The job of one period of one plan."""

    def __init__(self, query: Query, period: Period) -> None:
        self.query, self.period = query, period
        self.group = require_time_group(query)
        self.job: Job = job_of(narrowed(query, self.group, period))

    def run(self, records: Input, exchange: Exchange, refused: dict[tuple[int, int], str]) -> Staged:
        """Stage what differs, or with a dry run only compare. Raises what Spark raises; then nothing may be committed."""
        counts = Counts.of(records)
        frame = self.job.frame(
            records,
            count=counts.add,
            read=self.job.without_states(),
            write=self._write(exchange),
            refused=refused,
            result_ddl=COMPARED_DDL.format(result=RESULT_DDL),
        )
        rows = collected(frame, large=self.job.large_rows)
        staged = counts.staged([row for row in rows if row.rows > 0])
        sums = {name: sum(row[name] for row in rows) for name in _FIGURES}
        return Staged(replace(staged, dead_letters=0), Compared(len(rows), staged.records, **sums))

    def try_out(self, records: Input, results: ResultLimit, refused: dict[tuple[int, int], str]) -> None:
        """Compute everything and stage nothing. Raises what Spark raises."""
        write, read = _fitting(results, self.query, self.period), self.job.without_states()
        frame = self.job.frame(records, count=uncounted, read=read, write=write, refused=refused)
        collected(frame, large=self.job.large_rows)

    def _write(self, exchange: Exchange) -> ArrowFunction:
        return _writer(exchange, self.query, self.period)


@dataclass(frozen=True)
class Staged:
    """A job that has succeeded: what the driver may commit, and how it compares."""

    batch: StagedBatch
    compared: Compared


def narrowed(query: Query, group: TimeGroup, period: Period) -> Query:
    """The query over the rows of one period; no record is too late for it."""
    rows = group.rows(query, period.from_ms, period.to_ms)
    where = rows if query.where is None else f"({query.where}) AND {rows}"
    window = None if query.window is None else replace(query.window, grace_ms=_NEVER_MS)
    return replace(query, where=where, window=window)


def _types(query: Query) -> list[pa.DataType]:
    return RecordOrder(query).types


def _writer(exchange: Exchange, query: Query, period: Period) -> ArrowFunction:
    """WRITE: every task compares, also one without rows, which may have keys that should not be there."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = task_context()
        task, attempt = context.partitionId(), context.taskAttemptId()
        wanted = _computed(query, period, batches)
        name = exchange.task_name(task)
        with exchange.client(task) as client:
            reading = exchange.read(client, task)
            if reading.already:
                return
            _, token = reading.states(pa.array([], pa.binary()))
            known = _stored(client, name, query, period)
            compared, changes = compare(known, wanted, _readable_from(query, reading))
            rows = 0
            if changes and not period.dry_run:
                order = Order(reading.stream_time_ms, 0) if query.in_record_order else None
                staged = pa.RecordBatch.from_pylist(changes, schema=SCHEMA)
                # Other tasks may have committed theirs when this one's commit failed of it.
                exchange.results.require(staged.column("key"), staged.column("value"), staged.column("emit"))
                writing = exchange.write(client, task, attempt=attempt, token=token, order=order)
                writing.add(staged)
                rows = writing.close()
            reading.close()
        yield _with_figures(result_row(task, attempt, rows), compared)

    return write


def _fitting(results: ResultLimit, query: Query, period: Period) -> ArrowFunction:
    """WRITE of a trial: takes every result of the period that is not too large, and stages none."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        shown = [(key, value) for key, (_, _, value) in _computed(query, period, batches).items() if value is not None]
        keys, values = ([row[at] for row in shown] for at in (0, 1))
        results.require(pa.array(keys, pa.binary()), pa.array(values, pa.binary()))
        yield from ()

    return write


def _in_period(query: Query, period: Period) -> TimeGroupTest:
    return TimeGroupTest(query, require_time_group(query), period)


@dataclass(frozen=True)
class TimeGroupTest:
    """Whether a stored key is of a period."""

    query: Query
    group: TimeGroup
    period: Period

    def __call__(self, key: bytes) -> bool:
        time_ms = self.group.of_key(decode_key(self.query, key))
        return time_ms is not None and self.period.from_ms <= time_ms < self.period.to_ms


def _computed(query: Query, period: Period, batches: Iterable[pa.RecordBatch]) -> Entries:
    """State, time and shown value of every key of the period that the task has computed."""
    mine = _in_period(query, period)
    parts = [part.name for aggregate in query.aggregates for part in state_parts(aggregate)]
    codec = StateCodec(_types(query))
    found: Entries = {}
    for batch in batches:
        if LAST in batch.schema.names:
            batch = batch.filter(batch.column(LAST))
        if batch.num_rows == 0:
            continue
        columns = [column.to_pylist() for column in staged_rows(batch, parts, codec).columns]
        for key, state, time_ms, emit, value, _dead in zip(*columns, strict=True):
            if mine(key):
                found[key] = (state, time_ms, value if emit == EMIT_VALUE else None)
    return found


def _stored(client: StoreClient, name: str, query: Query, period: Period) -> dict[bytes, bytes]:
    """The committed entries of the period."""
    mine = _in_period(query, period)
    return {
        key: state
        for chunk in client.entries(name, isolation=Isolation.READ_COMMITTED.value)
        for key, state in zip(chunk.column(0).to_pylist(), chunk.column(1).to_pylist(), strict=True)
        if mine(key)
    }


def _readable_from(query: Query, reading: Reading) -> int | None:
    """The first window that the store still gives; None without windows."""
    if query.window is None:
        return None
    retention_ms = query.window.retention_ms
    segments = Segments(query.store, retention_ms, default_interval_ms(retention_ms))
    return segments.readable_from(reading.stream_time_ms)


def compare(
    known: dict[bytes, bytes], wanted: Entries, readable_from: int | None = None
) -> tuple[Compared, list[dict[str, object]]]:
    """How two versions of a period compare, and the rows of `staging.SCHEMA` that make the second of the first."""
    changes: list[dict[str, object]] = []
    equal = changed = added = expired = 0
    for key, (state, time_ms, value) in sorted(wanted.items()):
        old = known.get(key)
        if old is None and readable_from is not None and _window_start(key) < readable_from:
            expired += 1
            continue
        if old == state:
            equal += 1
            continue
        changed, added = changed + (old is not None), added + (old is None)
        # A group that HAVING hides now may have been shown before.
        emit = EMIT_VALUE if value is not None else EMIT_TOMBSTONE
        changes.append({"key": key, "state": state, "time_ms": time_ms, "emit": emit, "value": value, "dead": None})
    surplus = sorted(set(known) - set(wanted))
    for key in surplus:
        tombstone = {"key": key, "state": DELETED, "time_ms": now_ms(), "emit": EMIT_TOMBSTONE}
        changes.append({**tombstone, "value": None, "dead": None})
    figures = (len(wanted), equal, changed, added, len(surplus), expired)
    return Compared(1, 0, *figures), changes


def _window_start(key: bytes) -> int:
    return int.from_bytes(key[-12:-4], "big")


def _with_figures(row: pa.RecordBatch, compared: Compared) -> pa.RecordBatch:
    arrays = [pa.array([getattr(compared, name)], pa.int64()) for name in _FIGURES]
    return pa.RecordBatch.from_arrays([*row.columns, *arrays], names=[*row.schema.names, *_FIGURES])
