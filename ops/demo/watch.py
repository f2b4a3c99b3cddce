"""Watching a pipeline from outside: when a batch is on its way, how much memory it takes, when it has read everything."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import psutil

from ops import control
from pipelines.deploy import DeployedQuery
from pipelines.registry import DriverRow, Registry
from pipelines.settings import Settings
from statestore.batches import BatchesLog
from statestore.errors import Unavailable
from statestore.kafka.admin import Admin
from statestore.kafka.reader import Reader

T = TypeVar("T")
_POLL_S = 0.02
_SAMPLE_S = 1.0


def wait_for(what: str, look: Callable[[], T | None], *, timeout_s: float, poll_s: float = 0.2) -> T:
    """What `look` gives as soon as it is neither None nor False. Raises `Unavailable` after the time limit."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        time.sleep(poll_s)
    raise Unavailable(f"{what} did not happen in time", seconds=timeout_s)


class Watch:
    """One pipeline on this machine."""

    def __init__(self, pipeline: str, queries: list[DeployedQuery], settings: Settings, registry: Registry) -> None:
        self.pipeline = pipeline
        self.queries = queries
        self.settings = settings
        self.registry = registry
        config = settings.kafka_config()
        self._admin = Admin(config)
        self._reader = Reader(config)
        self._logs = {q.query.name: BatchesLog(self._reader, q.batches_topic, tasks=q.query.tasks) for q in queries}

    def running(self, *, newer_than: int | None = None) -> DriverRow | None:
        """The driver if it runs, and is another process than `newer_than`. Raises `Unavailable` if it has failed."""
        driver = self.registry.driver(self.pipeline)
        if driver is None or driver.pid == newer_than:
            return None
        if driver.state == "failed":
            log = control.driver_log(self.settings, self.pipeline)
            raise Unavailable("driver failed", error=driver.error, log=log)
        return driver if driver.state == "running" and control.is_alive(driver) else None

    def done(self) -> dict[str, int]:
        """The newest finished batch of each query, as the registry has it."""
        return {batch.query: batch.batch for batch in self.registry.newest_batches(self.pipeline)}

    def counted(self) -> int:
        """Records of the finished batches of the slowest query, as the registry has them."""
        records = {query.query.name: 0 for query in self.queries}
        for batch in self.registry.batches(pipeline=self.pipeline, limit=100_000):
            records[batch.query] += batch.records
        return min(records.values())

    def in_batch(self, query: str) -> int | None:
        """The batch that the query has planned and not finished, as Kafka has it."""
        log = self._logs[query].driver_log()
        planned = -1 if log.planned is None else log.planned.batch
        return planned if planned > log.done else None

    def await_batch_begin(self, query: str, *, timeout_s: float = 120.0) -> int:
        """Return right after the query has planned a batch; gives its number."""
        wait_for("end of a batch", lambda: self.in_batch(query) is None, timeout_s=timeout_s, poll_s=_POLL_S)
        begun = wait_for("a new batch", lambda: str(self.in_batch(query) or ""), timeout_s=timeout_s, poll_s=_POLL_S)
        return int(begun)

    def has_read_all(self) -> bool:
        """Whether every query has finished a batch that ends where its source topic ends, as Kafka has it."""
        for deployed in self.queries:
            log = self._logs[deployed.query.name].driver_log()
            if log.planned is None or log.done < log.planned.batch:
                return False
            partitions = len(log.planned.ranges)
            ends = self._admin.ends(deployed.query.source.topic, partitions=partitions)
            if {r.partition: r.end for r in log.planned.ranges} != ends:
                return False
        return True

    def batches(self) -> dict[str, int]:
        """How many batches each query has finished, as Kafka has it."""
        return {name: log.driver_log().done + 1 for name, log in self._logs.items()}


@dataclass(frozen=True)
class Memory:
    """Resident bytes: the driver's Python, its JVM, the store servers, and Spark's Python workers."""

    driver: int = 0
    jvm: int = 0
    servers: int = 0
    workers: int = 0

    @property
    def total(self) -> int:
        """All of it. Pages that forked workers share are counted once for each."""
        return self.driver + self.jvm + self.servers + self.workers


class MemoryWatch(threading.Thread):
    """Keeps the `peak` of a pipeline's memory, looking once a second."""

    def __init__(self, watch: Watch) -> None:
        super().__init__(name="memory", daemon=True)
        self.peak = Memory()
        self._watch = watch
        self._ended = threading.Event()

    def stop(self) -> Memory:
        """End; gives the peak."""
        self._ended.set()
        self.join()
        return self.peak

    def run(self) -> None:
        """Look until `stop`."""
        while not self._ended.wait(_SAMPLE_S):
            driver = self._watch.registry.driver(self._watch.pipeline)
            if driver is not None and control.is_alive(driver):
                self.peak = max(self.peak, memory_of(driver), key=lambda memory: memory.total)


def memory_of(driver: DriverRow) -> Memory:
    """The memory of a driver and of everything below it, now."""
    servers = {server["pid"] for server in driver.servers}
    found = {"driver": 0, "jvm": 0, "servers": 0, "workers": 0}
    try:
        root = psutil.Process(driver.pid)
        family = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return Memory()
    for process in family:
        try:
            if process.pid == driver.pid:
                kind = "driver"
            elif process.pid in servers:
                kind = "servers"
            else:
                kind = "jvm" if process.name() == "java" else "workers"
            found[kind] += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return Memory(**found)
