"""What is deployed, what is desired, and what was last seen of it: rows in a database, through SQLAlchemy.

Definitions and desired states are written by people's commands, drivers' rows by the drivers. None of it decides over
correctness: offsets, positions and ownership are in Kafka, and this database may be lost without losing a record.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import JSON, BigInteger, Float, Integer, String, Text, create_engine, delete, event, func, select
from sqlalchemy.engine import make_url
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from statestore.errors import InvalidInput

RUNNING = "running"
STOPPED = "stopped"
BATCHES_KEPT = 20_000


class Base(DeclarativeBase):
    """Our tables."""


class PipelineRow(Base):
    """A deployed pipeline. `queries` is a list of {plan, topic ids}; `desired` is running or stopped."""

    __tablename__ = "pipelines"
    name: Mapped[str] = mapped_column(String(100), primary_key=True)
    sql: Mapped[str] = mapped_column(Text)
    sources: Mapped[list[dict[str, Any]]] = mapped_column(JSON)
    queries: Mapped[list[dict[str, Any]]] = mapped_column(JSON)
    desired: Mapped[str] = mapped_column(String(20), default=STOPPED)
    deployed_at: Mapped[float] = mapped_column(Float)


class DriverRow(Base):
    """The newest driver of a pipeline. `state` is starting, recovering, running, stopped, failed or fenced."""

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


class BatchRow(Base):
    """Figures of one finished batch. `lag` is in offsets, `state_bytes` and `state_keys` are over all tasks."""

    __tablename__ = "batches"
    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True)
    pipeline: Mapped[str] = mapped_column(String(100), index=True)
    query: Mapped[str] = mapped_column(String(100))
    batch: Mapped[int] = mapped_column(BigInteger)
    records: Mapped[int] = mapped_column(BigInteger)
    bad_records: Mapped[int] = mapped_column(BigInteger)
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
        parsed = make_url(url)
        self._sqlite = parsed.get_backend_name() == "sqlite"
        if self._sqlite and parsed.database:
            Path(parsed.database).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._engine = create_engine(url, connect_args={"timeout": 30} if self._sqlite else {})
        if self._sqlite:
            event.listen(self._engine, "connect", _wal)
        Base.metadata.create_all(self._engine)
        self._sessions = sessionmaker(self._engine, expire_on_commit=False)

    @contextmanager
    def _session(self) -> Iterator[Session]:
        with self._sessions() as session, session.begin():
            yield session

    def close(self) -> None:
        """Release the connections."""
        self._engine.dispose()

    # Definitions.

    def deploy(self, row: PipelineRow) -> None:
        """Add or replace a definition."""
        with self._session() as session:
            session.merge(row)

    def pipelines(self) -> list[PipelineRow]:
        """All, by name."""
        with self._session() as session:
            return list(session.scalars(select(PipelineRow).order_by(PipelineRow.name)))

    def pipeline(self, name: str) -> PipelineRow:
        """One. Raises `InvalidInput` with the names that exist."""
        with self._session() as session:
            row = session.get(PipelineRow, name)
        if row is None:
            known = ", ".join(p.name for p in self.pipelines()) or "none is deployed"
            raise InvalidInput(
                "pipeline is not deployed", pipeline=name, deployed=known, hint="run `rollforward deploy`"
            )
        return row

    def find(self, name: str) -> PipelineRow | None:
        """One, or None."""
        with self._session() as session:
            return session.get(PipelineRow, name)

    def set_desired(self, name: str, desired: str) -> None:
        """What people want: running or stopped."""
        with self._session() as session:
            row = session.get(PipelineRow, name)
            if row is None:
                raise InvalidInput("pipeline is not deployed", pipeline=name)
            row.desired = desired

    # Drivers.

    def driver(self, pipeline: str) -> DriverRow | None:
        """The newest driver's row."""
        with self._session() as session:
            return session.get(DriverRow, pipeline)

    def driver_started(self, pipeline: str, *, pid: int, process_started: float, host: str) -> None:
        """A driver begins; its row replaces an older driver's."""
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
                    started_at=now,
                    heartbeat_at=now,
                    servers=[],
                )
            )

    def driver_seen(self, pipeline: str, *, pid: int, state: str, error: str = "", servers: Any = None) -> bool:
        """Heartbeat of the driver with this pid; False (and no effect) if the row is another driver's by now."""
        with self._session() as session:
            row = session.get(DriverRow, pipeline)
            if row is None or row.pid != pid:
                return False
            row.state, row.error, row.heartbeat_at = state, error, time.time()
            if servers is not None:
                row.servers = servers
            return True

    # Batches and recoveries.

    def add_batch(self, row: BatchRow) -> None:
        """Record a finished batch; the oldest beyond `BATCHES_KEPT` go."""
        with self._session() as session:
            session.add(row)
            session.flush()
            if row.id % 1000 == 0:
                session.execute(delete(BatchRow).where(BatchRow.id <= row.id - BATCHES_KEPT))

    def batches(self, *, after: int = 0, pipeline: str | None = None, limit: int = 1000) -> list[BatchRow]:
        """Batches with an id above `after`, oldest first."""
        wanted = select(BatchRow).where(BatchRow.id > after)
        if pipeline is not None:
            wanted = wanted.where(BatchRow.pipeline == pipeline)
        with self._session() as session:
            return list(session.scalars(wanted.order_by(BatchRow.id).limit(limit)))

    def records(self, pipeline: str) -> int:
        """Records in the batches that are kept, over all queries."""
        total = select(func.coalesce(func.sum(BatchRow.records), 0)).where(BatchRow.pipeline == pipeline)
        with self._session() as session:
            return int(session.scalar(total) or 0)

    def newest_batches(self, pipeline: str) -> list[BatchRow]:
        """The newest batch of each query."""
        newest = select(func.max(BatchRow.id)).where(BatchRow.pipeline == pipeline).group_by(BatchRow.query)
        with self._session() as session:
            return list(session.scalars(select(BatchRow).where(BatchRow.id.in_(newest)).order_by(BatchRow.query)))

    def add_recovery(self, pipeline: str, cause: str, plan: dict[str, Any]) -> None:
        """Record how a task was opened."""
        with self._session() as session:
            session.add(RecoveryRow(pipeline=pipeline, cause=cause, plan=plan, finished_at=time.time()))

    def recoveries(self, pipeline: str, *, since: float = 0.0) -> list[RecoveryRow]:
        """Openings finished at or after `since` (seconds since the epoch), oldest first."""
        wanted = select(RecoveryRow).where(RecoveryRow.pipeline == pipeline, RecoveryRow.finished_at >= since)
        with self._session() as session:
            return list(session.scalars(wanted.order_by(RecoveryRow.id)))


def _wal(connection: Any, _record: Any) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()
