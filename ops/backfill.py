"""Asking a running driver to compute a period of a result again, and waiting for its answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from ops import control
from ops.environment import Progress
from pipelines.deploy import deployed_queries
from pipelines.periods import DAY_MS, HOUR_MS, require_time_group, time_group
from pipelines.plan import Query
from pipelines.recomputes import DONE, FAILED, RecomputeRow, Recomputes
from pipelines.registry import Registry
from pipelines.rewind import chosen
from statestore.errors import InvalidInput, Unavailable

_POLL_S = 0.2


@dataclass(frozen=True)
class Backfilled:
    """One query's answer. `batch` is None for a dry run; the figures are those of `Compared`, in keys."""

    query: str
    period_from: str
    period_to: str
    dry_run: bool
    batch: int | None
    figures: dict[str, int]

    @property
    def corrected(self) -> int:
        """Keys that differed from the stream's own result."""
        return sum(self.figures.get(name, 0) for name in ("changed", "added", "removed"))

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        plain = asdict(self)
        return {**plain, **plain.pop("figures"), "corrected": self.corrected}


def periods_of(registry: Registry, pipeline: str, query: str | None) -> list[Query]:
    """The queries meant: the one that is named, or all that are grouped by time. Raises `InvalidInput`."""
    row = registry.pipeline(pipeline)
    if query is not None:
        found = [deployed.query for deployed in chosen(row, query, None)]
        require_time_group(found[0])
        return found
    queries = [deployed.query for deployed in deployed_queries(row)]
    timed = [one for one in queries if time_group(one) is not None]
    if not timed:
        require_time_group(queries[0])
    return timed


def require_whole(query: Query, from_ms: int, to_ms: int) -> None:
    """Raises `InvalidInput` unless the period has whole hours, or whole days where the result has no hours."""
    step_ms = DAY_MS if require_time_group(query).step_ms >= DAY_MS else HOUR_MS
    if from_ms >= to_ms:
        raise InvalidInput("period is empty", start=moment(from_ms), end=moment(to_ms), hint="--to is not included")
    if from_ms % step_ms or to_ms % step_ms:
        unit = "days" if step_ms == DAY_MS else "hours"
        raise InvalidInput(f"period must be of whole {unit}", start=moment(from_ms), end=moment(to_ms))


def backfill(
    registry: Registry,
    pipeline: str,
    query: Query,
    *,
    from_ms: int,
    to_ms: int,
    dry_run: bool,
    timeout_s: float = 3600.0,
    tell: Progress = lambda _step, _detail: None,
    on_asked: Callable[[str], None] = lambda _id: None,
) -> Backfilled:
    """Have the driver compute a period again, from `from_ms`, included, to `to_ms`, not included; gives how it compares.

    Raises `InvalidInput` where it cannot be computed, `Unavailable` when the pipeline does not run or gives no answer.
    """
    require_whole(query, from_ms, to_ms)
    deployed_at = registry.pipeline(pipeline).deployed_at
    _require_running(registry, pipeline)
    rows = Recomputes(registry.engine)
    request = rows.ask(pipeline, query.name, from_ms=from_ms, to_ms=to_ms, dry_run=dry_run, deployed_at=deployed_at)
    on_asked(request)
    row = _wait(registry, rows, request, pipeline, timeout_s, tell)
    if row.state == FAILED:
        raise InvalidInput(
            "period could not be computed, nothing was changed",
            pipeline=pipeline,
            query=query.name,
            start=moment(from_ms),
            end=moment(to_ms),
            reason=row.error,
        )
    return Backfilled(query.name, moment(from_ms), moment(to_ms), dry_run, row.batch, dict(row.report))


def _require_running(registry: Registry, pipeline: str) -> None:
    if control.status(registry, pipeline).state not in ("starting", "recovering", "running"):
        raise Unavailable(
            "pipeline does not run, so nobody can put a period between its batches",
            pipeline=pipeline,
            hint=f"`rollforward start {pipeline}`",
        )


def _wait(
    registry: Registry, rows: Recomputes, request: str, pipeline: str, timeout_s: float, tell: Progress
) -> RecomputeRow:
    """Until the request is settled. A driver that dies meanwhile is waited for: the next one goes on with it."""
    deadline = time.monotonic() + timeout_s
    while True:
        row = rows.get(request)
        if row is None:
            raise Unavailable("request was lost with its database", request=request, hint="ask again")
        if row.state in (DONE, FAILED):
            return row
        state = control.status(registry, pipeline).state
        tell(row.query, f"{row.state}; pipeline {state}")
        if time.monotonic() > deadline:
            withdrawn = rows.withdraw(request)
            raise Unavailable(
                "no answer in time" if withdrawn else "it takes longer; the driver goes on with it",
                pipeline=pipeline,
                request=request,
                state=state,
                hint=f"look at `rollforward top {pipeline} --once`",
            )
        time.sleep(_POLL_S)


def moment(time_ms: int) -> str:
    """A time as people write it: `2026-03-01T12:00`, of UTC."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M")
