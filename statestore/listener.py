"""Telling somebody how restoring goes: per store, as a task opens (Kafka Streams' StateRestoreListener)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import structlog

log = structlog.get_logger()
# A restore that is over sooner is told by its start and its end.
LOG_EVERY_S = 5.0


@dataclass(frozen=True)
class Restoring:
    """One restore: `store` takes in the records of its changelog from offset `start` up to `end`, which is excluded.

    Markers and compacted records take offsets too, so there may be fewer records than offsets.
    """

    store: str
    topic: str
    partition: int
    start: int
    end: int


class RestoreListener:
    """Does nothing unless overridden. An exception that it raises suspends the restore.

    Every start is followed by one end or one suspension. A store that needs nothing has neither.
    """

    def on_restore_start(self, restoring: Restoring) -> None:
        """Restoring begins."""

    def on_batch_restored(self, restoring: Restoring, *, offset: int, records: int) -> None:
        """`records` more are in the store, which stands at `offset`."""

    def on_restore_end(self, restoring: Restoring, *, records: int) -> None:
        """The store stands at `restoring.end`; `records` in all."""

    def on_restore_suspended(self, restoring: Restoring, *, records: int) -> None:
        """Restoring was left before its end, after `records`. The next one goes on there, or begins anew."""

    def on_snapshot_downloaded(self, *, done: int, total: int) -> None:
        """`done` of `total` bytes of a snapshot are here, 0 at the beginning; the restore of what came after it follows."""


@contextmanager
def told(listener: RestoreListener, restoring: Restoring) -> Iterator[Callable[[int, int], None]]:
    """Tells of a restore's start, and of its end or suspension; gives what to call with (offset, records) of a batch."""
    records = 0

    def batch(offset: int, taken: int) -> None:
        nonlocal records
        records += taken
        listener.on_batch_restored(restoring, offset=offset, records=taken)

    listener.on_restore_start(restoring)
    try:
        yield batch
    except BaseException:
        listener.on_restore_suspended(restoring, records=records)
        raise
    listener.on_restore_end(restoring, records=records)


class RestoreLog(RestoreListener):
    """Start, end and suspension as structured logs, and what `RestoreMeter` tells of a long one."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._meters: dict[Restoring, RestoreMeter] = {}

    def on_restore_start(self, restoring: Restoring) -> None:
        self._bound(restoring).info("restore started", start=restoring.start, end=restoring.end)
        meter = self._meters[restoring] = RestoreMeter(self._clock, **_about(restoring))
        meter.on_restore_start(restoring)

    def on_batch_restored(self, restoring: Restoring, *, offset: int, records: int) -> None:
        self._meters[restoring].on_batch_restored(restoring, offset=offset, records=records)

    def on_restore_end(self, restoring: Restoring, *, records: int) -> None:
        del self._meters[restoring]
        self._bound(restoring).info("restore ended", records=records)

    def on_restore_suspended(self, restoring: Restoring, *, records: int) -> None:
        del self._meters[restoring]
        self._bound(restoring).warning("restore suspended", records=records)

    def _bound(self, restoring: Restoring) -> structlog.typing.FilteringBoundLogger:
        bound: structlog.typing.FilteringBoundLogger = log.bind(**_about(restoring))
        return bound


def _about(restoring: Restoring) -> dict[str, Any]:
    return {"store": restoring.store, "topic": restoring.topic, "partition": restoring.partition}


class RestoreProgress(RestoreListener):
    """Progress as offsets done of offsets to do, over all restores begun so far: what a progress bar takes."""

    def __init__(self, on_progress: Callable[[int, int], None]) -> None:
        self._on_progress = on_progress
        self._done: dict[Restoring, int] = {}

    def on_restore_start(self, restoring: Restoring) -> None:
        self._tell(restoring, restoring.start)

    def on_batch_restored(self, restoring: Restoring, *, offset: int, records: int) -> None:
        self._tell(restoring, offset)

    def on_restore_end(self, restoring: Restoring, *, records: int) -> None:
        self._tell(restoring, restoring.end)

    def _tell(self, restoring: Restoring, offset: int) -> None:
        self._done[restoring] = offset - restoring.start
        self._on_progress(sum(self._done.values()), sum(one.end - one.start for one in self._done))


class RestoreMeter(RestoreListener):
    """How far one task's restore is, how fast, and how long it will take. Any thread may ask.

    Of one that takes longer the log has a line every few seconds, with `about` in it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, **about: Any) -> None:
        self._clock = clock
        self._log = log.bind(**about)
        self._begun_at = 0.0
        self._logged_at = 0.0
        self._now: dict[str, Any] | None = None

    def on_restore_start(self, restoring: Restoring) -> None:
        self._begin("records")
        self._tell(0, restoring.end - restoring.start, 0)

    def on_batch_restored(self, restoring: Restoring, *, offset: int, records: int) -> None:
        known = 0 if self._now is None else int(self._now["amount"])
        self._tell(offset - restoring.start, restoring.end - restoring.start, known + records)

    def on_restore_end(self, restoring: Restoring, *, records: int) -> None:
        self._now = None

    def on_restore_suspended(self, restoring: Restoring, *, records: int) -> None:
        self._now = None

    def on_snapshot_downloaded(self, *, done: int, total: int) -> None:
        if self._now is None or done == 0:
            self._begin("bytes")
        self._tell(done, total, done)
        if done >= total:
            self._now = None

    def figures(self) -> dict[str, Any] | None:
        """What is restored: `unit`, `amount` of it, `percent`, `per_second`, `left_s`; None if nothing is."""
        return self._now

    def _begin(self, unit: str) -> None:
        self._begun_at = self._logged_at = self._clock()
        self._now = {"unit": unit}

    def _tell(self, done: int, total: int, amount: int) -> None:
        now = self._clock()
        spent = now - self._begun_at
        known = bool(done and spent)
        self._now = {
            **(self._now or {}),
            "amount": amount,
            "percent": round(100 * done / total) if total else 100,
            "per_second": round(amount / spent) if known else None,
            "left_s": round(spent * (total - done) / done, 1) if known else None,
        }
        if now - self._logged_at >= LOG_EVERY_S:
            self._logged_at = now
            self._log.info("restore goes on", **self._now)
