"""One driver's figures: events are counted as they happen, the rest is gathered by a thread every few seconds.

They inform and decide nothing. Nothing here may hold up or end the stream: what cannot be gathered is missing, and the
time of the last gathering tells that the rest is old.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import psutil
import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

from pipelines.engine.query_driver import BatchDone, QueryDriver
from pipelines.engine.servers import StoreServers
from pipelines.metrics import catalogue as names
from pipelines.metrics.catalogue import METRICS, Metric
from pipelines.metrics.endpoint import Endpoint
from pipelines.metrics.snapshot_loss import SnapshotLoss
from pipelines.settings import Settings
from statestore.errors import RollforwardError

log = structlog.get_logger()
GATHER_EVERY_S = 10.0
STATES = ("starting", "recovering", "running", "stopping", "stopped", "failed", "fenced")


class DriverMetrics:
    """Figures of the pipeline `name`. `drivers` and `state` are asked anew at every gathering."""

    def __init__(
        self,
        name: str,
        settings: Settings,
        servers: StoreServers,
        drivers: Sequence[QueryDriver],
        state: Callable[[], str],
    ) -> None:
        self._name = name
        self._servers = servers
        self._drivers = drivers
        self._state = state
        self._states_folder = settings.states
        # A second figure for each counter, which says when it began, serves nobody here.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._metrics = {metric.name: _made(metric, self.registry) for metric in METRICS}
        self._told: dict[Metric, set[tuple[str, ...]]] = {}
        self._losses: defaultdict[str, SnapshotLoss] = defaultdict(SnapshotLoss)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._gather_often, daemon=True, name="metrics")
        self._endpoint = Endpoint(name, settings, self.registry) if settings.metrics else None
        self._set(names.DRIVER_STARTED, time.time())

    def start(self) -> int | None:
        """Serve and gather from here on; gives the port, None when metrics are turned off or no port can be had."""
        if self._endpoint is None:
            return None
        port = self._endpoint.open()
        self._thread.start()
        return port

    def close(self, *, planned: bool) -> None:
        """Serve no more. After a planned stop nobody is to miss the endpoint."""
        self._ended.set()
        if self._endpoint is not None:
            self._endpoint.close(forget=planned)

    # Events.

    def batch_done(self, done: BatchDone) -> None:
        """A batch was finished."""
        query = done.query
        self._counter(names.RECORDS, query).inc(done.records)
        self._counter(names.DEAD_LETTERS, query).inc(done.dead_letters)
        self._counter(names.LATE_RECORDS, query).inc(done.late_records)
        self._counter(names.CHANGED, query).inc(done.changed_keys)
        self._counter(names.BATCHES, query).inc()
        self._histogram(names.BATCH_SECONDS, query).observe(done.seconds)
        self._histogram(names.COMMIT_SECONDS, query).observe(done.commit_seconds)
        self._set(names.LAST_COMMIT, time.time(), query)
        self._set(names.BATCH, done.batch, query)
        now_ms = int(time.time() * 1000)
        self._losses[query].batch(done.records, began_ms=now_ms - int(done.seconds * 1000), ended_ms=now_ms)

    def task_opened(self, opened: dict[str, Any]) -> None:
        """A task was opened. `opened` is the recovery plan with what it took."""
        query, way = str(opened["task"]).rpartition("-")[0], str(opened["way"])
        self._counter(names.RECOVERIES, query, way).inc()
        self._histogram(names.RECOVERY_SECONDS, query, way).observe(float(opened["seconds"]))
        self._counter(names.RECOVERY_RECORDS, query).inc(int(opened["records"]))

    # What is gathered.

    def _gather_often(self) -> None:
        while True:
            try:
                self.gather()
            except Exception as error:
                # The thread must outlive whatever one gathering meets.
                log.warning("figures could not be gathered", pipeline=self._name, error=str(error)[:300])
            if self._ended.wait(GATHER_EVERY_S):
                return

    def gather(self) -> None:
        """Bring together what is not told by itself."""
        state = self._state()
        for known in STATES:
            self._set(names.DRIVER_STATE, float(known == state), known)
        self._set(names.DRIVER_MEMORY, _memory())
        self._states_folder.mkdir(parents=True, exist_ok=True)
        disk = shutil.disk_usage(self._states_folder)
        self._set(names.DISK_FREE, disk.free)
        self._set(names.DISK_SIZE, disk.total)
        for driver in list(self._drivers):
            self._query(driver)
        self._servers_and_tasks()
        self._set(names.GATHERED, time.time())

    def _query(self, driver: QueryDriver) -> None:
        query = driver.query.name
        self._set(names.EPOCH, driver.epoch, query)
        self._set(names.RECOMPUTE_RUNNING, float(driver.is_recomputing), query)
        # A query that never got to a batch must show from when on it had the chance.
        self._gauge(names.LAST_COMMIT, query)
        try:
            lags = driver.lags()
        except RollforwardError as error:
            log.warning("lag is not known", pipeline=self._name, query=query, error=str(error))
            return
        for partition, lag in lags.items():
            self._set(names.LAG, lag, query, str(partition))

    def _servers_and_tasks(self) -> None:
        seen = self._servers.observe()
        tasks = [task for server in seen for task in server.tasks]
        restored = {_of_task(name): share for server in seen for name, share in server.restored.items()}
        self._replace(names.SERVER_UP, {(str(server.number),): float(server.answers) for server in seen})
        self._replace(names.TASK_RUNNING, {_of_task(t["task"]): float(t["state"] == "running") for t in tasks})
        self._replace(names.RECOVERY_DONE, restored)
        for task in tasks:
            self._task(task)
        for query, loss in list(self._losses.items()):
            ratio = loss.ratio()
            if ratio is not None:
                self._set(names.SNAPSHOT_LOSS, round(ratio, 4), query)

    def _task(self, task: dict[str, Any]) -> None:
        labels = _of_task(task["task"])
        self._set(names.TASK_BATCH, task["batch"], *labels)
        snapshot = task.get("snapshot") or {}
        fields = {
            names.STORE_KEYS: task.get("keys"),
            names.STORE_BYTES: task.get("bytes"),
            names.SNAPSHOT_AGE: snapshot.get("age_s"),
            names.SNAPSHOT_SECONDS: snapshot.get("seconds"),
            names.SNAPSHOT_BYTES: snapshot.get("referenced_bytes"),
            names.SNAPSHOT_UPLOADED: snapshot.get("uploaded_bytes"),
            names.SNAPSHOT_COPY: snapshot.get("copy_seconds"),
        }
        for part, size in task.get("memory", {}).items():
            self._set(names.STORE_MEMORY, float(size), *labels, part)
        if "ended_at_ms" in snapshot:
            self._losses[labels[0]].snapshot(began_ms=snapshot["began_at_ms"], ended_ms=snapshot["ended_at_ms"])
        for metric, value in fields.items():
            if value is not None:
                self._set(metric, float(value), *labels)

    # The client's objects.

    def _set(self, metric: Metric, value: float, *labels: str) -> None:
        self._gauge(metric, *labels).set(value)

    def _replace(self, metric: Metric, values: dict[tuple[str, ...], float]) -> None:
        """All that it says of servers or tasks, at no moment less: those that are gone are forgotten last."""
        for labels, value in values.items():
            self._set(metric, value, *labels)
        for labels in self._told.get(metric, set()) - values.keys():
            self._metrics[metric.name].remove(self._name, *labels)
        self._told[metric] = set(values)

    def _gauge(self, metric: Metric, *labels: str) -> Gauge:
        found: Gauge = self._metrics[metric.name].labels(self._name, *labels)
        return found

    def _counter(self, metric: Metric, *labels: str) -> Counter:
        found: Counter = self._metrics[metric.name].labels(self._name, *labels)
        return found

    def _histogram(self, metric: Metric, *labels: str) -> Histogram:
        found: Histogram = self._metrics[metric.name].labels(self._name, *labels)
        return found


def _made(metric: Metric, registry: CollectorRegistry) -> Any:
    labels = ("pipeline", *metric.labels)
    match metric.kind:
        case "gauge":
            return Gauge(metric.name, metric.text, labels, registry=registry)
        case "counter":
            return Counter(metric.name, metric.text, labels, registry=registry)
        case "histogram":
            return Histogram(metric.name, metric.text, labels, buckets=metric.buckets, registry=registry)


def _of_task(name: str) -> tuple[str, ...]:
    """The labels of a task: its query and its name."""
    return name.rpartition("-")[0], name


def _memory() -> int:
    total = 0
    own = psutil.Process(os.getpid())
    for process in [own, *own.children(recursive=True)]:
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total
