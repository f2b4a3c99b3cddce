"""What is told to the registry, in a thread of its own: a stream does not wait for a database that only informs."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

import structlog

log = structlog.get_logger()
_MOST = 1_000


class Reports:
    """Reports in their order. Of a database that is slow or away so many are kept; what comes behind them is dropped."""

    def __init__(self, pipeline: str, most: int = _MOST) -> None:
        self._pipeline = pipeline
        self._waiting: queue.Queue[Callable[[], object] | None] = queue.Queue(most)
        self._dropped = 0
        self._thread = threading.Thread(target=self._run, daemon=True, name="reports")
        self._thread.start()

    def put(self, report: Callable[[], object]) -> None:
        """Make it later."""
        try:
            self._waiting.put_nowait(report)
        except queue.Full:
            self._dropped += 1
            log.warning("report is dropped: the registry is slow", pipeline=self._pipeline, dropped=self._dropped)

    def close(self, patience_s: float) -> None:
        """Return when all have been made, or after that time."""
        try:
            self._waiting.put(None, timeout=patience_s)
        except queue.Full:
            return
        self._thread.join(patience_s)

    def _run(self) -> None:
        while (report := self._waiting.get()) is not None:
            try:
                report()
            except Exception as error:
                # The next one may be made all the same.
                log.warning("report was not made", pipeline=self._pipeline, error=str(error)[:300])
