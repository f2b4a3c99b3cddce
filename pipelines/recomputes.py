"""Requests to compute a period of a result again: rows that a person or Dagster writes and the pipeline's driver takes.

    asked ──the driver begins──► running ──the batch is done, or the dry run──► done
      │                            ├──it cannot be computed; nothing is changed──► failed
      │                            ▼ a dry run
      └──nobody waits for it any more──► withdrawn

A row only asks. What is computed is in the batches topic, as a planned batch that carries the request's id; so a row that
is lost loses a wish, and one that is taken twice computes twice, which changes nothing the second time.
"""

from __future__ import annotations

import time
import uuid
from typing import Any

from sqlalchemy import JSON, BigInteger, Boolean, ColumnElement, Engine, Float, String, Text, select, update
from sqlalchemy.orm import Mapped, Session, mapped_column, sessionmaker

from pipelines.database import Base

ASKED, RUNNING, DONE, FAILED, WITHDRAWN = "asked", "running", "done", "failed", "withdrawn"
_TAKEN = "taken"


class RecomputeRow(Base):
    """One request. The period is from `from_ms`, included, to `to_ms`, not included; times in seconds since 1970.

    `report` is the comparison once it is done, and before that how often the request was taken.
    """

    __tablename__ = "recomputes"
    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    pipeline: Mapped[str] = mapped_column(String(100), index=True)
    query: Mapped[str] = mapped_column(String(100))
    from_ms: Mapped[int] = mapped_column(BigInteger)
    to_ms: Mapped[int] = mapped_column(BigInteger)
    dry_run: Mapped[bool] = mapped_column(Boolean)
    state: Mapped[str] = mapped_column(String(20), default=ASKED)
    asked_at: Mapped[float] = mapped_column(Float)
    finished_at: Mapped[float | None] = mapped_column(Float, default=None)
    batch: Mapped[int | None] = mapped_column(BigInteger, default=None)
    report: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
    error: Mapped[str] = mapped_column(Text, default="")

    @property
    def taken(self) -> int:
        """How many drivers have begun with it and not stopped in order, while it is not settled."""
        return int(self.report.get(_TAKEN, 0))


class Recomputes:
    """Access to the rows. Every call is one short transaction."""

    def __init__(self, engine: Engine) -> None:
        self._sessions = sessionmaker(engine, expire_on_commit=False)

    def ask(
        self, pipeline: str, query: str, *, from_ms: int, to_ms: int, dry_run: bool, deployed_at: float = 0.0
    ) -> str:
        """Write a request; gives its id.

        `deployed_at`, in seconds since 1970, is that of the pipeline that is meant: one that is deployed under its name
        later refuses the request. The clock of whoever deployed it may be ahead.
        """
        row = RecomputeRow(
            id=uuid.uuid4().hex,
            pipeline=pipeline,
            query=query,
            from_ms=from_ms,
            to_ms=to_ms,
            dry_run=dry_run,
            asked_at=max(time.time(), deployed_at),
        )
        with self._begin() as session, session.begin():
            session.add(row)
            return row.id

    def get(self, request: str) -> RecomputeRow | None:
        """One request."""
        with self._begin() as session:
            return session.get(RecomputeRow, request)

    def next(self, pipeline: str, query: str) -> RecomputeRow | None:
        """The oldest request of a query that is not settled, also one that an earlier driver began."""
        open_ = select(RecomputeRow).where(*_open(pipeline), RecomputeRow.query == query)
        with self._begin() as session:
            return session.scalars(open_.order_by(RecomputeRow.asked_at).limit(1)).first()

    def waiting(self, pipeline: str) -> frozenset[str]:
        """The queries of a pipeline that have a request which is not settled."""
        with self._begin() as session:
            return frozenset(session.scalars(select(RecomputeRow.query).where(*_open(pipeline)).distinct()))

    def take(self, row: RecomputeRow) -> bool:
        """The driver begins with it; False if it was withdrawn meanwhile."""
        return self._move(row.id, (ASKED, RUNNING), state=RUNNING, report={_TAKEN: row.taken + 1})

    def put_back(self, row: RecomputeRow) -> None:
        """The driver that took this row stops in order: it does not count as one that has begun with it."""
        self._move(row.id, (RUNNING,), report={_TAKEN: row.taken})

    def withdraw(self, request: str) -> bool:
        """Nobody waits for it any more; False if a driver has begun to put the period right, and goes on with that."""
        row = self.get(request)
        before = (ASKED, RUNNING) if row is not None and row.dry_run else (ASKED,)
        return self._move(request, before, state=WITHDRAWN, finished_at=time.time())

    def done(self, request: str, *, batch: int | None, report: dict[str, Any]) -> None:
        """It is computed, and what differed is committed as `batch`; None where nothing is written."""
        self._move(request, (ASKED, RUNNING), state=DONE, batch=batch, report=report, finished_at=time.time())

    def failed(self, request: str, error: str) -> None:
        """It cannot be computed; nothing is changed."""
        self._move(request, (ASKED, RUNNING), state=FAILED, error=error, finished_at=time.time())

    def _move(self, request: str, before: tuple[str, ...], **changed: Any) -> bool:
        change = update(RecomputeRow).where(RecomputeRow.id == request, RecomputeRow.state.in_(before)).values(changed)
        with self._begin() as session, session.begin():
            return bool(session.execute(change).rowcount)  # type: ignore[attr-defined]

    def _begin(self) -> Session:
        return self._sessions()


def _open(pipeline: str) -> tuple[ColumnElement[bool], ...]:
    """A pipeline's requests that are not settled."""
    return RecomputeRow.pipeline == pipeline, RecomputeRow.state.in_((ASKED, RUNNING))
