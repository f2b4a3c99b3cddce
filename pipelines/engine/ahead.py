"""The next batch's job, begun while the batch before it commits.

    batch b      stage ──────► commit, apply, "done b"
    batch b+1                ┊ read, decode, combine ─► READ waits for b's commit ─► WRITE ┊ "planned b+1", commit …

What is begun so is not planned yet, and nothing of it counts: staged rows are in a server's memory until their batch
commits, which is after its plan is written. A driver that dies leaves none of it behind, and the next one may cut the
batch differently. The servers let no row of it be merged with a version that misses the batch before.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from dataclasses import dataclass

import structlog

from pipelines.engine.job import StagedBatch
from statestore.batches import Planned

log = structlog.get_logger()
# How long a cancelled job may take to end before it is cancelled once more: it may not have begun the first time.
_CANCEL_S = 0.5


@dataclass(frozen=True)
class _Begun:
    planned: Planned
    staged: Future[StagedBatch]


class Ahead:
    """At most one job of one query. `cancel` makes Spark give up the query's jobs."""

    def __init__(self, query: str, cancel: Callable[[], None]) -> None:
        self._query = query
        self._cancel = cancel
        self._begun: _Begun | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"ahead-{query}")

    @property
    def planned(self) -> Planned | None:
        """The batch whose job is begun; its plan is to be written before it may commit."""
        return None if self._begun is None else self._begun.planned

    def begin(self, planned: Planned, stage: Callable[[], StagedBatch]) -> None:
        """Stage a batch in a thread of its own."""
        assert self._begun is None
        self._begun = _Begun(planned, self._thread.submit(copy_context().run, stage))

    def take(self, planned: Planned) -> StagedBatch | None:
        """What its job has staged, awaited; None where no job of this batch was begun. Raises what the job raises."""
        if self._begun is None or self._begun.planned != planned:
            return None
        staged, self._begun = self._begun.staged, None
        return staged.result()

    def drop(self) -> None:
        """Give the job up, and return when it is over."""
        begun, self._begun = self._begun, None
        if begun is None:
            return
        while not begun.staged.done():
            self._cancel()
            wait([begun.staged], timeout=_CANCEL_S)
        log.info("job of the next batch is given up", query=self._query, batch=begun.planned.batch)

    def close(self) -> None:
        """Begin nothing more."""
        self._thread.shutdown(wait=False)
