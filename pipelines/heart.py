"""What others see of a driver: its row in the registry, kept fresh, and the reports of what it has done.

The registry informs and decides nothing, so that the stream goes on without it: nobody waits for it but this heart.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from typing import Any

import structlog
from sqlalchemy.exc import SQLAlchemyError

from pipelines.processes import started_of
from pipelines.recomputes import Recomputes
from pipelines.registry import Registry
from pipelines.reports import Reports

log = structlog.get_logger()
_EVERY_S = 2.0
# How long reports may take, at the end, that the registry has not got yet, and the last beat behind them.
_REPORTS_S = 5.0


class Heart:
    """Beats every two seconds. `look` gives the driver's state and servers; `on_beat` is called with each beat.

    `deployed_at` is when the pipeline that it drives was deployed, in seconds since 1970.
    """

    def __init__(
        self,
        pipeline: str,
        registry: Registry,
        look: Callable[[], tuple[str, list[dict[str, Any]]]],
        on_beat: Callable[[], None],
        *,
        deployed_at: float = 0.0,
    ) -> None:
        self._pipeline = pipeline
        self._registry = registry
        self._look = look
        self._on_beat = on_beat
        self._deployed_at = deployed_at
        self._metrics_port: int | None = None
        # As its row names this process.
        self._process: dict[str, Any] = {
            "pid": os.getpid(),
            "process_started": started_of(os.getpid()),
            "host": socket.gethostname(),
        }
        self._recomputes = Recomputes(registry.engine)
        # Queries with a period to be computed again, as the last beat has seen them.
        self._requested: frozenset[str] = frozenset()
        self._reports = Reports(pipeline)
        self._telling = threading.Lock()
        self._now = threading.Event()
        self._ended = threading.Event()

    def start(self, *, metrics_port: int | None) -> None:
        """Begin the driver's row, and beat from now on. Raises what the registry raises."""
        self._metrics_port = metrics_port
        self._begin_row()
        self._tell(self._look_for_requests)
        threading.Thread(target=self._beat, daemon=True, name="heartbeat").start()

    def beat_now(self) -> None:
        """Do not wait for the next beat: the state has changed."""
        self._now.set()

    def report(self, report: Callable[[Registry], object]) -> None:
        """Write to the registry, soon and in order."""
        self._reports.put(lambda: report(self._registry))

    def show_spark(self, url: str | None) -> None:
        """Report where Spark's own page is."""
        self.report(lambda registry: registry.spark_page(self._pipeline, **self._process, url=url))

    def is_requested(self, query: str) -> bool:
        """Whether a period of the query waits to be computed again."""
        return query in self._requested

    def end(self, state: str, error: str) -> None:
        """The last beat, behind all reports. A registry that does not answer is told nothing, and does not keep the driver."""
        self._reports.close(_REPORTS_S)
        last = threading.Thread(target=self._last, args=(state, error), daemon=True, name="last-heartbeat")
        last.start()
        last.join(_REPORTS_S)
        if last.is_alive():
            log.warning("registry does not answer: the driver ends all the same", pipeline=self._pipeline, state=state)

    def _last(self, state: str, error: str) -> None:
        # Nothing may be told behind this.
        with self._telling:
            self._ended.set()
            self._tell(lambda: self._write(state, [], error))
        self._now.set()

    def _beat(self) -> None:
        while True:
            self._now.wait(_EVERY_S)
            self._now.clear()
            if self._ended.is_set():
                return
            for step in (self._show, self._look_for_requests, self._on_beat):
                try:
                    self._tell(step)
                except Exception as error:
                    # Nobody else would beat from then on.
                    log.warning("heartbeat failed", pipeline=self._pipeline, error=str(error)[:300])

    def _show(self) -> None:
        state, servers = self._look()
        with self._telling:
            if self._ended.is_set() or self._write(state, servers):
                return
            if self._registry.driver(self._pipeline) is None:
                # A database that was lost has come back empty: whoever finds no driver there starts another.
                self._begin_row()
                self._write(state, servers)

    def _begin_row(self) -> None:
        self._registry.driver_started(
            self._pipeline, **self._process, metrics_port=self._metrics_port, deployed_at=self._deployed_at
        )

    def _write(self, state: str, servers: list[dict[str, Any]], error: str = "") -> bool:
        return self._registry.driver_seen(self._pipeline, **self._process, state=state, error=error, servers=servers)

    def _look_for_requests(self) -> None:
        try:
            self._requested = self._recomputes.waiting(self._pipeline)
        except SQLAlchemyError:
            # The stream asks for those that it is told of, and would wait for a registry that is away, at every turn.
            self._requested = frozenset()
            raise

    def _tell(self, step: Callable[[], object]) -> None:
        try:
            step()
        except SQLAlchemyError as error:
            log.warning("registry cannot be reached", pipeline=self._pipeline, error=str(error).splitlines()[0])
