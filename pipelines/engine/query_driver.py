"""Drives one query: owns it, plans its batches, runs them, commits them. The steps are those of the design, section 4.

    1 own      "driver started": the record's offset is the epoch
    2 plan     "planned b": fixes the batch's source offsets under the plan's hash
    3 stage    Spark runs the batch and stages it on the store servers
    4 commit   each task that has rows commits in one Kafka transaction; 5 apply is the server's
    6 finish   "done b", together with the source offsets of the consumer group

The truth is in the batches topic. Spark's checkpoint only says what the live stream has handed over; it is made new
at every start and may be deleted at any time. A batch that was planned and not finished is run first, over exactly
its offsets and under the plan it was planned with.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import structlog
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from pipelines import names
from pipelines.deploy import DeployedQuery
from pipelines.engine.batch import StagedBatch
from pipelines.engine.exchange import Exchange
from pipelines.engine.jobs import Job, job_of
from pipelines.engine.servers import StoreServers
from pipelines.engine.spark import kafka_options
from pipelines.plan import Query, plan_hash, query_from_json, query_to_json
from pipelines.settings import Settings
from statestore.batches import (
    COPYING,
    DONE,
    DRIVER,
    PLAN_PREFIX,
    PLANNED,
    BatchesLog,
    Planned,
    Range,
    encode,
    encode_fields,
)
from statestore.errors import Fenced, InvalidConfig, RollforwardError, Unavailable, Unrecoverable
from statestore.failpoints import reach
from statestore.kafka import Admin, ProducerFatal, Reader, Topic, TransactionAborted, TransactionalProducer
from statestore.ownership import require_newest

log = structlog.get_logger()
_QUIESCE_S = 60.0


@dataclass(frozen=True)
class BatchDone:
    """Figures of one finished batch. `late_records` counts records once for each window that they came too late for."""

    query: str
    batch: int
    records: int
    bad_records: int
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
        work: Path,
        on_done: Callable[[BatchDone], None],
    ) -> None:
        self.deployed = deployed
        self.query = deployed.query
        self.epoch = -1
        self.error: BaseException | None = None
        self.stopping = threading.Event()
        self._settings = settings
        self._kafka = settings.kafka_config()
        self._servers = servers
        self._session: SparkSession | None = None
        self._checkpoint = work / "checkpoints" / self.query.name
        self._on_done = on_done
        self._admin = Admin(self._kafka)
        self._log_reader = BatchesLog(Reader(self._kafka), deployed.batches_topic, tasks=self.query.tasks)
        self._hash = plan_hash(self.query)
        self._jobs: dict[str, Job] = {}
        self._producer: TransactionalProducer | None = None
        self._batch = -1
        self._ends: dict[int, int] = {}
        self._lost: tuple[Range, ...] = ()
        self._source: Topic | None = None
        self._lag = 0
        self._running = threading.Lock()
        self._commits = ThreadPoolExecutor(max_workers=self.query.tasks, thread_name_prefix=f"commit-{self.query.name}")
        self._log = log.bind(pipeline=deployed.pipeline, query=self.query.name)

    def use(self, session: SparkSession) -> None:
        """Compute in a session of the query's own, made from this one. Owning and recovering need none."""
        self._session = session.newSession()

    @property
    def session(self) -> SparkSession:
        """The query's session."""
        assert self._session is not None
        return self._session

    # 1 Own.

    def own(self) -> None:
        """Become the query's newest driver and learn what the drivers before have left."""
        self._source = self._require_source()
        self._producer = TransactionalProducer(self._kafka, names.driver_id(self.deployed.pipeline, self.query.name))
        self._producer.init()
        started: list[int] = []
        self._producer.begin()
        self._producer.produce(
            self.deployed.batches_topic,
            key=DRIVER,
            value=encode_fields(started_at=time.time(), plan=self._hash),
            partition=self._log_reader.driver_partition,
            on_offset=started.append,
        )
        plan_key = PLAN_PREFIX + self._hash.encode()
        plan = query_to_json(self.query).encode()
        self._producer.produce(
            self.deployed.batches_topic, key=plan_key, value=plan, partition=self._log_reader.driver_partition
        )
        self._producer.flush()
        self._producer.commit()
        self.epoch = started[0]
        self._log = self._log.bind(epoch=self.epoch)
        reach("driver.owned")
        self._past = self._log_reader.driver_log()
        if self._past.origin.get("state") == COPYING:
            raise InvalidConfig(
                "clone is not complete: its stores are not there yet",
                query=self.query.name,
                origin=self._past.origin["pipeline"],
                hint="run `rollforward clone` again, or drop it",
            )
        if self._past.planned is not None:
            self._batch = self._past.planned.batch
            self._ends = {r.partition: r.end for r in self._past.planned.ranges}
            self._require_same_source(self._past.planned)
        self._log.info("query owned", newest_batch=self._batch, done=self._past.done)

    def _require_source(self) -> Topic:
        topic = self.query.source.topic
        found = self._admin.describe([topic]).get(topic)
        if found is None:
            raise InvalidConfig(
                "source topic does not exist", topic=topic, hint="create it, or stop the pipeline that reads it"
            )
        if self.query.stateless and found.partitions > self.query.tasks:
            raise InvalidConfig(
                "source topic got partitions since the deploy, and a stateless query has one task for each",
                topic=topic,
                partitions=found.partitions,
                tasks=self.query.tasks,
                hint="deploy the query under another name",
            )
        return found

    def _require_same_source(self, planned: Planned) -> None:
        assert self._source is not None
        for planned_range in planned.ranges:
            if planned_range.topic_id != self._source.topic_id:
                raise Unrecoverable(
                    "source topic was deleted and created again: its offsets mean other records now",
                    topic=self._source.name,
                    recorded_topic_id=planned_range.topic_id,
                    topic_id=self._source.topic_id,
                    hint="deploy the pipeline under another name to start anew",
                )

    # The way of a batch: 2 to 6.

    def finish_planned(self) -> None:
        """Run the batch that an earlier driver planned and did not finish, over the same offsets."""
        planned = self._past.planned
        if planned is None or planned.batch <= self._past.done:
            return
        self._lost = self._deleted({r.partition: r.start for r in planned.ranges})
        if self._lost:
            planned = self._without_lost(planned)
        plan = self._past.plans.get(planned.plan)
        if plan is None:
            raise Unrecoverable("plan of an unfinished batch is missing", plan=planned.plan, batch=planned.batch)
        self._log.info("finishing planned batch", batch=planned.batch)
        frame = self._read_exactly(planned)
        with self._running:
            self._run(query_from_json(plan), planned, frame, time.monotonic())

    def _without_lost(self, planned: Planned) -> Planned:
        """The batch over what is left of its input, planned anew under its number."""
        begins = {lost.partition: lost.end for lost in self._lost}
        ranges = []
        for r in planned.ranges:
            begin = max(r.start, begins.get(r.partition, 0))
            ranges.append(replace(r, start=begin, end=max(r.end, begin)))
        left = replace(planned, ranges=tuple(ranges), lost=self._lost)
        self._plan(left)
        return left

    def _read_exactly(self, planned: Planned) -> DataFrame:
        topic = self.query.source.topic
        starts = {topic: {str(r.partition): r.start for r in planned.ranges}}
        ends = {topic: {str(r.partition): r.end for r in planned.ranges}}
        options = kafka_options(self._kafka.bootstrap_servers, topic, self._kafka.client)
        # Only the partitions that were planned: there may be more by now, and the plan has none of their records.
        del options["subscribe"]
        options["assign"] = json.dumps({topic: [r.partition for r in planned.ranges]})
        reader = self.session.read.format("kafka").options(**options)
        return reader.option("startingOffsets", json.dumps(starts)).option("endingOffsets", json.dumps(ends)).load()

    def _on_batch(self, frame: DataFrame, spark_batch: int) -> None:
        """Called by Structured Streaming. After `stopping` nothing is done: the records stay for the next driver."""
        with self._running:
            if self.stopping.is_set():
                return
            started = time.monotonic()
            try:
                ranges = self._ranges_of(spark_batch)
                if not ranges:
                    return
                planned = Planned(self._batch + 1, self._hash, ranges, self._lost)
                self._plan(planned)
                self._run(self.query, planned, frame, started)
            except BaseException as error:
                self.error = error
                self.stopping.set()
                raise

    def _ranges_of(self, spark_batch: int) -> tuple[Range, ...]:
        """The offsets of Spark's batch: its log entry, written before the batch begins, holds the ends."""
        assert self._source is not None
        entry = (self._checkpoint / "offsets" / str(spark_batch)).read_text().splitlines()[-1]
        ends = {int(number): at for number, at in json.loads(entry)[self._source.name].items()}
        ranges = []
        for partition, end in sorted(ends.items()):
            start = self._ends.get(partition, 0)
            if end > start:
                ranges.append(Range(self._source.name, self._source.topic_id, partition, start, end))
        known = {r.partition for r in ranges}
        # Partitions without news stay in the plan, so that the newest plan says where every partition stands.
        quiet = [p for p in self._ends if p not in known]
        ranges += [Range(self._source.name, self._source.topic_id, p, self._ends[p], self._ends[p]) for p in quiet]
        return tuple(ranges) if known else ()

    def _plan(self, planned: Planned) -> None:
        """2 Plan."""
        reach("driver.before-plan")
        self._in_transaction(
            lambda producer: producer.produce(
                self.deployed.batches_topic,
                key=PLANNED,
                value=encode(planned),
                partition=self._log_reader.driver_partition,
            )
        )
        self._batch = planned.batch
        self._ends = {r.partition: r.end for r in planned.ranges}
        self._lost = ()
        reach("driver.planned")

    def _run(self, query: Query, planned: Planned, frame: DataFrame, started: float) -> None:
        """3 to 6, again until the batch is done or the attempts are used up."""
        attempts = self._settings.batch_attempts
        for attempt in range(1, attempts + 1):
            try:
                staged = self._stage(query, planned, frame)
                commit_started = time.monotonic()
                self._commit(planned, staged)
                commit_seconds = time.monotonic() - commit_started
                break
            except Fenced:
                raise
            except (PySparkException, Unavailable) as error:
                require_newest(self._log_reader, self.epoch, self.query.name)
                cause = _cause(error)
                self._log.warning("batch attempt failed", batch=planned.batch, attempt=attempt, error=cause)
                if attempt == attempts:
                    raise Unavailable(
                        "batch failed",
                        query=self.query.name,
                        batch=planned.batch,
                        attempts=attempts,
                        error=cause,
                        hint="nothing of the batch is committed; fix the cause and start the pipeline again",
                    ) from error
                self._servers.ensure(f"batch {planned.batch} failed: {cause}", only=self.query.name)
        self._finish(planned)
        figures = self._figures()
        if any(task["state"] != "running" for task in figures):
            # The batch is committed; a task that could not apply it recovers now, not when the next batch comes.
            self._servers.ensure(f"batch {planned.batch} was not applied", only=self.query.name)
            figures = self._figures()
        self._report(planned, staged, figures, time.monotonic() - started, commit_seconds)

    def _stage(self, query: Query, planned: Planned, frame: DataFrame) -> StagedBatch:
        """3 Stage."""
        job = self._jobs.get(planned.plan)
        if job is None:
            job = self._jobs[planned.plan] = job_of(query)
        exchange = Exchange(query.name, planned.batch, self._servers.sockets(query.name))
        self._log.info("staging", batch=planned.batch)
        staged = job.run(frame, exchange)
        self._log.info("staged", batch=planned.batch, records=staged.records)
        reach("driver.job-done")
        return staged

    def _commit(self, planned: Planned, staged: StagedBatch) -> None:
        """4 Commit: every task that has rows, at once. Those that fail run again; those that are done answer so."""
        waiting = [
            self._commits.submit(
                self._servers.commit,
                f"{self.query.name}-{result.task}",
                batch=planned.batch,
                attempt=result.attempt,
                plan=planned.plan,
                ends={str(r.partition): r.end for r in planned.ranges},
            )
            for result in staged.results
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

    def _finish(self, planned: Planned) -> None:
        """6 Finish."""

        def finish(producer: TransactionalProducer) -> None:
            value = encode_fields(batch=planned.batch)
            producer.produce(
                self.deployed.batches_topic, key=DONE, value=value, partition=self._log_reader.driver_partition
            )
            offsets = {(r.topic, r.partition): r.end for r in planned.ranges}
            producer.send_offsets(names.group(self.deployed.pipeline, self.query.name), offsets)
            reach("driver.before-done-commit")

        self._in_transaction(finish)
        reach("driver.done")

    def _in_transaction(self, work: Callable[[TransactionalProducer], None]) -> None:
        """Run `work` in one transaction of the driver's id, again where it was aborted or its outcome is unknown.

        What drivers write is the same when it is written twice. Raises `Fenced` if a newer driver has started.
        """
        for attempt in range(1, self._settings.batch_attempts + 1):
            assert self._producer is not None
            try:
                self._producer.begin()
                work(self._producer)
                self._producer.flush()
                self._producer.commit()
                return
            except TransactionAborted as error:
                self._log.warning("driver transaction aborted", attempt=attempt, error=str(error))
            except (ProducerFatal, Unavailable) as error:
                self._log.warning("driver producer lost", attempt=attempt, error=str(error))
                self._producer.close()
                require_newest(self._log_reader, self.epoch, self.query.name)
                driver_id = names.driver_id(self.deployed.pipeline, self.query.name)
                self._producer = TransactionalProducer(self._kafka, driver_id)
                self._producer.init()
                require_newest(self._log_reader, self.epoch, self.query.name)
        raise Unavailable("driver could not commit to the batches topic", query=self.query.name)

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
            bad_records=staged.bad_records,
            late_records=sum(result.dropped for result in staged.results),
            changed_keys=sum(result.rows for result in staged.results) - staged.bad_records,
            seconds=seconds,
            commit_seconds=commit_seconds,
            lag=self._lag,
            state_keys=sum(task.get("keys", 0) for task in figures),
            state_bytes=sum(task.get("bytes", 0) for task in figures),
            offsets={str(r.partition): [r.start, r.end] for r in planned.ranges},
        )
        self._log.info(
            "batch done", batch=done.batch, records=done.records, bad=done.bad_records, seconds=round(seconds, 3)
        )
        self._on_done(done)

    def _figures(self) -> list[dict[str, Any]]:
        try:
            return self._servers.figures(self.query.name)
        except Unavailable as error:
            # A server that has died meanwhile is replaced by the next batch.
            self._log.warning("figures are incomplete", error=str(error))
            return []

    def lags(self) -> dict[int, int]:
        """Records of each source partition that no planned batch holds; empty before the query is owned."""
        if self._source is None:
            return {}
        ends = self._admin.ends(self._source.name, partitions=self._source.partitions)
        planned = self._ends
        return {partition: end - planned.get(partition, 0) for partition, end in ends.items()}

    # The live stream.

    def start(self, *, until_end: bool) -> StreamingQuery:
        """Start Structured Streaming where the batches end. With `until_end` it ends with what is present now."""
        assert self._source is not None
        begins = self._admin.begins(self._source.name, partitions=self._source.partitions)
        if not self._ends:
            self._ends = begins
        self._lost = self._deleted({p: self._ends.get(p, 0) for p in begins})
        self._ends |= {lost.partition: lost.end for lost in self._lost}
        shutil.rmtree(self._checkpoint, ignore_errors=True)
        options = kafka_options(self._kafka.bootstrap_servers, self._source.name, self._kafka.client)
        starting = {self._source.name: {str(p): self._ends.get(p, 0) for p in begins}}
        frame = (
            self.session.readStream.format("kafka")
            .options(**options)
            .option("startingOffsets", json.dumps(starting))
            .option("maxOffsetsPerTrigger", self._settings.max_records_per_batch)
            .load()
        )
        writer = frame.writeStream.foreachBatch(self._on_batch).queryName(f"{self.deployed.pipeline}.{self.query.name}")
        writer = writer.option("checkpointLocation", str(self._checkpoint))
        interval = f"{int(self._settings.batch_interval_s * 1000)} milliseconds"
        writer = writer.trigger(availableNow=True) if until_end else writer.trigger(processingTime=interval)
        return writer.start()

    def _deleted(self, starts: dict[int, int]) -> tuple[Range, ...]:
        """Source records from `starts` on that are gone. Raises `Unrecoverable` unless the operator accepts the loss."""
        assert self._source is not None
        topic, begins = self._source, self._admin.begins(self._source.name, partitions=self._source.partitions)
        lost = tuple(
            Range(topic.name, topic.topic_id, partition, start, begins[partition])
            for partition, start in starts.items()
            if start < begins.get(partition, 0)
        )
        for gone in lost:
            if not self._settings.accept_loss:
                raise Unrecoverable(
                    "source records were deleted before they were read",
                    topic=gone.topic,
                    partition=gone.partition,
                    lost_from=gone.start,
                    lost_to=gone.end,
                    hint="restore them and raise the topic's retention; to go on without them start with --accept-loss",
                )
            self._log.error("source records are lost, as accepted", lost=asdict(gone))
        return lost

    def quiesce(self) -> None:
        """Return when no batch is running and none will begin, or after `_QUIESCE_S` if one hangs."""
        self.stopping.set()
        if not self._running.acquire(timeout=_QUIESCE_S):
            raise Unavailable("a batch did not end in time", query=self.query.name, seconds=_QUIESCE_S)
        self._running.release()

    def close(self) -> None:
        """Forget the producer."""
        self._commits.shutdown(wait=False)
        if self._producer is not None:
            self._producer.close()


def _cause(error: BaseException) -> str:
    """The line of a Spark error that says what happened."""
    if isinstance(error, RollforwardError):
        return str(error)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if line.startswith("statestore.errors.") or "RAISE_ERROR" in line.upper()]
    return (telling or lines or [type(error).__name__])[-1 if telling else 0][:500]
