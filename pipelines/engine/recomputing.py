"""Takes requests to compute a period again into the stream of one query: each is a planned batch between two others.

    1 offsets   where the period's records begin, by Kafka's time index or else from the start; up to where the batch
                before has ended. Records that may be gone refuse the request, unless the archive has them; those of a
                time that the topic's retention keeps are not gone
    2 batch     planned with the period and the offsets, then staged, committed and finished as every batch is. A dry run
                is computed and compared, and plans nothing
    3 settled   the request's row gets the comparison

Killed before the plan nothing has happened, and the next driver takes the request again, but no third one: it may be what
the drivers ended of, and the stream would never go on. A driver that stops in order puts it back and does not count. Killed
after it the next driver finishes the batch over the same offsets, and so does one more, which are counted likewise. A period
that cannot be computed, or that these have ended of, must not stop the stream: as long as no task has committed the batch, it
is planned anew under its number without the period.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import structlog
from sqlalchemy.exc import SQLAlchemyError

from pipelines.archive import holds
from pipelines.engine.recompute import Compared, Period
from pipelines.engine.source import SourceTopic
from pipelines.periods import require_time_group
from pipelines.plan import Query
from pipelines.recomputes import RecomputeRow, Recomputes
from statestore.batches import Recompute
from statestore.clock import now_ms
from statestore.errors import InvalidInput

log = structlog.get_logger()
TAKINGS_MAX = 2


@dataclass(frozen=True)
class Requests:
    """One query's requests. The database informs and decides nothing: without it there are none for now.

    `is_waiting` says whether one has been seen, so that no batch asks a database for nothing. What was asked before
    `since`, when the pipeline was deployed, in seconds since 1970, was asked of an earlier one of its name.
    """

    rows: Recomputes
    pipeline: str
    query: str
    is_waiting: Callable[[], bool]
    since: float = 0.0

    def next(self) -> RecomputeRow | None:
        """The next request, taken; None if there is none."""
        return self._asked(self._take) if self.is_waiting() else None

    def _take(self) -> RecomputeRow | None:
        row = self.rows.next(self.pipeline, self.query)
        if row is not None and row.asked_at < self.since:
            log.warning("period is refused", pipeline=self.pipeline, query=self.query, request=row.id)
            self.rows.failed(row.id, "it was asked of an earlier pipeline of this name; ask again")
            return None
        if row is not None and row.taken >= TAKINGS_MAX:
            log.error("period is given up", pipeline=self.pipeline, query=self.query, request=row.id, taken=row.taken)
            self.rows.failed(row.id, given_up_of(row.taken))
            return None
        return row if row is not None and self.rows.take(row) else None

    def put_back(self, taken: RecomputeRow) -> None:
        """The driver stops in order: the next one takes it again, and this one does not count."""

        def put_back() -> None:
            self.rows.put_back(taken)

        self._asked(put_back)

    def done(self, request: str, batch: int | None, compared: Compared) -> None:
        """Tell that it is computed."""
        self._asked(lambda: self.rows.done(request, batch=batch, report=compared.to_json()))

    def failed(self, request: str, error: str) -> None:
        """Tell that it is not."""
        self._asked(lambda: self.rows.failed(request, error))

    def _asked(self, question: Callable[[], RecomputeRow | None]) -> RecomputeRow | None:
        try:
            return question()
        except SQLAlchemyError as error:
            log.warning("requests cannot be reached", pipeline=self.pipeline, error=str(error).splitlines()[0])
            return None


def given_up_of(drivers: int) -> str:
    """Why a period is given up that so many drivers have ended of."""
    return f"{drivers} drivers have begun with it and ended before it was computed; try a shorter period"


def period_of(planned: Recompute | RecomputeRow, *, dry_run: bool = False) -> Period:
    """What is computed."""
    return Period(planned.from_ms, planned.to_ms, dry_run)


def planned_recompute(query: Query, row: RecomputeRow, source: SourceTopic, ends: dict[int, int]) -> Recompute:
    """1. Raises `InvalidInput` where the query has no periods, or where records of this one are gone."""
    group = require_time_group(query)
    if source.is_compacted():
        raise InvalidInput(
            "source topic is compacted: records that were counted are gone", query=query.name, topic=query.source.topic
        )
    from_ms = max(0, row.from_ms - group.slack_ms)
    # Before the beginnings are asked: these tell of what retention takes in between.
    found = source.at_time(from_ms) if group.of_record else {}
    begins = source.begins()
    starts = begins | found
    gone = {partition: begin for partition, begin in begins.items() if begin > 0 and ends.get(partition, 0) > 0}
    kept_from_ms = source.kept_from(now_ms()) if gone and group.of_record else None
    if gone and (kept_from_ms is None or from_ms < kept_from_ms):
        _require_archived(query, source, gone, None if kept_from_ms is None else kept_from_ms + group.slack_ms)
        starts |= dict.fromkeys(gone, 0)
    ranges = tuple(source.range(p, min(starts.get(p, 0), end), end) for p, end in sorted(ends.items()))
    return Recompute(row.id, row.from_ms, row.to_ms, ranges)


def _require_archived(query: Query, source: SourceTopic, gone: dict[int, int], kept_from_ms: int | None) -> None:
    """Raise `InvalidInput` unless the archive has all records before the first ones, `gone`, that partitions have now.

    The head of a log says nothing of what was before it: a record that was late may stand there behind newer ones that are
    deleted. `kept_from_ms` is from when on periods need no archive; None where that is not known.
    """
    archived = source.archived()
    for partition, begin in gone.items():
        if not holds(archived, partition, 0, begin):
            first, end = archived.get(partition, (0, 0))
            raise InvalidInput(
                "source records of the period may have been deleted",
                topic=query.source.topic,
                partition=partition,
                first=begin,
                archived=f"{first}-{end}",
                hint=_hint(kept_from_ms),
            )


def _hint(kept_from_ms: int | None) -> str:
    archive = "archive a topic before its retention ends: `rollforward archive`"
    if kept_from_ms is None:
        return archive
    kept_from = datetime.fromtimestamp(kept_from_ms / 1000, UTC).isoformat(timespec="minutes")
    return f"the topic's retention leaves periods from {kept_from} on whole; for older ones {archive}"
