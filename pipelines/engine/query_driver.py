"""Drives one query: owns it, plans its batches, runs them, commits them. The steps are those of the design, section 4.

    1 own      "driver started": the record's offset is the epoch
    2 plan     "planned b": fixes the batch's source offsets under the plan's hash
    3 stage    Spark runs the batch and stages it on the store servers, or the driver itself if it is small (`stager.py`)
    4 commit   each task that has rows commits in one Kafka transaction; 5 apply is the server's
    6 finish   "done b", together with the source offsets of the consumer group

Where a whole batch is left, the next one's job begins with step 4 (`ahead.py`).

The truth is in the batches topic; nothing is kept beside it. A batch that was planned and not finished is run first,
over exactly its offsets and under the plan it was planned with. Then batch after batch takes what has come, as much as
the pace allows: the next begins at once while there is more, and otherwise after the batch interval. Where nothing has
come nothing is planned. Between two batches a period of the result may be computed again, as a batch of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, contextmanager
from contextvars import copy_context
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import structlog
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from pipelines.deploy import DeployedQuery
from pipelines.engine.ahead import Ahead
from pipelines.engine.intake import Intake
from pipelines.engine.isolate import cause_of, data_error, without_refused
from pipelines.engine.job import StagedBatch, TaskResult
from pipelines.engine.journal import Journal
from pipelines.engine.pace import Bounds, Pace
from pipelines.engine.recomputing import TAKINGS_MAX, Requests, given_up_of, planned_recompute
from pipelines.engine.resultlimit import ResultLimit
from pipelines.engine.servers import StoreServers
from pipelines.engine.small import NotComputed
from pipelines.engine.source import SourceTopic, without_lost
from pipelines.engine.spark import SparkNotStarted, SparkStart
from pipelines.engine.stager import Stager
from pipelines.engine.timecut import TimeCut
from pipelines.plan import Query, query_from_json
from pipelines.recomputes import RecomputeRow
from pipelines.settings import Settings
from pipelines.traces import NO_TRACES, Traces
from statestore.batches import Planned, Range, Recompute, count_offsets
from statestore.clock import now_ms
from statestore.errors import (
    DataCorrupted,
    Fenced,
    InvalidInput,
    InvariantBroken,
    RollforwardError,
    Unavailable,
    Unrecoverable,
    text_of,
)
from statestore.failpoints import reach
from statestore.kafka.admin import Admin

log = structlog.get_logger()
# How often the source topic is looked at anew, and whether every task is open.
_LOOK_S = 30.0
# Ends of a batch behind which none is to begin.
_NOTHING_BEHIND: Mapping[int, int] = {}


class _BatchAborted(Exception):
    """The open batch was given up, since the driver stops. It stays planned, and the next driver runs it."""


@dataclass(frozen=True)
class BatchDone:
    """Figures of one finished batch. `late_records` counts records once for each window that they came too late for."""

    query: str
    batch: int
    records: int
    dead_letters: int
    late_records: int
    changed_keys: int
    seconds: float
    commit_seconds: float
    lag: int
    state_keys: int
    state_bytes: int
    offsets: dict[str, Any]


class QueryDriver:
    """One query's driver; lives as long as its process. `on_done` is told of every finished batch."""

    def __init__(
        self,
        deployed: DeployedQuery,
        settings: Settings,
        servers: StoreServers,
        spark: SparkStart,
        on_done: Callable[[BatchDone], None],
        requests: Requests,
        traces: Traces = NO_TRACES,
    ) -> None:
        self._traces = traces
        self.deployed = deployed
        self.query = deployed.query
        self.epoch = -1
        self.error: BaseException | None = None
        self.stopping = threading.Event()
        # Whether a period is computed again at this moment.
        self.is_recomputing = False
        self._aborted = threading.Event()
        self._settings = settings
        self._kafka = settings.kafka_config()
        self._admin = Admin(self._kafka)
        self._servers = servers
        self._on_done = on_done
        self._requests = requests
        self._journal = Journal(deployed, self._kafka, attempts=settings.batch_attempts)
        # The plan of the newest batch, once there is one.
        self._newest: Planned | None = None
        self._source = SourceTopic(
            self.query, self._kafka, accept_loss=settings.accept_loss, archive=settings.archive_config()
        )
        self._pace = Pace(
            Bounds(
                settings.max_records_per_batch,
                settings.max_bytes_per_batch,
                settings.target_batch_s,
                settings.catch_up_batch_s,
            ),
            rows=1 if self.query.window is None else self.query.window.overlap,
        )
        # Only windows close, and make late what comes behind. What a column's times are is known when it has been read.
        is_by_time = self.query.window is not None and self.query.source.timestamp is None
        self._by_time = TimeCut(self._source.first_at, now_ms()) if is_by_time else None
        self._intake = Intake(self._source, self._pace, self._by_time)
        self._stager = Stager(deployed, settings, self._source, servers, spark)
        self._lag = 0
        self._thread: threading.Thread | None = None
        self._commits = ThreadPoolExecutor(max_workers=self.query.tasks, thread_name_prefix=f"commit-{self.query.name}")
        self._ahead = Ahead(self.query.name, self.cancel_job)
        self._log = log.bind(pipeline=deployed.pipeline, query=self.query.name)

    @property
    def needs_spark(self) -> bool:
        """Whether every batch needs it."""
        return not self._stager.may_be_small

    def warm_up(self) -> None:
        """Let Spark find compiled plans and workers when the first batch comes that is not small."""
        self._stager.warm_up()

    @property
    def _batch(self) -> int:
        """The newest that is planned; -1 if none is."""
        return -1 if self._newest is None else self._newest.batch

    # 1 Own.

    def own(self) -> None:
        """Become the query's newest driver and learn what the drivers before have left."""
        self._source.look()
        self._look_at_results()
        self._past = self._journal.own()
        self.epoch = self._stager.epoch = self._journal.epoch
        self._log = self._log.bind(epoch=self.epoch)
        if self._past.planned is not None:
            self._stand(self._past.planned)
            self._source.require_same(self._past.planned)
        self._log.info("query owned", newest_batch=self._batch, done=self._past.done)

    def require_newest(self) -> None:
        """Raise `Fenced` if a newer driver owns the query."""
        self._journal.require_newest()

    # The way of a batch: 2 to 6.

    def finish_planned(self) -> None:
        """Run the batch that an earlier driver planned and did not finish, over the same offsets."""
        try:
            self._finish_planned()
        except _BatchAborted:
            self._log.info("batch aborted", batch=self._batch)

    def _finish_planned(self) -> None:
        planned = self._past.planned
        if planned is None or planned.batch <= self._past.done:
            return
        starts, begins = {r.partition: r.start for r in planned.ranges}, self._source.begins()
        gone = any(start < begins.get(partition, 0) for partition, start in starts.items())
        if gone and planned.recompute is None and self._is_committed(planned):
            self._log.info("input of a committed batch is gone, and is not needed", batch=planned.batch)
            self._journal.finish(planned)
            return
        deleted = self._source.deleted(starts, begins)
        cut = self._source.cut_off({r.partition: r.end for r in planned.ranges}, self._source.stable_ends())
        if deleted or cut:
            planned = without_lost(planned, deleted, cut)
            self._plan(planned)
        plan = self._past.plans.get(planned.plan)
        if plan is None:
            raise Unrecoverable("plan of an unfinished batch is missing", plan=planned.plan, batch=planned.batch)
        self._log.info("finishing planned batch", batch=planned.batch)
        query = query_from_json(plan)
        if planned.recompute is not None:
            with self._traced(planned), self._recomputing():
                self._finish_recompute(query, planned)
            return
        if self._stager.is_small(query, planned):
            # Noted before it is tried: should this process end of it as well, the next one leaves it to Spark.
            planned = replace(planned, restarts=planned.restarts + 1)
            self._plan(planned)
        with self._traced(planned):
            self._run(query, planned, time.monotonic())

    def _is_committed(self, planned: Planned) -> bool:
        """Whether every task has committed the batch. One that had no row of it has not, so it counts as one that may have had."""
        # A server on another machine may still tell of a task that has moved away.
        mine = [task for task in self._servers.figures(self.query.name) if task["epoch"] == self.epoch]
        return len({task["task"] for task in mine if task["batch"] >= planned.batch}) == self.query.tasks

    def _traced(self, planned: Planned) -> AbstractContextManager[object]:
        at = {"pipeline": self.deployed.pipeline, "query": self.query.name}
        return self._traces.span("batch", **at, batch=planned.batch, epoch=self.epoch)

    def _plan(self, planned: Planned) -> None:
        """2 Plan."""
        with self._traces.span("plan", batch=planned.batch):
            self._journal.plan(planned)
        self._stand(planned)

    def _stand(self, planned: Planned) -> None:
        self._newest = planned
        self._intake.stands(planned)

    def _run(self, query: Query, planned: Planned, started: float, ends: Mapping[int, int] = _NOTHING_BEHIND) -> None:
        """3 to 6, again until the batch is done or the attempts are used up. What lies before `ends` may begin meanwhile."""
        attempts = self._settings.batch_attempts
        poisoned, searched_s = False, 0.0
        small = self._pace.bytes_of(count_offsets(planned.ranges)) <= self._settings.small_batch_bytes
        small = small and self._stager.is_small(query, planned)
        # The one before the first is without Spark: what fails there is tried with it as often as ever. Until it is there for
        # it, a failure of a server's or the broker's is no reason to wait for it.
        for attempt in range(0 if small else 1, attempts + 1):
            if self._aborted.is_set():
                raise _BatchAborted
            try:
                if poisoned:
                    search_started = time.monotonic()
                    planned, poisoned = self._refuse(query, planned), False
                    searched_s += time.monotonic() - search_started
                with self._traces.span("stage", batch=planned.batch, attempt=attempt):
                    begun = self._ahead.take(planned) or (
                        self._stager.small(query, planned, attempt) if small else None
                    )
                    staged = begun or self._stager.stage(query, planned)
                self._begin_next(planned, staged, ends)
                commit_started = time.monotonic()
                self._commit(planned, staged)
                commit_seconds = time.monotonic() - commit_started
                break
            except Fenced:
                raise
            except SparkNotStarted as error:
                # Another try would meet the same.
                if self._aborted.is_set():
                    raise _BatchAborted from error
                raise
            except (PySparkException, Py4JJavaError, Unavailable) as error:
                self._ahead.drop()
                if self._aborted.is_set():
                    raise _BatchAborted from error
                self._journal.require_newest()
                cause, reason = cause_of(error), data_error(error)
                self._log.warning("batch attempt failed", batch=planned.batch, attempt=attempt, error=cause)
                if attempt == attempts:
                    raise Unavailable(
                        "batch failed",
                        query=self.query.name,
                        batch=planned.batch,
                        attempts=attempt,
                        error=reason or cause,
                        hint=_hint(self._figures(), tasks=query.tasks, batch=planned.batch),
                    ) from error
                if reason is not None:
                    # It may be a result that was too large for its topic; that may have been mended.
                    self._look_at_results()
                # The last try is Spark's in any case.
                small &= attempt + 1 < attempts and self._stager.most is not None
                small &= reason is None and not isinstance(error, NotComputed)
                # A search that has failed itself, as of a server that is gone, is made again.
                poisoned |= reason is not None and (query.on_error or self._settings.on_error) == "dead-letter"
                self._servers.ensure(f"batch {planned.batch} failed: {cause}", only=self.query.name)
        with self._traces.span("finish", batch=planned.batch):
            self._journal.finish(planned)
        # The batch is committed; a task that could not apply it recovers now, not when the next batch comes.
        figures = self._figures_of_open(f"batch {planned.batch} was not applied")
        seconds = time.monotonic() - started
        self._pace.took(
            offsets=count_offsets(planned.ranges),
            values=staged.values,
            read_bytes=staged.read_bytes,
            # What a search for records that fail took says nothing of other batches.
            seconds=seconds - searched_s,
            left=self._intake.left(ends),
            by_spark=staged.by_spark,
        )
        self._report(planned, staged, figures, seconds, commit_seconds)

    def _refuse(self, query: Query, planned: Planned) -> Planned:
        """Find the records that the batch fails of, and plan it anew without them, under its number."""
        tasks = self._servers.figures(query.name)
        if len(tasks) < query.tasks or any(task["state"] != "running" for task in tasks):
            raise Unavailable("a batch that fails of its data may be committed in part: not every task is up")
        if any(task["batch"] >= planned.batch for task in tasks):
            # What is committed has counted every record: leaving one out now would make it a dead letter as well.
            raise InvariantBroken("a batch that is committed in part fails of its data", batch=planned.batch)
        # Retention may have taken records since, and a search would blame those that are left.
        self._source.deleted({r.partition: r.start for r in planned.ranges}, self._source.begins())
        failure = partial(self._stager.failure, query)
        left = without_refused(
            planned,
            failure,
            most=self._settings.poisoned_records_max,
            stateless=query.stateless,
            cut=None if self._by_time is None else self._by_time.shortened,
        )
        if left == planned:
            self._log.warning("batch does not fail when it is tried", batch=planned.batch)
            return planned
        planned = left
        self._log.error(
            "records are refused",
            batch=planned.batch,
            records=len(planned.refused),
            offsets=count_offsets(planned.ranges),
            first=asdict(planned.refused[0]) if planned.refused else None,
        )
        self._plan(planned)
        reach("driver.refused")
        return planned

    def _begin_next(self, planned: Planned, staged: StagedBatch, ends: Mapping[int, int]) -> None:
        """3 Stage by Spark, of the batch that follows one whose commit comes now, if a whole one is left."""
        try:
            ranges = None if self._stager.most else self._intake.next_whole(ends)
        except Unavailable as error:
            # The staged batch needs none of what was asked.
            self._log.warning("next batch does not begin yet", batch=planned.batch, error=str(error))
            return
        if ranges is None or self.stopping.is_set():
            return
        chosen = self._planned(ranges)
        after = {result.task: planned.batch for result in staged.results}
        versions = tuple(after.get(task, -1) for task in range(self.query.tasks))

        def stage() -> StagedBatch:
            return self._stager.stage(self.query, chosen, versions)

        self._ahead.begin(chosen, stage)
        reach("driver.ahead")

    def _commit(self, planned: Planned, staged: StagedBatch) -> None:
        """4 Commit: every task that has rows, at once. Those that fail run again; those that are done answer so."""
        # Each in a copy of this thread's context, which says what the batch's trace is.
        waiting = [
            self._commits.submit(copy_context().run, self._commit_task, planned, result) for result in staged.results
        ]
        failures: list[BaseException] = []
        for number, future in enumerate(as_completed(waiting)):
            error = future.exception()
            if error is not None:
                failures.append(error)
            elif number == 0:
                reach("driver.some-committed")
        fenced = [error for error in failures if isinstance(error, Fenced)]
        if failures:
            raise (fenced or failures)[0]
        reach("driver.all-committed")

    def _commit_task(self, planned: Planned, result: TaskResult) -> None:
        task = f"{self.query.name}-{result.task}"
        with self._traces.span("commit", batch=planned.batch, task=task):
            answer = self._servers.commit(
                task,
                batch=planned.batch,
                attempt=result.attempt,
                plan=planned.plan,
                ends={str(r.partition): r.end for r in planned.ranges},
            )
            if answer["committed_now"]:
                self._traces.past("apply", answer.get("apply_s", 0.0), batch=planned.batch, task=task)

    def _report(
        self,
        planned: Planned,
        staged: StagedBatch,
        figures: list[dict[str, Any]],
        seconds: float,
        commit_seconds: float,
    ) -> None:
        try:
            self._lag = sum(self.lags().values())
        except Unavailable as error:
            # The batch is done; that its lag cannot be had just now is no reason to fail.
            self._log.warning("lag is not known", batch=planned.batch, error=str(error))
        done = BatchDone(
            query=self.query.name,
            batch=planned.batch,
            records=staged.records,
            dead_letters=staged.dead_letters,
            late_records=sum(result.dropped for result in staged.results),
            changed_keys=sum(result.rows for result in staged.results),
            seconds=seconds,
            commit_seconds=commit_seconds,
            lag=self._lag,
            state_keys=sum(task.get("keys", 0) for task in figures),
            state_bytes=sum(task.get("bytes", 0) for task in figures),
            offsets={str(r.partition): [r.start, r.end] for r in planned.ranges},
        )
        self._log.info(
            "batch done", batch=done.batch, records=done.records, bad=done.dead_letters, seconds=round(seconds, 3)
        )
        self._on_done(done)

    def _figures(self) -> list[dict[str, Any]]:
        try:
            return self._servers.figures(self.query.name)
        except Unavailable as error:
            # A server that has died meanwhile is replaced by the next batch.
            self._log.warning("figures are incomplete", error=str(error))
            return []

    def _figures_of_open(self, cause: str) -> list[dict[str, Any]]:
        """Each task's numbers, when those that had stopped, or are at no server, are open again."""
        figures = self._figures()
        if len(figures) < self.query.tasks or any(task["state"] != "running" for task in figures):
            self._servers.ensure(cause, only=self.query.name)
            figures = self._figures()
        return figures

    def lags(self) -> dict[int, int]:
        """Records of each source partition that no planned batch holds; empty before the query is owned."""
        return self._intake.lags()

    # The live stream.

    def start(self, *, until_end: bool) -> None:
        """Take batch after batch from where they end, in a thread. With `until_end` up to what is present now."""
        self._take_in()
        ends = self._stable_ends()
        goal = ends if until_end else None
        self._thread = threading.Thread(target=self._follow, args=(goal,), name=f"query-{self.query.name}", daemon=True)
        self._thread.start()

    def _take_in(self) -> None:
        self._intake.take_in(self._source.begins(), first=self._batch < 0)

    def _stable_ends(self) -> dict[int, int]:
        """Up to where the source can be read, and that it has lost nothing of what was read."""
        ends = self._source.stable_ends()
        if self._intake.require_whole(ends):
            self._ahead.drop()
        return ends

    @property
    def following(self) -> bool:
        """Whether the stream goes on; `error` says why it does not, if it should."""
        return self._thread is not None and self._thread.is_alive()

    def _follow(self, goal: dict[int, int] | None) -> None:
        try:
            looked = time.monotonic()
            while not self.stopping.is_set():
                started = time.monotonic()
                if started - looked > _LOOK_S:
                    self._look_again()
                    # A query may have met damage and stopped its task, and no batch come that would notice.
                    self._figures_of_open("a task was not running")
                    looked = started
                asked = self._requests.next()
                if asked is not None:
                    self._ahead.drop()
                    with self._recomputing(), self._put_back(asked):
                        self._answer(asked)
                ends = goal if goal is not None else self._stable_ends()
                behind = self._next_batch(ends, started)
                if goal is not None and not behind:
                    return
                if not behind:
                    self.stopping.wait(max(0.0, started + self._settings.batch_interval_s - time.monotonic()))
        except _BatchAborted:
            self._log.info("batch aborted", batch=self._batch)
        except BaseException as error:
            # Whoever gives the batch up looks at no error.
            self._log.error("query failed", batch=self._batch, error=text_of(error)[:500])
            self.error = error
            self.stopping.set()
        finally:
            self._ahead.drop()

    def _look_at_results(self) -> None:
        """Learn how large a result its topic takes now."""
        self._stager.results = ResultLimit.of(self.query.output_topic, self._admin, self._kafka)

    def _look_again(self) -> None:
        """Find partitions that the topic has got, and that it is still the same topic."""
        self._source.look()
        # Against what is read: the topic itself may have been seen anew since.
        if self._source.topic.partitions != len(self._intake.ends):
            self._ahead.drop()
            self._take_in()

    def _next_batch(self, ends: dict[int, int], started: float) -> bool:
        """Run a batch of what lies before `ends`, if there is anything; gives whether more is left."""
        planned = self._ahead.planned
        if planned is None:
            self._stager.expect(self._intake.left(ends))
            ranges = self._intake.next(ends, self._stager.most)
            if ranges is None:
                return False
            planned = self._planned(ranges)
        with self._traced(planned):
            self._plan(planned)
            self._run(self.query, planned, started, ends)
        return self._intake.left(ends) > 0

    def _planned(self, ranges: tuple[Range, ...], recompute: Recompute | None = None) -> Planned:
        newest = self._newest
        batch, floor, cut = (0, 0, 0) if newest is None else (newest.batch + 1, newest.floor_behind, newest.cut)
        if self._intake.is_cut:
            # Who went back to a batch before would read on behind the end, and skip what is written there.
            floor = cut = batch
        return Planned(batch, self._journal.hash, ranges, self._intake.lost, (), recompute, floor=floor, cut=cut)

    # Periods that are computed again: see `recomputing.py`.

    @contextmanager
    def _recomputing(self) -> Iterator[None]:
        self.is_recomputing = True
        try:
            yield
        finally:
            self.is_recomputing = False

    @contextmanager
    def _put_back(self, asked: RecomputeRow) -> Iterator[None]:
        """What ends in order, or for want of Spark, does not end of the request."""
        try:
            yield
        except (_BatchAborted, SparkNotStarted):
            self._requests.put_back(asked)
            raise

    def _answer(self, asked: RecomputeRow) -> None:
        """Do what a request asks for. What refuses it before the plan leaves the stream as it is."""
        try:
            recompute = planned_recompute(self.query, asked, self._source, self._intake.ends)
            planned = self._planned(self._intake.nothing(), recompute)
            if asked.dry_run:
                self._stager.period(self.query, planned, recompute, dry_run=True)
                self._requests.done(asked.id, None, self._stager.compared)
                return
        except (Fenced, SparkNotStarted):
            # The request stays: the next driver answers it.
            raise
        except (RollforwardError, PySparkException, Py4JJavaError) as error:
            if self._aborted.is_set():
                raise _BatchAborted from error
            self._log.warning("period is not computed", request=asked.id, error=cause_of(error))
            self._requests.failed(asked.id, cause_of(error))
            return
        with self._traced(planned):
            self._plan(planned)
            self._recompute(self.query, planned)

    def _finish_recompute(self, query: Query, planned: Planned) -> None:
        """The same for one that a driver before has planned. The period may be what drivers end of, as of too little memory."""
        if planned.restarts >= TAKINGS_MAX and not self._may_be_committed(query, planned, "is given up"):
            self._give_up(query, planned, given_up_of(planned.restarts))
            return
        # Noted before it is tried: should this process end of it as well, another one gives it up.
        planned = replace(planned, restarts=planned.restarts + 1)
        self._plan(planned)
        try:
            self._recompute(query, planned)
        except (_BatchAborted, SparkNotStarted):
            self._uncount()
            raise

    def _uncount(self) -> None:
        """The driver stops in order: it is none that has ended of the period."""
        newest = self._newest
        if newest is None or newest.recompute is None:
            return
        try:
            self._plan(replace(newest, restarts=newest.restarts - 1))
        except Unavailable as error:
            self._log.warning("restart stays counted", batch=newest.batch, error=str(error))

    def _recompute(self, query: Query, planned: Planned) -> None:
        """3 to 6. A period that cannot be computed is given up, unless a part of it is committed."""
        assert planned.recompute is not None
        request = planned.recompute.request
        try:
            self._run(query, planned, time.monotonic())
        except SparkNotStarted:
            # The period stays planned.
            raise
        except (Unavailable, InvalidInput, Unrecoverable, DataCorrupted) as error:
            # The last two are the archive's, which the stream goes on without; a store's own are met again right here.
            if self._may_be_committed(query, planned, f"failed: {error}"):
                raise
            self._give_up(query, planned, str(error))
            return
        self._requests.done(request, planned.batch, self._stager.compared)

    def _may_be_committed(self, query: Query, planned: Planned, why: str) -> bool:
        """Whether a task may have committed its part. One whose server is gone may have, which only its next opening tells."""
        self._servers.ensure(f"batch {planned.batch} {why}", only=query.name)
        tasks = self._servers.figures(query.name)
        known = {task["task"] for task in tasks if task["epoch"] == self.epoch}
        return len(known) < query.tasks or any(task["batch"] >= planned.batch for task in tasks)

    def _give_up(self, query: Query, planned: Planned, reason: str) -> None:
        """Run the batch without its period, which no task has committed."""
        assert planned.recompute is not None
        request = planned.recompute.request
        self._log.error("period is given up", batch=planned.batch, request=request, error=reason)
        nothing = replace(planned, recompute=None, refused=(), restarts=0)
        self._plan(nothing)
        self._run(query, nothing, time.monotonic())
        self._requests.failed(request, reason)

    def abort(self) -> None:
        """Give the open batch up, unless it is being committed, which is short. Nothing of it counts.

        Its job has to be cancelled, too, again while `following`: it may not have begun, and a cancelled one is not noticed at once.
        """
        self.stopping.set()
        self._aborted.set()

    def cancel_job(self) -> None:
        """Make Spark give up the job of now, if there is one. Its batch fails and is tried again."""
        self._stager.cancel()

    def cancel_job_at(self, address: str) -> None:
        """The same, if the job waits for the store server at this address."""
        self._stager.cancel_at(address)

    def close(self) -> None:
        """Write nothing more."""
        self._ahead.close()
        self._commits.shutdown(wait=False)
        self._journal.close()


def _hint(figures: list[dict[str, Any]], *, tasks: int, batch: int) -> str:
    """What to do about a batch that is given up, and what is known of it from the figures of so many of the query's tasks."""
    if any(task["batch"] >= batch for task in figures):
        known = "some tasks have committed the batch, the others will"
    elif len(figures) == tasks and all(task["state"] == "running" for task in figures):
        known = "nothing of the batch is committed"
    else:
        known = "some tasks may have committed the batch, then the others will"
    return f"{known}; fix the cause and start the pipeline again"
