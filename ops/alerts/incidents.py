"""Incidents: rows that say what happened, what was started about it and how it ended.

    firing alert, no open incident of its fingerprint    a new incident
    firing alert, an open one                            the same: seen again, whatever `startsAt` says by now
    firing alert that began before the last one closed   that one, opened again: Alertmanager was away, or a delivery late
    resolved by webhook, after the incident began        closed
    not in Alertmanager's list for QUIET_S               closed; an empty list may be an Alertmanager that restarted
    closed before a run could begin                      gets none: what is healthy again is left alone
    silenced or inhibited                                no new incident; one that is open stays

At most one incident of a fingerprint is open, which the database sees to: the poll and the webhook may tell the same
alert at the same moment from two processes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, cast

from sqlalchemy import (
    JSON,
    BigInteger,
    Connection,
    Engine,
    Float,
    Integer,
    Select,
    String,
    Table,
    Text,
    insert,
    select,
    update,
)
from sqlalchemy.orm import Mapped, mapped_column

from ops.alerts.alert import Alert
from ops.alerts.routes import Route, route_of
from pipelines.database import Base, writing

# Prometheus sends again each minute, so a restarted Alertmanager is empty for that long.
QUIET_S = 150.0
KEPT = 2_000
_MISSED = "was over before a run could begin"


class IncidentRow(Base):
    """One incident. Times in seconds since 1970; `job` is empty where no run is wanted; `run_id` until it is known."""

    __tablename__ = "incidents"
    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True)
    fingerprint: Mapped[str] = mapped_column(String(255), index=True)
    open_fingerprint: Mapped[str | None] = mapped_column(String(255), unique=True)
    name: Mapped[str] = mapped_column(String(255))
    pipeline: Mapped[str] = mapped_column(String(100), index=True)
    labels: Mapped[dict[str, str]] = mapped_column(JSON)
    annotations: Mapped[dict[str, str]] = mapped_column(JSON)
    job: Mapped[str] = mapped_column(String(100))
    starts_at: Mapped[float] = mapped_column(Float)
    opened_at: Mapped[float] = mapped_column(Float)
    seen_at: Mapped[float] = mapped_column(Float)
    closed_at: Mapped[float | None] = mapped_column(Float)
    run_id: Mapped[str] = mapped_column(String(100), default="")
    run_url: Mapped[str] = mapped_column(Text, default="")
    outcome: Mapped[str] = mapped_column(Text, default="")


_TABLE = cast(Table, IncidentRow.__table__)


class Incidents:
    """Access to the rows. Every call is one short transaction; many processes may call at once."""

    def __init__(self, engine: Engine, routes: Sequence[Route]) -> None:
        self._engine = engine
        self._routes = routes

    def take_in(self, alerts: Sequence[Alert], *, complete: bool, now: float | None = None) -> None:
        """What was heard. `complete`: these are all that fire, as the API lists them; a webhook tells some."""
        moment = time.time() if now is None else now
        with self._writing() as connection:
            for alert in alerts:
                if alert.ended_at is not None:
                    _resolved(connection, alert, moment)
                elif alert.muted:
                    _seen(connection, alert, moment)
                else:
                    self._firing(connection, alert, moment)
            if complete:
                _close_quiet(connection, moment)

    def _firing(self, connection: Connection, alert: Alert, now: float) -> None:
        if _seen(connection, alert, now):
            return
        newest = (
            connection.execute(
                select(_TABLE).where(_TABLE.c.fingerprint == alert.fingerprint).order_by(_TABLE.c.id.desc()).limit(1)
            )
            .mappings()
            .first()
        )
        if newest is not None and newest["closed_at"] is not None and alert.starts_at <= newest["closed_at"]:
            again = {"closed_at": None, "open_fingerprint": alert.fingerprint, "seen_at": now}
            if newest["outcome"] == _MISSED:
                again["outcome"] = ""
            connection.execute(update(_TABLE).where(_TABLE.c.id == newest["id"]).values(**again))
            return
        route = route_of(self._routes, alert.labels)
        connection.execute(
            insert(_TABLE).values(
                fingerprint=alert.fingerprint,
                open_fingerprint=alert.fingerprint,
                name=alert.name,
                pipeline="" if route is None else route.pipeline_of(alert.labels),
                labels=dict(alert.labels),
                annotations=dict(alert.annotations),
                job="" if route is None else route.job,
                starts_at=alert.starts_at,
                opened_at=now,
                seen_at=now,
                closed_at=None,
                run_id="",
                run_url="",
                outcome="" if route else "no route names this alert",
            )
        )
        _forget_old(connection)

    def waiting(self) -> list[dict[str, Any]]:
        """Open incidents that want a run and are not known to have one, oldest first."""
        return self._read(_without_run().where(_TABLE.c.closed_at.is_(None)))

    def over(self) -> list[dict[str, Any]]:
        """As `waiting`, those that are closed: a run may have begun before."""
        return self._read(_without_run().where(_TABLE.c.closed_at.is_not(None)))

    def unfinished(self) -> list[dict[str, Any]]:
        """Incidents whose run is known and not how it went."""
        return self._read(select(_TABLE).where(_TABLE.c.run_id != "", _TABLE.c.outcome == "").order_by(_TABLE.c.id))

    def newest(self, limit: int = 50, *, pipeline: str = "") -> list[dict[str, Any]]:
        """The newest first."""
        wanted = select(_TABLE).order_by(_TABLE.c.id.desc()).limit(limit)
        return self._read(wanted.where(_TABLE.c.pipeline == pipeline) if pipeline else wanted)

    def link(self, incident: int, *, run_id: str, url: str) -> None:
        """The run that was started about it."""
        self._set(incident, run_id=run_id, run_url=url)

    def finish(self, incident: int, outcome: str) -> None:
        """How its run went, or why there is none."""
        self._set(incident, outcome=outcome)

    def pass_over(self, incident: int) -> None:
        """It was over before a run could begin, and gets none unless it is opened again, or was meanwhile."""
        closed = update(_TABLE).where(_TABLE.c.id == incident, _TABLE.c.closed_at.is_not(None))
        with self._writing() as connection:
            connection.execute(closed.values(outcome=_MISSED))

    def _set(self, incident: int, **values: str) -> None:
        with self._writing() as connection:
            connection.execute(update(_TABLE).where(_TABLE.c.id == incident).values(**values))

    def _read(self, wanted: Select[Any]) -> list[dict[str, Any]]:
        with self._engine.connect() as connection:
            return [dict(row) for row in connection.execute(wanted).mappings()]

    def _writing(self) -> AbstractContextManager[Connection]:
        return writing(self._engine)


def _without_run() -> Select[Any]:
    return select(_TABLE).where(_TABLE.c.job != "", _TABLE.c.run_id == "", _TABLE.c.outcome == "").order_by(_TABLE.c.id)


def _seen(connection: Connection, alert: Alert, now: float) -> bool:
    """Whether an incident of the alert is open; then it was seen now."""
    mine = update(_TABLE).where(_TABLE.c.open_fingerprint == alert.fingerprint)
    return bool(connection.execute(mine.values(seen_at=now, annotations=dict(alert.annotations))).rowcount)


def _resolved(connection: Connection, alert: Alert, now: float) -> None:
    """A resolved alert of an earlier episode, delivered late, ends nothing."""
    mine = update(_TABLE).where(_TABLE.c.open_fingerprint == alert.fingerprint, _TABLE.c.starts_at <= alert.ended_at)
    connection.execute(mine.values(open_fingerprint=None, closed_at=now))


def _close_quiet(connection: Connection, now: float) -> None:
    quiet = update(_TABLE).where(_TABLE.c.open_fingerprint.is_not(None), _TABLE.c.seen_at < now - QUIET_S)
    connection.execute(quiet.values(open_fingerprint=None, closed_at=now))


def _forget_old(connection: Connection) -> None:
    newest = connection.scalar(select(_TABLE.c.id).order_by(_TABLE.c.id.desc()).limit(1)) or 0
    old = _TABLE.delete().where(_TABLE.c.id <= newest - KEPT, _TABLE.c.open_fingerprint.is_(None))
    connection.execute(old)
