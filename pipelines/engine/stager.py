"""Staging one query's batches, the third of a batch's steps (`query_driver.py`).

    of Spark       read, compute and stage in one job (`job.py`)
    small          by the driver itself, where the plan allows it (`small.py`)
    a period       computed again from the source, and compared with what the stores have (`recompute.py`)

Nothing that is staged counts before its commit, so each may be done again, and by another of these ways.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

import structlog
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pipelines.deploy import DeployedQuery
from pipelines.engine.exchange import Exchange
from pipelines.engine.input import Input
from pipelines.engine.isolate import by_place, data_error
from pipelines.engine.job import Job, StagedBatch
from pipelines.engine.jobs import job_of
from pipelines.engine.line import LINE
from pipelines.engine.recompute import Compared, RecomputeJob
from pipelines.engine.recomputing import period_of
from pipelines.engine.resultlimit import ANY, ResultLimit
from pipelines.engine.servers import StoreServers
from pipelines.engine.small import ATTEMPT, NotComputed, TooLarge
from pipelines.engine.source import SourceTopic
from pipelines.engine.spark import SparkStart
from pipelines.plan import Query
from pipelines.settings import Settings
from statestore.batches import Planned, Range, Recompute, count_offsets
from statestore.errors import Fenced, Unavailable
from statestore.failpoints import reach

log = structlog.get_logger()
# How often a batch is begun again without Spark by a driver that finds it unfinished.
_RESTARTS_MAX = 1


class Stager:
    """Stages batches of one query, under the plan that each was planned with. `epoch` is the driver's, once it owns.

    `compared` is what the newest period that was computed again differed in. `results` is how large a result may be.
    """

    def __init__(
        self,
        deployed: DeployedQuery,
        settings: Settings,
        source: SourceTopic,
        servers: StoreServers,
        spark: SparkStart,
    ) -> None:
        self.epoch = -1
        self.compared = Compared()
        self.results: ResultLimit = ANY
        self._query = deployed.query
        self._small_records = settings.small_batch_records
        self._small_bytes = settings.small_batch_bytes
        self._source = source
        self._servers = servers
        self._jobs: dict[str, Job] = {}
        self._spark = spark
        self._session: SparkSession | None = None
        self._warm = threading.Event()
        # Of Spark's jobs under way.
        self._exchanges: list[Exchange] = []
        self._claiming = threading.RLock()
        self._claimed = threading.local()
        self._log = log.bind(pipeline=deployed.pipeline, query=self._query.name)

    # Spark.

    @contextmanager
    def _own_session(self, *, long: bool = False) -> Iterator[SparkSession]:
        """The query's session, once Spark is up, for one job of this thread in the query's name. `long`: it may take minutes."""
        with self._claiming:
            if self._session is None:
                self._session = self._spark.session().newSession()
        context = self._session.sparkContext
        if not hasattr(self._claimed, "done"):
            # One query's job can be cancelled by the query's name.
            context.setJobGroup(self._query.name, f"batches of {self._query.name}")
            self._claimed.done = True
        with LINE.place(context, long=long):
            yield self._session

    def cancel(self) -> None:
        """Make Spark give up the job of now, if there is one. Its batch fails and is tried again."""
        if self._session is not None:
            self._session.sparkContext.cancelJobGroup(self._query.name)

    def cancel_at(self, address: str) -> None:
        """The same, if a job waits for the store server at this address."""
        if any(address in exchange.sockets for exchange in list(self._exchanges)):
            self.cancel()

    def warm_up(self) -> None:
        """Run the query's job over nothing, so that the first batch that is not small finds compiled plans and workers."""
        try:
            if self.may_be_small:
                with self._own_session() as session:
                    nothing = Exchange(self._query.name, self.epoch, -1, ())
                    job_of(self._query).try_out(Input(session, ()), nothing, {})
        finally:
            self._warm.set()

    @cached_property
    def may_be_small(self) -> bool:
        """Whether there are batches that need no Spark."""
        return self._small_records > 0 and job_of(self._query).small is not None

    @property
    def most(self) -> int | None:
        """How many offsets a batch may take, so that it need not wait for a Spark that is still warming up; None for any."""
        return None if self._warm.is_set() or not self.may_be_small else self._small_records

    def expect(self, offsets: int) -> None:
        """So many wait: if they are more than a small batch, Spark is started beside the batches that follow."""
        if self.most is not None and offsets > self.most:
            self._spark.ask()

    # The ways to stage.

    def stage(self, query: Query, planned: Planned, after: tuple[int, ...] = ()) -> StagedBatch:
        """By Spark. With `after` each task is read when it has committed that batch."""
        if planned.recompute is not None:
            return self.period(query, planned, planned.recompute)
        if not count_offsets(planned.ranges):
            # What was planned has been deleted since.
            return StagedBatch(0, 0, ())
        self._log.info("staging", batch=planned.batch, epoch=self.epoch)
        with self._own_session() as session:
            read = self._source.input(session, planned.ranges)
            with self._waiting(planned, after) as exchange:
                staged = self._job(query, planned).run(read, exchange, by_place(planned.refused))
        self._log.info("staged", batch=planned.batch, epoch=self.epoch, records=staged.records)
        reach("driver.job-done")
        return staged

    def is_small(self, query: Query, planned: Planned) -> bool:
        """Whether the batch is tried without Spark first."""
        if planned.refused or planned.recompute is not None or planned.restarts > _RESTARTS_MAX:
            return False
        return 0 < count_offsets(planned.ranges) <= self._small_records and self._job(query, planned).small is not None

    def small(self, query: Query, planned: Planned, tried: int) -> StagedBatch | None:
        """Without Spark, where that has been tried so often before; None where the records are more bytes than a driver should hold.

        What goes wrong is `Unavailable`, and `NotComputed` what Spark has to try.
        """
        small = self._job(query, planned).small
        assert small is not None
        reach("driver.small")
        try:
            staged = small.run(
                self._source.parts(planned.ranges),
                self._exchange(planned),
                attempt=ATTEMPT - tried,
                most_bytes=self._small_bytes,
                at=self._servers.at,
            )
        except TooLarge as error:
            self._log.info("left to spark", batch=planned.batch, error=str(error))
            return None
        except (Fenced, Unavailable):
            raise
        except Exception as error:
            raise NotComputed("small batch failed", batch=planned.batch, error=error) from error
        self._log.info("staged without spark", batch=planned.batch, epoch=self.epoch, records=staged.records)
        reach("driver.job-done")
        return staged

    def period(self, query: Query, planned: Planned, recompute: Recompute, *, dry_run: bool = False) -> StagedBatch:
        """A batch that computes a period again; with `dry_run` it is compared and not staged."""
        self.compared = Compared()
        if not count_offsets(recompute.ranges):
            return StagedBatch(0, 0, ())
        self._log.info("computing a period again", batch=planned.batch, request=recompute.request)
        job = RecomputeJob(query, period_of(recompute, dry_run=dry_run))
        with self._own_session(long=True) as session:
            read = self._source.input(session, recompute.ranges)
            with self._waiting(planned) as exchange:
                staged = job.run(read, exchange, by_place(planned.refused))
        self.compared = staged.compared
        self._log.info("period is computed", batch=planned.batch, **staged.compared.to_json())
        reach("driver.recomputed")
        return staged.batch

    def failure(self, query: Query, planned: Planned, ranges: tuple[Range, ...]) -> str | None:
        """Why the batch fails of records in these ranges, staging nothing; None where it does not."""
        known = by_place(planned.refused)
        try:
            with self._own_session(long=planned.recompute is not None) as session:
                read = self._source.input(session, ranges)
                if planned.recompute is None:
                    with self._waiting(planned) as exchange:
                        self._job(query, planned).try_out(read, exchange, known)
                else:
                    RecomputeJob(query, period_of(planned.recompute)).try_out(read, self.results, known)
        except (PySparkException, Py4JJavaError) as error:
            reason = data_error(error)
            if reason is None:
                raise
            return reason
        return None

    def _job(self, query: Query, planned: Planned) -> Job:
        job = self._jobs.get(planned.plan)
        if job is None:
            job = self._jobs[planned.plan] = job_of(query)
        return job

    @contextmanager
    def _waiting(self, planned: Planned, after: tuple[int, ...] = ()) -> Iterator[Exchange]:
        """Where a job of Spark's is served that waits for the servers within."""
        exchange = self._exchange(planned, after)
        self._exchanges.append(exchange)
        try:
            yield exchange
        finally:
            self._exchanges.remove(exchange)

    def _exchange(self, planned: Planned, after: tuple[int, ...] = ()) -> Exchange:
        name = self._query.name
        sockets = self._servers.sockets(name)
        return Exchange(name, self.epoch, planned.batch, sockets, after, self.results, self._servers.pipeline)
