"""Faults that need a look of their own: a rival, a failing row, a hanging batch, wrong input. The rest: the matrix."""

from __future__ import annotations

import copy
import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pytest

from ops import control
from ops.environment import driver_environment
from pipelines.deploy import deployed_queries
from pipelines.metastore.embedded import deploy as deploy_sql
from pipelines.plan import query_from_json, query_to_json
from pipelines.query import StoreReader
from pipelines.registry import Registry
from pipelines.settings import Settings
from statestore.batches import BatchesLog
from statestore.errors import EXIT_FENCED, InvalidConfig, InvalidInput, Unavailable
from statestore.failpoints import REFUSE_POINTS, arm, is_armed
from statestore.kafka.admin import Admin
from statestore.kafka.reader import Reader
from statestore.store import Isolation
from tests.crash.conftest import DRIVERS, Start
from tests.support.feed import SQL, Feed, create_topic, headers_of, read_topic
from tests.support.metastore import replace_plan
from tests.support.pipeline import PipelineUnderTest
from tests.support.stores import all_differences, store_differences
from tests.support.waiting import await_, require_within


def with_poison(pipeline: PipelineUnderTest, *keys: int) -> None:
    """Make the deployed plan fail on these keys between READ and WRITE."""
    row = pipeline.registry.pipeline(pipeline.name)
    query = query_from_json(row.queries[0]["plan"])
    poisoned = replace(query, having=f"if(`AUCTION` IN {(*keys, -1)}, raise_error('poison'), true)")
    queries = [{**row.queries[0], "plan": query_to_json(poisoned)}, *row.queries[1:]]
    replace_plan(pipeline.registry.engine, pipeline.name, queries)


def planned_and_open(pipeline: PipelineUnderTest) -> None:
    """Return when a batch is planned and not done."""
    log = BatchesLog(Reader(pipeline.settings.kafka_config()), f"{pipeline.name}-totals-batches", tasks=4)

    def is_open() -> bool:
        newest = log.driver_log()
        return newest.planned is not None and newest.planned.batch > newest.done

    pipeline.await_("a batch is open", is_open)


@pytest.mark.parametrize("canary", ["", pytest.param("part_of_a_task_committed", marks=pytest.mark.slow)])
def test_a_row_that_fails_commits_nothing_of_its_batch(deploy: Start, feed: Feed, canary: str) -> None:
    pipeline = deploy(canary=canary, batch_attempts=2, on_error="stop")
    with_poison(pipeline, 13)
    feed.send(4_000)
    assert pipeline.run_until_end() == 4
    row = pipeline.registry.driver(pipeline.name)
    assert row is not None and row.state == "failed"
    committed = [len(read_topic(feed.bootstrap, f"{feed.topic}-{name}")) for name in ("totals", "totals-changelog")]
    if canary:
        # A worker took the failure upstream for the end of its input; the bug committed what it had until then.
        assert committed != [0, 0]
    else:
        assert "poison" in row.error
        assert committed == [0, 0]


@pytest.mark.timeout(600)
def test_records_that_fail_become_dead_letters(deploy: Start, feed: Feed, points: Path) -> None:
    # Undecodable ones beside those that an expression refuses.
    feed.bad_every = 20
    feed.send(60)
    single = [key for key, (n, _, _) in feed.totals.items() if n == 1][:3]
    pipeline = deploy(poisoned_records_max=2)
    with_poison(pipeline, *single)
    for key in single:
        feed.bad.append(json.dumps({"auction": key, "price": feed.totals.pop(key)[1]}).encode())
    # What is refused must be in the log before anything of the batch counts.
    (point,) = REFUSE_POINTS
    arm(points, point)
    assert pipeline.run_until_end(300) == -signal.SIGKILL, pipeline.tail()
    assert not is_armed(points, point)
    assert pipeline.run_until_end() == 0, pipeline.tail()
    assert all_differences(pipeline, feed) == []
    reasons = [headers_of(m)["reason"].decode() for m in read_topic(feed.bootstrap, f"{feed.topic}-dead-letters")]
    assert sum("expression failed" in reason and "poison" in reason for reason in reasons) == 3
    # The first batch ended behind the second of them.
    assert pipeline.batches() == 2


