"""What is deployed, what is desired, and what was last seen of it: rows in a database, through SQLAlchemy.

Definitions and desired states are the metastore's projection and only read here; drivers write what is observed of
them. None of it decides over correctness: commands, offsets, positions and ownership are in Kafka, and this database
may be lost without losing a record.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import JSON, BigInteger, Float, Integer, String, Text, delete, func, select
from sqlalchemy.orm import Mapped, Session, mapped_column, sessionmaker

from pipelines.database import Base, open_database
from pipelines.metastore.projection import Snapshot
from pipelines.metastore.validate import DESIRED, PIPELINE, RUNNING, STOPPED, unknown_pipeline

__all__ = ["RUNNING", "STOPPED", "BatchRow", "DriverRow", "PipelineDefinition", "RecoveryRow", "Registry"]
# Of the figures that grow with every batch and every start; the oldest go, a thousand at a time.
ROWS_KEPT = 20_000
_ROWS_GO = 1_000
# Times before a pipeline's deployment are brought so much nearer to it.
_AHEAD = 10_000


@dataclass(frozen=True)
class PipelineDefinition:
    """A deployed pipeline. `queries` is a list of {plan, topic ids}; `desired` is running or stopped.

    `origin` is the pipeline that a clone is a copy of.
    """

    name: str
    sql: str
    sources: list[dict[str, Any]]
    queries: list[dict[str, Any]]
    deployed_at: float
    desired: str = STOPPED
    origin: str = ""


class DriverRow(Base):
    """The newest driver of a pipeline. `state` is starting, recovering, running, stopping, stopped, failed or fenced."""

    __tablename__ = "drivers"
    pipeline: Mapped[str] = mapped_column(String(100), primary_key=True)
    pid: Mapped[int] = mapped_column(Integer)
    process_started: Mapped[float] = mapped_column(Float)
    host: Mapped[str] = mapped_column(String(255))
    state: Mapped[str] = mapped_column(String(20))
    error: Mapped[str] = mapped_column(Text, default="")
    started_at: Mapped[float] = mapped_column(Float)
    heartbeat_at: Mapped[float] = mapped_column(Float)
    servers: Mapped[list[dict[str, Any]]] = mapped_column(JSON, default=list)
    metrics_port: Mapped[int | None] = mapped_column(Integer, default=None)
    spark_url: Mapped[str | None] = mapped_column(String(255), default=None)


class BatchRow(Base):
    """Figures of one finished batch. `lag` is in offsets, `state_bytes` and `state_keys` are over all tasks."""

    __tablename__ = "batches"
    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True)
    pipeline: Mapped[str] = mapped_column(String(100), index=True)
    query: Mapped[str] = mapped_column(String(100))
    batch: Mapped[int] = mapped_column(BigInteger)
    records: Mapped[int] = mapped_column(BigInteger)
    # The column has its first name.
    dead_letters: Mapped[int] = mapped_column("bad_records", BigInteger)
    late_records: Mapped[int] = mapped_column(BigInteger, default=0)
    changed_keys: Mapped[int] = mapped_column(BigInteger)
    seconds: Mapped[float] = mapped_column(Float)
    commit_seconds: Mapped[float] = mapped_column(Float)
    lag: Mapped[int] = mapped_column(BigInteger)
    state_keys: Mapped[int] = mapped_column(BigInteger)
    state_bytes: Mapped[int] = mapped_column(BigInteger)
    offsets: Mapped[dict[str, Any]] = mapped_column(JSON)
    finished_at: Mapped[float] = mapped_column(Float)


class RecoveryRow(Base):
    """How one task was opened. `plan` is the recovery plan with what it took."""

    __tablename__ = "recoveries"
    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=True)
    pipeline: Mapped[str] = mapped_column(String(100), index=True)
    cause: Mapped[str] = mapped_column(Text)
    plan: Mapped[dict[str, Any]] = mapped_column(JSON)
    finished_at: Mapped[float] = mapped_column(Float)


class Registry:
    """Access to the tables. Safe for many processes; every call is one short transaction."""

    def __init__(self, url: str) -> None:
        self.engine = open_database(url)
        self._sessions = sessionmaker(self.engine, expire_on_commit=False)

    @contextmanager
    def _session(self) -> Iterator[Session]:
        with self._sessions() as session, session.begin():
            yield session

    def close(self) -> None:
        """Release the connections."""
        self.engine.dispose()

    # Definitions.

    def pipelines(self) -> list[PipelineDefinition]:
        """All, by name. Raises whatever is wrong with one of them."""
        with self.engine.connect() as connection:
            snapshot = Snapshot(connection)
            desired = snapshot.all(DESIRED)
            return [_definition(name, body, desired.get(name)) for name, body in snapshot.all(PIPELINE).items()]

    def pipeline_names(self) -> list[str]:
        """Names alone: for them no definition has to be readable."""
        with self.engine.connect() as connection:
            return Snapshot(connection).names(PIPELINE)

    def pipeline(self, name: str) -> PipelineDefinition:
        """One. Raises `InvalidInput` with the names that exist."""
        found = self.find(name)
        if found is None:
            raise unknown_pipeline(name, self.pipeline_names())
        return found

    def find(self, name: str) -> PipelineDefinition | None:
        """One, or None."""
        with self.engine.connect() as connection:
            snapshot = Snapshot(connection)
            body = snapshot.get(PIPELINE, name)
            return None if body is None else _definition(name, body, snapshot.get(DESIRED, name))

    def desires(self) -> dict[str, str]:
        """The desired state of every pipeline, by name."""
        with self.engine.connect() as connection:
            snapshot = Snapshot(connection)
            desired = snapshot.all(DESIRED)
            return {name: desired.get(name, {}).get("state", STOPPED) for name in snapshot.names(PIPELINE)}

    # Drivers.

    def drivers(self) -> dict[str, DriverRow]:
        """The newest driver's row of every pipeline that ever had one."""
        with self._session() as session:
            return {row.pipeline: row for row in session.scalars(select(DriverRow))}

    def driver(self, pipeline: str) -> DriverRow | None:
        """The newest driver's row."""
        with self._session() as session:
            return session.get(DriverRow, pipeline)

    def driver_started(
        self,
        pipeline: str,
        *,
        pid: int,
        process_started: float,
        host: str,
        metrics_port: int | None = None,
        deployed_at: float = 0.0,
    ) -> None:
        """A driver begins; its row replaces an older driver's. `metrics_port` is where it serves its figures.

        `deployed_at`, in seconds since 1970, is that of its pipeline: by the clocks of two machines a driver may begin
        before that, and would be taken for one of an earlier pipeline of the name.
        """
        now = time.time()
        with self._session() as session:
            session.merge(
                DriverRow(
                    pipeline=pipeline,
                    pid=pid,
                    process_started=process_started,
                    host=host,
                    state="starting",
                    error="",
                    started_at=_begun(now, deployed_at),
                    heartbeat_at=now,
                    servers=[],
                    metrics_port=metrics_port,
                    spark_url=None,
                )
            )

    def driver_seen(
        self,
        pipeline: str,
        *,
        pid: int,
        process_started: float,
        host: str,
        state: str,
        error: str = "",
        servers: Any = None,
    ) -> bool:
        """Heartbeat of this very process; False (and no effect) if the row is another driver's by now, or gone."""
        with self._session() as session:
            row = _row_of(session, pipeline, pid=pid, process_started=process_started, host=host)
            if row is None:
                return False
            row.state, row.error, row.heartbeat_at = state, error, time.time()
            if servers is not None:
                row.servers = servers
            return True

    def spark_page(self, pipeline: str, *, pid: int, process_started: float, host: str, url: str | None) -> None:
        """Where the driver that is this very process shows Spark's own page; no effect if the row is another driver's."""
        with self._session() as session:
            row = _row_of(session, pipeline, pid=pid, process_started=process_started, host=host)
            if row is not None:
                row.spark_url = url

    # Batches and recoveries.

    def add_batch(self, row: BatchRow) -> None:
        """Record a finished batch; the oldest beyond `ROWS_KEPT` go."""
        self._add(BatchRow, row)

    def _add(self, kind: type[BatchRow] | type[RecoveryRow], row: BatchRow | RecoveryRow) -> None:
        with self._session() as session:
            session.add(row)
            session.flush()
            if row.id % _ROWS_GO == 0:
                session.execute(delete(kind).where(kind.id <= row.id - ROWS_KEPT))

    def batches(self, *, after: int = 0, pipeline: str | None = None, limit: int = 1000) -> list[BatchRow]:
        """Batches with an id above `after`, oldest first."""
        wanted = select(BatchRow).where(BatchRow.id > after)
        if pipeline is not None:
            wanted = wanted.where(BatchRow.pipeline == pipeline)
        with self._session() as session:
            return list(session.scalars(wanted.order_by(BatchRow.id).limit(limit)))

    def batch_before(self, row: BatchRow) -> BatchRow | None:
        """The batch that the same query finished before, if it is kept."""
        mine = (BatchRow.pipeline == row.pipeline, BatchRow.query == row.query, BatchRow.id < row.id)
        with self._session() as session:
            return session.scalars(select(BatchRow).where(*mine).order_by(BatchRow.id.desc()).limit(1)).first()

    def records(self, pipeline: str) -> int:
        """Records in the batches that are kept, over all queries."""
        total = select(func.coalesce(func.sum(BatchRow.records), 0)).where(BatchRow.pipeline == pipeline)
        with self._session() as session:
            return int(session.scalar(total) or 0)

    def last_batches(self, pipeline: str, query: str, *, limit: int = 200) -> list[BatchRow]:
        """The newest batches of a query, newest first."""
        mine = select(BatchRow).where(BatchRow.pipeline == pipeline, BatchRow.query == query)
        with self._session() as session:
            return list(session.scalars(mine.order_by(BatchRow.id.desc()).limit(limit)))

    def first_batch(self, pipeline: str, query: str, *, after: int) -> BatchRow | None:
        """The first of the kept batches of a query whose number is above `after`."""
        mine = (BatchRow.pipeline == pipeline, BatchRow.query == query, BatchRow.batch > after)
        with self._session() as session:
            return session.scalars(select(BatchRow).where(*mine).order_by(BatchRow.id).limit(1)).first()

    def dead_letters(self, pipeline: str, query: str, *, since: float) -> int:
        """Dead letters of the kept batches of a query that finished at or after `since`."""
        mine = (BatchRow.pipeline == pipeline, BatchRow.query == query, BatchRow.finished_at >= since)
        with self._session() as session:
            return int(session.scalar(select(func.coalesce(func.sum(BatchRow.dead_letters), 0)).where(*mine)) or 0)

    def newest_batches(self, pipeline: str | None = None) -> list[BatchRow]:
        """The newest batch of each query, of one pipeline or of all."""
        newest = select(func.max(BatchRow.id)).group_by(BatchRow.pipeline, BatchRow.query)
        if pipeline is not None:
            newest = newest.where(BatchRow.pipeline == pipeline)
        with self._session() as session:
            return list(session.scalars(select(BatchRow).where(BatchRow.id.in_(newest)).order_by(BatchRow.query)))

    def all_records(self) -> dict[str, int]:
        """Records in the batches that are kept, by pipeline; one without batches is left out."""
        total = select(BatchRow.pipeline, func.sum(BatchRow.records)).group_by(BatchRow.pipeline)
        with self._session() as session:
            return {pipeline: int(records) for pipeline, records in session.execute(total)}

    def add_recovery(self, pipeline: str, cause: str, plan: dict[str, Any]) -> None:
        """Record how a task was opened; the oldest beyond `ROWS_KEPT` go."""
        self._add(RecoveryRow, RecoveryRow(pipeline=pipeline, cause=cause, plan=plan, finished_at=time.time()))

    def recoveries(self, pipeline: str, *, since: float = 0.0) -> list[RecoveryRow]:
        """Openings finished at or after `since` (seconds since the epoch), oldest first."""
        wanted = select(RecoveryRow).where(RecoveryRow.pipeline == pipeline, RecoveryRow.finished_at >= since)
        with self._session() as session:
            return list(session.scalars(wanted.order_by(RecoveryRow.id)))


def _begun(now: float, deployed_at: float) -> float:
    """`now`, and within a minute of `deployed_at` where that is ahead by up to a week; a later one is later there as well."""
    return max(now, deployed_at - max(0.0, deployed_at - now) / _AHEAD)


def _row_of(session: Session, pipeline: str, *, pid: int, process_started: float, host: str) -> DriverRow | None:
    """The pipeline's row if this process began it. Pids come again: in containers every driver may have the same."""
    row = session.get(DriverRow, pipeline)
    mine = row is not None and (row.pid, row.process_started, row.host) == (pid, process_started, host)
    return row if mine else None


def _definition(name: str, body: dict[str, Any], desired: dict[str, Any] | None) -> PipelineDefinition:
    fields = {field: body[field] for field in ("sql", "sources", "queries", "deployed_at")}
    state, origin = (desired or {}).get("state", STOPPED), body.get("origin", "")
    return PipelineDefinition(name=name, **fields, desired=state, origin=origin)
