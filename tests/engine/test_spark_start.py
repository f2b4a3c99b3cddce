"""Spark that starts when it is first needed: a pipeline of small batches has no JVM, and one that needs it gets it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import MagicMock

import psutil
import pytest

from pipelines.engine import spark
from pipelines.engine.spark import SparkNotStarted, SparkStart
from statestore.errors import Unavailable
from statestore.failpoints import arm, is_armed
from tests.crash.conftest import Start, deploy, feed
from tests.support.feed import Feed
from tests.support.pipeline import PipelineUnderTest
from tests.support.stores import all_differences
from tests.support.waiting import await_

__all__ = ["deploy", "feed"]
SMALL = {"spark_start": "when-needed", "small_batch_records": 1_000}


@pytest.fixture
def pipeline(deploy: Start) -> PipelineUnderTest:
    return deploy(**SMALL)


def test_small_batches_need_no_jvm_and_a_backlog_gets_one(
    pipeline: PipelineUnderTest, feed: Feed, points: Path
) -> None:
    pipeline.start()
    pipeline.await_running()
    feed.send(400)
    pipeline.await_("input is processed", pipeline.caught_up(feed.sent))
    # A batch whose server dies is tried again without it, too.
    for point in ("stage.closed", "commit.begun"):
        arm(points, point)
        feed.send(200)
        pipeline.await_(f"{point} fires", lambda point=point: not is_armed(points, point))  # type: ignore[misc]
        pipeline.await_("input is processed", pipeline.caught_up(feed.sent))
    assert pipeline.jvms() == []
    pipeline.kill_driver()
    # More than a small batch: it is worked at from the first moment, and Spark starts beside.
    feed.send(3_000)
    pipeline.start()
    pipeline.await_("spark is up", lambda: "spark is up" in pipeline.log.read_text())
    assert len(pipeline.jvms()) == 1
    pipeline.await_("the backlog is processed", pipeline.caught_up(feed.sent))
    assert pipeline.stop() == 0
    assert all_differences(pipeline, feed) == []


def test_a_spark_that_does_not_start_ends_the_driver_and_is_named(pipeline: PipelineUnderTest, feed: Feed) -> None:
    pipeline.settings = pipeline.settings.model_copy(update={"java_home": Path("/nonexistent")})
    process = pipeline.start()
    pipeline.await_running()
    feed.send(400)
    pipeline.await_("input is processed", pipeline.caught_up(feed.sent))
    assert pipeline.process is process
    pipeline.kill_driver()
    feed.send(3_000)
    assert pipeline.start().wait(60) == 4
    row = pipeline.registry.driver(pipeline.name)
    assert row is not None and row.state == "failed" and "JAVA_GATEWAY_EXITED" in row.error
    pipeline.await_no_orphans()


def test_a_stop_does_not_wait_for_a_spark_that_hangs_as_it_starts(
    pipeline: PipelineUnderTest, feed: Feed, tmp_path: Path
) -> None:
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\nsleep 1000\n")
    java.chmod(0o755)
    pipeline.settings = pipeline.settings.model_copy(update={"java_home": java.parents[1]})
    feed.send(3_000)
    pipeline.start()
    # Meanwhile small batches go on.
    pipeline.await_("the backlog is processed", pipeline.caught_up(feed.sent))
    assert pipeline.process is not None
    started = [
        child for child in psutil.Process(pipeline.process.pid).children(recursive=True) if "sleep" in child.name()
    ]
    assert len(started) == 1
    assert pipeline.stop(30) == 0
    assert all_differences(pipeline, feed) == []


def test_it_starts_once_and_tells_so_once() -> None:
    session, may_start, starts = MagicMock(), threading.Event(), []

    def start() -> MagicMock:
        starts.append(1)
        assert may_start.wait(20)
        return session

    found = SparkStart(start)
    assert (None, False) == (found.news(), found.is_awaited)
    found.ask()
    found.ask()
    assert (None, True) == (found.news(), found.is_awaited)
    may_start.set()
    assert found.session() is session
    assert (session, None, False) == (found.news(), found.news(), found.is_awaited)
    assert [1] == starts


def test_whoever_waits_for_one_that_fails_learns_why() -> None:
    def start() -> MagicMock:
        raise Unavailable("no java")

    found = SparkStart(start)
    for waits in (found.session, found.session, found.news):
        with pytest.raises(Unavailable, match="no java"):
            waits()
    assert found.news() is None


def test_one_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark, "_START_S", 0.0)
    may_end = threading.Event()
    found = SparkStart(lambda: MagicMock(may_end.wait(20)))
    for waits in (found.session, found.news):
        with pytest.raises(SparkNotStarted, match="it takes too long"):
            waits()
    assert (None, False) == (found.news(), found.is_awaited)
    may_end.set()


def test_nobody_waits_for_one_that_is_given_up() -> None:
    may_end = threading.Event()
    found = SparkStart(lambda: MagicMock(may_end.wait(20)))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(found.session)
        await_("the start", lambda: found.is_awaited, 10)
        found.give_up()
        with pytest.raises(SparkNotStarted, match="the driver ends"):
            waiting.result(10)
    may_end.set()


def test_one_that_is_given_up_does_not_start_any_more() -> None:
    starts: list[int] = []
    found = SparkStart(lambda: MagicMock(starts.append(1)))
    found.give_up()
    with pytest.raises(SparkNotStarted):
        found.session()
    assert [] == starts
