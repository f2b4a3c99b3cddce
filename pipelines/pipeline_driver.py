"""The streaming driver: what runs a pipeline, in a process of its own (`driver.py`) or in the foreground by `run`.

It owns every query, ends with `EXIT_FENCED` when a newer driver exists, keeps a heartbeat in the registry, and stops
between batches on SIGTERM or SIGINT or when the pipeline is no longer desired to run. A second signal gives the open
batches up, a third waits for nothing: how long a stop may take is known to whoever asks for it (`ops/control.py`). Its
store servers, its JVM and Spark's Python workers end with it, also when it is killed.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from typing import Any

import psutil
import structlog
from pyspark.sql import SparkSession

from pipelines import names
from pipelines.deploy import deployed_queries, require_unchanged
from pipelines.engine import jvm, loops
from pipelines.engine.early import beside, early
from pipelines.engine.query_driver import BatchDone, QueryDriver
from pipelines.engine.recomputing import Requests
from pipelines.engine.servers import StoreServers
from pipelines.engine.spark import SparkStart, start_session, start_workers
from pipelines.engine.watch import Watch
from pipelines.heart import Heart
from pipelines.home import in_home
from pipelines.metastore.embedded import for_a_look, refresh
from pipelines.metastore.service import Metastore
from pipelines.metrics.driver import DriverMetrics
from pipelines.processes import remove_left
from pipelines.recomputes import Recomputes
from pipelines.registry import STOPPED, BatchRow, PipelineDefinition, Registry
from pipelines.settings import AT_ONCE, Settings
from pipelines.stopsignals import StopSignals
from pipelines.traces import traces_of
from statestore.errors import Fenced, RollforwardError, Unavailable, text_of
from statestore.failpoints import reach
from statestore.kafka.admin import Admin

log = structlog.get_logger()
# How long the other queries' batches may take when an error ends the driver: nobody waits for it who could say.
_PATIENCE_S = 60.0
# How often it is looked whether what is waited for has ended.
_LOOK_S = 0.02
# How often the metastore's log is read. Whoever writes to it brings its own database up to it, which mostly is this one.
_LOG_S = 10.0
# How often a batch that is given up is cancelled.
_ABORT_S = 0.5
# How often what is starting is looked at, what runs until the end of its input, and what runs for ever, which should cost
# nothing while there is nothing to do: a query that meets a dead server replaces it itself.
_STARTING_S, _UNTIL_END_S, _RUNNING_S = 0.02, 0.1, 0.5
# How long store servers may take to end, by how much the stop is in a hurry.
_SERVERS_S = {0: 10.0, 1: 10.0, 2: 1.0, 3: 0.1}


@dataclass
class Totals:
    """What a run did."""

    records: int = 0
    dead_letters: int = 0
    late_records: int = 0
    batches: int = 0


class PipelineDriver:
    """Runs all queries of one pipeline in this process."""

    def __init__(
        self, pipeline: PipelineDefinition, settings: Settings, registry: Registry, *, until_end: bool
    ) -> None:
        self.name = pipeline.name
        self.totals = Totals()
        self._row = pipeline
        self._settings = settings
        self._registry = registry
        self._until_end = until_end
        self._state = "starting"
        self._stop = threading.Event()
        # Whoever asks for the stop says how long it may take, by asking again.
        self._asked = 0
        self._aborted = threading.Event()
        self._hurried = threading.Event()
        self._quiet = threading.Event()
        # What starts beside the rest: Spark, and each query's first steps.
        self._spark = SparkStart(self._start_spark)
        self._begun: list[Future[None]] = []
        self.signals = StopSignals(self.request_stop)
        self._heart = Heart(pipeline.name, registry, self._look, self._stop_if_wanted, deployed_at=pipeline.deployed_at)
        self._drivers: list[QueryDriver] = []
        self._work = names.spark_folder(settings.home, pipeline.name)
        self._servers = StoreServers(
            pipeline.name,
            settings.store_servers,
            settings.states,
            settings.kafka_config(),
            transactions=settings.transactions,
            log_file=in_home(settings.home, "logs") / f"{pipeline.name}-servers.log",
            snapshots=settings.snapshot_config(),
            answer_timeout_s=settings.answer_timeout_s,
            addresses=tuple(settings.store_server_addresses),
        )
        self._servers.on_lost = self._cancel_jobs_at
        self._watcher = Watch(self._servers, answer_timeout_s=settings.answer_timeout_s)
        self._servers.on_opened = self._opened
        self._traces = traces_of(settings, self.name)
        self._metrics = DriverMetrics(self.name, settings, self._servers, self._drivers, self._seen_state)
        self._metastore = Metastore(for_a_look(settings), registry.engine)
        self._log_from = 0.0

    def request_stop(self) -> None:
        """Stop when the open batches are done. Asked a second time: give them up; a third time: wait for nothing more."""
        self._asked += 1
        self._stop.set()
        # Whoever starts the pipeline has to see at once that this driver is about to end.
        self._heart.beat_now()
        if self._asked == 2:
            self._aborted.set()
            # In a thread of its own, since a third request has to be heard meanwhile.
            threading.Thread(target=self._abort, daemon=True).start()
        elif self._asked > 2:
            self._hurried.set()

    def _abort(self) -> None:
        """Give up what is open, again and again until it has ended, in a thread for each query: the JVM may hang."""
        for driver in self._drivers:
            driver.abort()
        # Who wakes of this knows why.
        self._spark.give_up()
        while not self._quiet.is_set():
            cancelling = [
                threading.Thread(target=self._attempt, args=(driver.cancel_job,), daemon=True)
                for driver in self._drivers
            ]
            for thread in cancelling:
                thread.start()
            for thread in cancelling:
                thread.join()
            self._quiet.wait(_ABORT_S)

    def run(self) -> None:
        """Run until stopped, or until the end of the input. Raises what ended it; `Unavailable` where a stop came before that end."""
        self._heart.start(metrics_port=self._metrics.start())
        reached, failed = False, None
        try:
            self._start()
            reached = self._watch()
        except BaseException as error:
            failed = error
        failed = self._end(failed)
        if failed is not None:
            raise failed
        if self._until_end and not reached:
            # Whoever waits for the end must not take figures of a part for it.
            hint = "what is done is kept: run it again, and it goes on from there"
            raise Unavailable("driver was stopped before the end of its input", pipeline=self.name, hint=hint)

    def _start(self) -> None:
        settings = self._settings
        self._servers.launch()
        early("loops over records", loops.ready)
        deployed = deployed_queries(self._row)
        admin = Admin(settings.kafka_config())
        admin.check()
        for query in deployed:
            require_unchanged(query, admin)
        self._servers.sweep()
        remove_left(self._work.parent, f"{self.name}-")
        self._watcher.start()
        # Spark takes longest to start, and owning, recovering and small batches do not need it.
        if settings.spark_start == AT_ONCE:
            self._spark.ask()
        for query in deployed:
            is_waiting = partial(self._heart.is_requested, query.query.name)
            rows, since = Recomputes(self._registry.engine), self._row.deployed_at
            requests = Requests(rows, self.name, query.query.name, is_waiting, since)
            driver = QueryDriver(query, settings, self._servers, self._spark, self._done, requests, self._traces)
            reach("driver.before-own")
            if self._drivers:
                # Who has slept since must not take this one from a newer driver: each would have fenced the other.
                self._drivers[0].require_newest()
            self._drivers.append(driver)
            if driver.needs_spark:
                self._spark.ask()
            driver.own()
            self._servers.assign(query.task_specs(settings.states), driver.epoch)
        self._state = "recovering"
        self._heart.beat_now()
        if not self._are_open():
            return
        for driver in self._drivers:
            self._begun.append(beside(f"start of {driver.query.name}", partial(self._begin, driver)))
        log.info("the tasks are open", pipeline=self.name)

    def _are_open(self) -> bool:
        """Open every task; False where a stop came meanwhile: a store may take minutes, and the next start begins again."""
        opening = beside("opening of the tasks", partial(self._servers.ensure, "start"))
        while not wait([opening], timeout=_STARTING_S).done:
            if self._stop.is_set():
                return False
        opening.result()
        return True

    def _look_at_start(self) -> None:
        """Take up what has started by now; the driver runs when all has. Raises what it failed of."""
        over = [each for each in self._begun if each.done()]
        for each in over:
            each.result()
        if len(over) == len(self._begun) and not self._spark.is_awaited:
            self._state = "running"
            self._heart.beat_now()

    def _spark_is_up(self, session: SparkSession) -> None:
        self._heart.show_spark(session.sparkContext.uiWebUrl)
        # Spark's context may have put a handler of its own in the place of ours, which only the main thread can undo.
        self.signals.listen()
        # Again: the JVM of a driver that was killed may have written until now.
        remove_left(self._work.parent, f"{self.name}-")
        log.info("spark is up", pipeline=self.name)
        for driver in self._drivers:
            early(f"warm-up of {driver.query.name}", driver.warm_up)

    def _start_spark(self) -> SparkSession:
        jvm.launch(self._settings, self._work).result()
        # The JVM is looked after from its first answer: it may hang in what makes a session of it.
        app, look_after = f"rollforward-{self.name}", self._watcher.also_jvm
        session = start_session(self._settings, app, self._work, on_jvm=look_after)
        start_workers(session)
        return session

    def _begin(self, driver: QueryDriver) -> None:
        """Small batches need no Spark, and others wait for it. What is planned stays so if the stop comes first."""
        if self._stop.is_set():
            return
        driver.finish_planned()
        driver.start(until_end=self._until_end)

    def _watch(self) -> bool:
        """Return when the work is over, with whether the end of the input is reached; raise what a query failed of."""
        while not self._stop.wait(self._look_s()):
            self._watcher.require_jvm()
            self._servers.replace_dead()
            session = self._spark.news()
            if session is not None:
                self._spark_is_up(session)
            if self._state != "running":
                self._look_at_start()
            else:
                self._servers.keep_spare()
            # Asked in this order: a thread that ends of an error has set it before.
            following = [driver.following for driver in self._drivers]
            failed = self._error()
            if failed is not None:
                raise failed
            if self._until_end and self._state == "running" and not any(following):
                return True
        return False

    def _look_s(self) -> float:
        if self._state != "running":
            return _STARTING_S
        return _UNTIL_END_S if self._until_end else _RUNNING_S

    def _end(self, failed: BaseException | None) -> BaseException | None:
        """Let running batches finish, then stop everything; gives what it has failed of, which may have been the last batch."""
        self._state = "stopping"
        self._heart.beat_now()
        for driver in self._drivers:
            driver.stopping.set()
        self._await_batches(math.inf if failed is None else _PATIENCE_S)
        if failed is None and not self._aborted.is_set():
            failed = self._error()
        self._watcher.close()
        if not self._hurried.is_set():
            for driver in self._drivers:
                self._attempt(driver.close)
        if failed is None and self._begun and self._stop.is_set() and not self._aborted.is_set():
            self._attempt(self._last_snapshot)
        self._attempt(lambda: self._metrics.close(planned=failed is None))
        self._attempt(lambda: self._servers.close(_SERVERS_S[min(self._asked, 3)]))
        self._attempt(jvm.end)
        self._attempt(self._traces.close)
        jvm.remove_files(self._work)
        if failed is None:
            self._heart.end("stopped", "")
        else:
            self._heart.end("fenced" if isinstance(failed, Fenced) else "failed", text_of(failed))
        return failed

    def _error(self) -> BaseException | None:
        """What the first query that has failed has failed of, at its start or in a batch."""
        at_start = [each.exception() for each in self._begun if each.done()]
        return next((e for e in (*at_start, *(driver.error for driver in self._drivers)) if e is not None), None)

    def _await_batches(self, patience_s: float) -> None:
        """Return when no batch is running and none will begin, or when nobody waits for one any more."""
        deadline = time.monotonic() + patience_s
        while open_ones := self._open_ones():
            if self._hurried.wait(_LOOK_S) or time.monotonic() > deadline:
                log.warning("open batches are left as they are", pipeline=self.name, queries=open_ones)
                break
        self._quiet.set()

    def _open_ones(self) -> list[str]:
        """Queries that are at work, and what is starting, which cannot be taken back."""
        begun = zip(self._drivers, self._begun, strict=False)
        starting = [f"start of {driver.query.name}" for driver, each in begun if not each.done()]
        return starting + [driver.query.name for driver in self._drivers if driver.following]

    def _last_snapshot(self) -> None:
        """Before a planned stop, so that the next start may be on an empty machine. Given up when the stop is."""
        if not self._settings.snapshot_on_stop or self._settings.snapshot_config() is None:
            return
        taking = threading.Thread(target=self._attempt, args=(self._take_last,), daemon=True)
        taking.start()
        while taking.is_alive():
            if self._aborted.wait(_LOOK_S):
                log.warning("last snapshots are given up", pipeline=self.name)
                return

    def _take_last(self) -> None:
        taken = self._servers.snapshot()
        log.info("last snapshots taken", pipeline=self.name, tasks=len(taken))

    def _attempt(self, step: Callable[[], None]) -> None:
        """One step of several: whatever it fails of, the others still have to be done, as with the JVM gone at the end."""
        try:
            step()
        except Exception as error:
            log.warning("step failed", pipeline=self.name, step=step.__qualname__, error=text_of(error)[:300])

    def _cancel_jobs_at(self, address: str) -> None:
        """Workers may wait for a server that was given up: their batches run again."""
        for driver in self._drivers:
            # The JVM may hang as well, and whoever calls this must go on to notice it.
            cancel = partial(driver.cancel_job_at, address)
            threading.Thread(target=self._attempt, args=(cancel,), daemon=True).start()

    # What others see.

    def _stop_if_wanted(self) -> None:
        if self._until_end:
            return
        is_newest = self._follow_log()
        row = self._registry.find(self.name)
        if is_newest and (row is None or row.deployed_at != self._row.deployed_at):
            # Nobody could stop it later: it is looked for among the pipelines that there are.
            log.warning("pipeline was dropped", pipeline=self.name)
            self._stop.set()
        if row is not None and row.desired == STOPPED:
            self._stop.set()

    def _follow_log(self) -> bool:
        """Read the metastore's log where it is time to; whether the database is then known to be up to it."""
        if time.monotonic() < self._log_from:
            return False
        self._log_from = time.monotonic() + _LOG_S
        try:
            return self._metastore.refresh() is None
        except RollforwardError as error:
            # The stream decides for itself whether it can go on without Kafka; this is only a wish that comes late.
            log.warning("metastore cannot be followed", pipeline=self.name, error=str(error))
            return False

    def _look(self) -> tuple[str, list[dict[str, Any]]]:
        state = self._seen_state()
        return state, self._servers.describe(restoring=state == "recovering")

    def _seen_state(self) -> str:
        return "stopping" if self._stop.is_set() else self._state

    def _opened(self, cause: str, opened: dict[str, Any]) -> None:
        self._metrics.task_opened(opened)
        self._heart.report(lambda registry: registry.add_recovery(self.name, cause, opened))

    def _done(self, done: BatchDone) -> None:
        self.totals.records += done.records
        self.totals.dead_letters += done.dead_letters
        self.totals.late_records += done.late_records
        self.totals.batches += 1
        self._metrics.batch_done(done)
        row = BatchRow(pipeline=self.name, finished_at=time.time(), **vars(done))
        self._heart.report(lambda registry: registry.add_batch(row))


def cpu_seconds() -> float:
    """CPU time of this process and of all its descendants so far, ended ones included."""
    total = 0.0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def run_pipeline(name: str, settings: Settings, *, until_end: bool) -> dict[str, Any]:
    """Run in this process; gives figures. Raises what ended it early."""
    registry = Registry(settings.metastore)
    refresh(settings)
    driver = PipelineDriver(registry.pipeline(name), settings, registry, until_end=until_end)
    driver.signals.listen()
    started = time.monotonic()
    try:
        driver.run()
    finally:
        registry.close()
    seconds = time.monotonic() - started
    totals = driver.totals
    return {
        "pipeline": name,
        "records": totals.records,
        "dead_letters": totals.dead_letters,
        "late_records": totals.late_records,
        "seconds": round(seconds, 3),
        "records_per_s": round(totals.records / seconds, 1),
        "batches": totals.batches,
        "cpu_seconds": round(cpu_seconds(), 3),
    }
