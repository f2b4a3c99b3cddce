"""Telling somebody how restoring goes: per store, as a task opens (Kafka Streams' StateRestoreListener)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import structlog

log = structlog.get_logger()


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


class RestoreLog(RestoreListener):
    """Start, end and suspension as structured logs."""

    def on_restore_start(self, restoring: Restoring) -> None:
        self._bound(restoring).info("restore started", start=restoring.start, end=restoring.end)

    def on_restore_end(self, restoring: Restoring, *, records: int) -> None:
        self._bound(restoring).info("restore ended", records=records)

    def on_restore_suspended(self, restoring: Restoring, *, records: int) -> None:
        self._bound(restoring).warning("restore suspended", records=records)

    def _bound(self, restoring: Restoring) -> structlog.typing.FilteringBoundLogger:
        bound: structlog.typing.FilteringBoundLogger = log.bind(
            store=restoring.store, topic=restoring.topic, partition=restoring.partition
        )
        return bound


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