@pytest.mark.timeout(600)
def test_a_stop_gives_a_hanging_batch_up_and_leaves_nothing_to_recover(deploy: Start, feed: Feed) -> None:
    pipeline = deploy(answer_timeout_s=300)
    pipeline.start()
    pipeline.await_running()
    feed.send(500)
    pipeline.await_("first input is processed", pipeline.caught_up(feed.sent))
    (jvm,) = pipeline.jvms()
    for worker in jvm.children(recursive=True):
        worker.suspend()
    feed.send(500)
    planned_and_open(pipeline)
    started = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        stopped = pool.submit(control.stop, pipeline.settings, pipeline.registry, pipeline.name, timeout_s=16)
        # So that nobody who starts it now takes this one for the driver.
        pipeline.await_(
            "the driver says that it is stopping",
            lambda: control.status(pipeline.registry, pipeline.name).state == control.STOPPING,
        )
        assert stopped.result()
    require_within(16, started)
    pipeline.await_no_orphans()
    # A driver that had to be killed would not have said so.
    assert control.status(pipeline.registry, pipeline.name).state == "stopped"
    since = time.time()
    # Whoever runs next needs no Spark for what was left.
    pipeline.settings = pipeline.settings.model_copy(update=DRIVERS)
    assert pipeline.run_until_end() == 0
    assert {row.plan["way"] for row in pipeline.registry.recoveries(pipeline.name, since=since)} == {"nothing"}
    assert all_differences(pipeline, feed) == []


def test_a_stop_does_not_wait_for_a_store_that_is_being_recovered(deploy: Start, feed: Feed, points: Path) -> None:
    pipeline = deploy(**DRIVERS, answer_timeout_s=300)
    feed.send(500)
    assert pipeline.run_until_end() == 0, pipeline.tail()
    shutil.rmtree(pipeline.settings.states)
    arm(points, "recover.before-replay", with_signal="SIGSTOP")
    pipeline.start()
    pipeline.await_("a server stops in its recovery", lambda: not is_armed(points, "recover.before-replay"))
    assert pipeline.stop(30) == 0, pipeline.tail()
    assert control.status(pipeline.registry, pipeline.name).state == "stopped"
    assert pipeline.run_until_end() == 0, pipeline.tail()
    assert all_differences(pipeline, feed) == []


def test_what_the_last_batch_of_a_stop_fails_of_is_told(deploy: Start, feed: Feed) -> None:
    pipeline = deploy(on_error="stop")
    with_poison(pipeline, 13)
    pipeline.start()
    pipeline.await_running()
    feed.send(4_000)
    planned_and_open(pipeline)
    assert pipeline.stop(120) == 4, pipeline.tail()
    row = pipeline.registry.driver(pipeline.name)
    assert row is not None and (row.state, "poison" in row.error) == ("failed", True)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("small", "point"),
    [
        (0, "commit.begun"),
        (30_000, ""),
        pytest.param(0, "", marks=pytest.mark.slow),
        pytest.param(30_000, "commit.begun", marks=pytest.mark.slow),
    ],
)
def test_a_short_stop_does_not_wait_for_a_server_that_hangs(
    deploy: Start, feed: Feed, points: Path, small: int, point: str
) -> None:
    pipeline = deploy(answer_timeout_s=300, small_batch_records=small)
    pipeline.start()
    pipeline.await_running()
    feed.send(500)
    pipeline.await_("first input is processed", pipeline.caught_up(feed.sent))
    if point:
        # One server stops in the middle of its commit, and other tasks may have committed the batch.
        arm(points, point, with_signal="SIGSTOP")
    else:
        for pid in pipeline.server_pids():
            psutil.Process(pid).suspend()
    feed.send(500)
    planned_and_open(pipeline)
    if point:
        pipeline.await_("a server stops in its commit", lambda: not is_armed(points, point))
    started = time.monotonic()
    assert control.stop(pipeline.settings, pipeline.registry, pipeline.name, timeout_s=8)
    require_within(8, started)
    # A driver that had to be killed would not have said so.
    assert control.status(pipeline.registry, pipeline.name).state == "stopped"
    pipeline.await_no_orphans()
    assert pipeline.run_until_end() == 0, pipeline.tail()
    assert all_differences(pipeline, feed) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_long_stop_waits_for_a_batch_that_takes_longer_than_others(deploy: Start, feed: Feed) -> None:
    pipeline = deploy(answer_timeout_s=300)
    pipeline.start()
    pipeline.await_running()
    feed.send(500)
    pipeline.await_("first input is processed", pipeline.caught_up(feed.sent))
    (jvm,) = pipeline.jvms()
    workers = jvm.children(recursive=True)
    for worker in workers:
        worker.suspend()
    feed.send(500)
    planned_and_open(pipeline)
    waking = threading.Timer(65, lambda: [worker.resume() for worker in workers])
    waking.start()
    assert control.stop(pipeline.settings, pipeline.registry, pipeline.name, timeout_s=120)
    assert waking.finished.is_set()
    log = BatchesLog(Reader(pipeline.settings.kafka_config()), f"{pipeline.name}-totals-batches", tasks=4)
    newest = log.driver_log()
    assert newest.planned is not None and newest.done == newest.planned.batch
    pipeline.await_no_orphans()
    assert all_differences(pipeline, feed) == []


