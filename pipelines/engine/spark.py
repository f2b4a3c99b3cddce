"""The Spark session of a driver. Spark is stateless here: it computes, the store servers keep and commit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

from pipelines.engine.early import beside, early
from pipelines.engine.jvm import spark_conf
from pipelines.settings import Settings
from statestore.errors import Unavailable

# How long it may take: beside others, or on a cluster that is busy.
_START_S = 180.0


class SparkNotStarted(Unavailable):
    """There is no Spark in this process and there will be none: what waits for it is the next driver's."""


class SparkStart:
    """Spark of one driver, started once, beside everything else, when it is first asked for. `start` gives its session."""

    def __init__(self, start: Callable[[], SparkSession]) -> None:
        self._start = start
        self._session: Future[SparkSession] = Future()
        self._asking = threading.Lock()
        self._until: float | None = None
        self._told = False

    def ask(self) -> None:
        """Begin the start, if that has not been done; returns at once."""
        with self._asking:
            if self._until is not None:
                return
            self._until = time.monotonic() + _START_S
        beside("spark-start", self._start, self._session)

    def session(self) -> SparkSession:
        """Asks for it, and waits until it is up. Raises `SparkNotStarted` if its start fails or takes too long."""
        self.ask()
        assert self._until is not None
        wait([self._session], max(0.0, self._until - time.monotonic()))
        if not self._session.done():
            self.give_up()
        error = self._session.exception()
        if error is not None:
            raise SparkNotStarted("spark has not started", error=error) from error
        return self._session.result()

    def give_up(self) -> None:
        """Let nobody wait for it any longer. One that is up stays; one that was not asked for will not start."""
        with self._asking:
            if self._until is None:
                self._until = time.monotonic()
        late = SparkNotStarted("it takes too long, or the driver ends", hint="see the driver's log")
        with suppress(InvalidStateError):
            self._session.set_exception(late)

    @property
    def is_awaited(self) -> bool:
        """Whether it has been asked for, and `news` has not told what came of it."""
        return self._until is not None and not self._told

    def news(self) -> SparkSession | None:
        """The session when it has come up, once. Raises, once, what the start has failed of, or that it takes too long."""
        if self._until is None or self._told:
            return None
        if time.monotonic() > self._until:
            self.give_up()
        if not self._session.done():
            return None
        self._told = True
        return self._session.result()


def start_session(
    settings: Settings, app: str, work: Path, *, on_jvm: Callable[[Any], None] = lambda _gateway: None
) -> SparkSession:
    """A session in this process. `work` takes Spark's own files; they can be deleted between runs.

    `on_jvm` is given the gateway to the JVM once that answers, before a session is made of it.
    """
    conf = spark_conf(settings, work).setAppName(app)
    SparkContext._ensure_initialized(conf=conf)
    on_jvm(SparkContext._gateway)
    return SparkSession.builder.config(conf=conf).getOrCreate()


def start_workers(session: SparkSession) -> threading.Thread:
    """Start Spark's Python daemon and a worker beside the caller: importing takes seconds, and so does planning a batch.

    Gives the thread.
    """

    def start() -> None:
        context = session.sparkContext
        context.setJobDescription("starts the Python workers")
        context.parallelize([0], 1).foreachPartition(_do_nothing)

    return early("workers", start)


def _do_nothing(rows: Iterable[int]) -> None:
    """What the first task of a Python worker is."""