def two_queries(feed: Feed, other: Feed) -> str:
    """The feed's query and one like it, `others`, over a topic that is made for the other feed."""
    create_topic(other.bootstrap, other.topic)
    return SQL.format(topic=feed.topic) + SQL.format(topic=other.topic).replace("bids", "asks").replace(
        "totals", "others"
    )


def test_where_one_query_replaces_a_server_the_tasks_of_an_idle_one_are_opened_as_well(
    settings: Settings, kafka: str, feed: Feed
) -> None:
    idle = Feed(kafka, f"{feed.topic}-idle", seed=8)
    pipeline = PipelineUnderTest(settings.model_copy(update=DRIVERS), feed.topic, two_queries(feed, idle))
    readers = [
        StoreReader(deployed, pipeline.settings, pipeline.registry)
        for deployed in deployed_queries(pipeline.registry.pipeline(pipeline.name))
    ]

    def is_right(reader: StoreReader, given: Feed) -> bool:
        with suppress(Unavailable):
            rows = reader.scan(None, None, Isolation.READ_COMMITTED)
            return {row.key["AUCTION"]: row.value for row in rows} == given.expected()
        return False

    busy_is_right, idle_is_right = (partial(is_right, *pair) for pair in zip(readers, (feed, idle), strict=True))
    try:
        pipeline.start()
        for each in (feed, idle):
            each.send(500)
        pipeline.await_("the input of both is in their stores", lambda: busy_is_right() and idle_is_right())
        killed: set[int] = set()
        for pid in pipeline.server_pids():
            killed.add(pid)
            # The busy one's next commit meets it before the driver looks.
            psutil.Process(pid).kill()
            feed.send(200)
            pipeline.await_("the busy one goes on", busy_is_right)
            # Until then the store of a task that is nowhere is read from the disk.
            pipeline.await_("readers know the new server", lambda: set(pipeline.server_pids()).isdisjoint(killed))
            await_("all tasks of the idle one are open", idle_is_right, 10, tail=pipeline.tail)
    finally:
        pipeline.close()


def elsewhere(settings: Settings, folder: Path) -> Settings:
    """Those of another machine: it has the same definitions and none of this one's folders."""
    home = folder / "rival"
    home.mkdir()
    return settings.model_copy(update={"home": home, "metastore_url": settings.metastore})


@pytest.mark.timeout(600)
def test_the_older_of_two_drivers_is_fenced(deploy: Start, feed: Feed, settings: Settings, tmp_path: Path) -> None:
    older = deploy(**DRIVERS)
    older.start()
    older.await_running()
    feed.send(1_000)
    older.await_("first input is processed", older.caught_up(feed.sent))
    rival = PipelineUnderTest(elsewhere(settings, tmp_path), feed.topic, SQL.format(topic=feed.topic))
    try:
        rival.start()
        rival.await_running()
        feed.send(1_000)
        assert older.process is not None
        assert older.process.wait(90) == EXIT_FENCED
        assert "a newer driver owns the query" in older.tail() or "met a newer driver" in older.tail()
        rival.await_("input is processed", rival.caught_up(feed.sent))
        assert all_differences(rival, feed) == []
    finally:
        rival.close()


@pytest.mark.timeout(600)
def test_a_driver_that_slept_between_two_queries_fences_nobody(
    settings: Settings, kafka: str, feed: Feed, points: Path, tmp_path: Path
) -> None:
    other = Feed(kafka, f"{feed.topic}-other", seed=8)
    sql, changed = two_queries(feed, other), settings.model_copy(update=DRIVERS)
    older = PipelineUnderTest(changed, feed.topic, sql, {"ROLLFORWARD_FAILPOINTS": str(points)})
    rival = PipelineUnderTest(elsewhere(changed, tmp_path), feed.topic, sql)
    try:
        arm(points, "driver.before-own", passes=1, with_signal="SIGSTOP")
        asleep = older.start()
        older.await_("the older one sleeps", lambda: not is_armed(points, "driver.before-own"))
        newer = rival.start()
        rival.await_running()
        asleep.send_signal(signal.SIGCONT)
        assert asleep.wait(90) == EXIT_FENCED, older.tail()
        for each in (feed, other):
            each.send(500)
        await_(
            "both go on",
            lambda: newer.poll() is not None or len(rival.registry.newest_batches(rival.name)) == 2,
            tail=rival.tail,
        )
        assert newer.poll() is None, rival.tail()
    finally:
        older.close()
        rival.close()


def test_an_unreachable_broker_at_start_is_named(deploy: Start) -> None:
    pipeline = deploy(**DRIVERS)
    pipeline.settings = pipeline.settings.model_copy(
        update={"bootstrap_servers": "127.0.0.1:1", "request_timeout_s": 1}
    )
    assert pipeline.run_until_end() == 4
    row = pipeline.registry.driver(pipeline.name)
    assert row is not None and row.state == "failed"
    assert "kafka does not answer" in row.error and "127.0.0.1:1" in row.error and "hint" in row.error


def test_a_missing_source_topic_is_named(settings: Settings, unique: str) -> None:
    registry = Registry(settings.metastore)
    with pytest.raises(InvalidConfig, match=f"source topic does not exist.*{unique}_missing"):
        deploy_sql(SQL.format(topic=f"{unique}_missing"), unique, settings, registry)
    assert registry.pipelines() == []


def test_another_definition_under_a_name_in_use_is_refused(settings: Settings, feed: Feed) -> None:
    registry = Registry(settings.metastore)
    sql = SQL.format(topic=feed.topic)
    assert deploy_sql(sql, feed.topic, settings, registry)[1] is True
    assert deploy_sql(sql + " -- the same", feed.topic, settings, registry)[1] is False
    with pytest.raises(InvalidInput, match="other statements"):
        deploy_sql(sql.replace("MAX", "MIN"), feed.topic, settings, registry)


def test_deleted_source_records_stop_the_pipeline_until_their_loss_is_accepted(deploy: Start, feed: Feed) -> None:
    pipeline = deploy(**DRIVERS)
    feed.send(500)
    assert pipeline.run_until_end() == 0
    known = copy.deepcopy((feed.totals, feed.bad))
    begins = Admin(pipeline.settings.kafka_config()).ends(feed.topic, partitions=4)
    feed.send(300)
    ends = feed.delete_all()
    feed.totals, feed.bad = known
    feed.send(200)
    assert pipeline.run_until_end() == 4
    row = pipeline.registry.driver(pipeline.name)
    assert row is not None and "deleted before they were read" in row.error and "--accept-loss" in row.error
    assert all(begins[partition] < end for partition, end in ends.items())
    for partition, end in ends.items():
        assert f"partition {partition} from {begins[partition]} to {end - 1}" in row.error
    # The way that the error names.
    command = [sys.executable, "-m", "ops.cli.main", "run", pipeline.name, "--until-end", "--accept-loss"]
    ran = subprocess.run(
        command, env=driver_environment(pipeline.settings), capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["records"] == 200
    assert all_differences(pipeline, feed) == []
    log = BatchesLog(Reader(pipeline.settings.kafka_config()), f"{pipeline.name}-totals-batches", tasks=4)
    planned = log.driver_log().planned
    assert planned is not None and {lost.partition: (lost.start, lost.end) for lost in planned.lost} == {
        partition: (begins[partition], end) for partition, end in ends.items()
    }


def test_a_committed_batch_needs_its_input_no_more(deploy: Start, feed: Feed, points: Path) -> None:
    pipeline = deploy(**DRIVERS)
    feed.send(500)
    arm(points, "driver.all-committed")
    assert pipeline.run_until_end() == -signal.SIGKILL
    pipeline.await_no_orphans()
    feed.delete_all()
    feed.send(300)
    # Nobody has to accept a loss: there is none.
    assert pipeline.run_until_end() == 0, pipeline.tail()
    assert all_differences(pipeline, feed) == []


def test_reading_a_store_that_is_behind_is_refused(deploy: Start, feed: Feed) -> None:
    pipeline = deploy(**DRIVERS)
    feed.send(500)
    assert pipeline.run_until_end() == 0
    shutil.rmtree(pipeline.settings.states)
    with pytest.raises(Unavailable, match="store is not on this machine"):
        store_differences(pipeline, feed)


def test_null_keys_and_every_kind_of_bad_record_reach_the_dead_letters(deploy: Start, feed: Feed) -> None:
    feed.bad_every = 5
    pipeline = deploy(**DRIVERS)
    feed.send(500)
    assert pipeline.run_until_end() == 0
    assert all_differences(pipeline, feed) == []
    letters = read_topic(feed.bootstrap, f"{feed.topic}-dead-letters")
    for letter in letters:
        headers = headers_of(letter)
        assert headers["source-topic"].decode() == feed.topic and headers["reason"]
        json.loads(headers["source-offset"]), json.loads(headers["source-partition"])
