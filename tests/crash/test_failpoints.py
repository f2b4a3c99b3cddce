"""SIGKILL at every step of the protocol: outputs, stores and dead letters equal the model each time.

Server points are met by one driver that replaces its servers; driver points each end a driver, and the test starts
the next one. The input is seeded; the model is a dict. The canaries show that a broken protocol would be noticed.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from statestore.failpoints import DRIVER_POINTS, SERVER_POINTS, SMALL_POINTS, WORKER_POINTS, arm, is_armed
from tests.crash.conftest import DRIVERS, SMALL_BATCHES, Start
from tests.support.feed import Feed, differences
from tests.support.pipeline import PipelineUnderTest
from tests.support.stores import all_differences, store_differences

# What is met by the servers that take a killed one's place, one after the other. A point of recovery needs something to
# replay: a batch that was committed and not applied.
_BEHIND = {
    "stage.closed": tuple(point for point in SERVER_POINTS if point.startswith("own.")),
    "commit.committed": tuple(point for point in SERVER_POINTS if point.startswith("recover.")),
}
SERVER_KILLS = tuple(
    (point, *_BEHIND.get(point, ())) for point in SERVER_POINTS if not point.startswith(("own.", "recover."))
)


def started(deploy: Start, feed: Feed, **options: object) -> PipelineUnderTest:
    """A running pipeline that has processed its first records."""
    pipeline = deploy(**SMALL_BATCHES, **options)
    pipeline.start()
    pipeline.await_running()
    feed.send(300)
    pipeline.await_("first input is processed", pipeline.caught_up(feed.sent))
    return pipeline


def fire(pipeline: PipelineUnderTest, feed: Feed, points: Path, *fired: str) -> None:
    """Send input until each point has killed a process and the input has been processed all the same."""
    for point in fired:
        arm(points, point)
    # It is met when a whole batch waits behind the one under way.
    feed.send(400 if "driver.ahead" in fired else 150)
    if "driver.owned" in fired:
        # Only a driver that starts meets it.
        pipeline.kill_driver()
        pipeline.start()
    pipeline.await_(f"{fired} fire", lambda: not any(is_armed(points, point) for point in fired))
    # A batch whose driver died behind "done" is never reported, so there has to be another one.
    feed.send(50)
    pipeline.await_("input is processed", pipeline.caught_up(feed.sent))


# Of each kind, where Spark's batch differs from one that the driver computes itself.
SPARKS_OWN = (("stage.in-stream",), ("commit.in-produce",), ("apply.before-write",), WORKER_POINTS)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("at", "small"),
    [
        (SERVER_KILLS, True),
        (SPARKS_OWN, False),
        pytest.param((*SERVER_KILLS, WORKER_POINTS), False, marks=pytest.mark.slow),
    ],
    ids=["servers", "sparks", "all of sparks"],
)
def test_killed_server_or_worker_at_every_step_changes_nothing(
    deploy: Start, feed: Feed, points: Path, at: tuple[tuple[str, ...], ...], small: bool
) -> None:
    pipeline = started(deploy, feed, **(DRIVERS if small else {}))
    for killed in at:
        fire(pipeline, feed, points, *killed)
        assert store_differences(pipeline, feed) == [], killed
    assert all_differences(pipeline, feed) == []
    # A batch of bad records alone whose tasks have committed changes nothing when it runs again, and that is no error.
    driver, feed.bad_every = pipeline.process, 1
    fire(pipeline, feed, points, "commit.committed")
    assert pipeline.process is driver, pipeline.tail()
    assert pipeline.stop() == 0
    assert store_differences(pipeline, feed) == []


@pytest.mark.timeout(900)
def test_killed_in_the_driver_s_part_of_a_batch_changes_nothing(deploy: Start, feed: Feed, points: Path) -> None:
    feed.bad_every = 10**9
    pipeline = started(deploy, feed, small_batch_records=1_000)
    # Where it computes a batch itself a worker's points are its own.
    for point in (*WORKER_POINTS, "driver.job-done"):
        if point == "driver.job-done":
            # The driver behind the last of these kills has Spark from its start.
            pipeline.settings = pipeline.settings.model_copy(update={"spark_start": "at-once"})
        fire(pipeline, feed, points, point)
        assert store_differences(pipeline, feed) == [], point

    def failed_is_tried_by_spark() -> bool:
        fire(pipeline, feed, points, "commit.begun")
        return '"event": "staging"' in pipeline.log.read_text()

    # Once that is warm.
    pipeline.await_("what has failed is tried by spark", failed_is_tried_by_spark)
    # Bad records too.
    feed.bad_every = 50
    feed.send(400)
    pipeline.await_("input is processed", pipeline.caught_up(feed.sent))
    assert all_differences(pipeline, feed) == []
    told = pipeline.log.read_text()
    assert "staged without spark" in told
    # The JVM was launched, workers were started and the job was tried before any of them was needed.
    assert "step was not taken ahead" not in told


def batches_of(pipeline: PipelineUnderTest, event: str) -> list[int]:
    """The batches of which the log tells that, in its order."""
    told = [json.loads(line) for line in pipeline.log.read_text().splitlines() if line.startswith("{")]
    return [entry["batch"] for entry in told if entry.get("event") == event]


def test_a_small_batch_that_has_ended_two_drivers_is_left_to_spark(deploy: Start, feed: Feed, points: Path) -> None:
    pipeline = started(deploy, feed, small_batch_records=1_000)
    # Behind a backlog Spark begins batches ahead as soon as it is up, which may be before all of that is processed.
    before = batches_of(pipeline, "staging")
    (point,) = SMALL_POINTS
    arm(points, point)
    feed.send(40)
    pipeline.await_(f"{point} fires", lambda: not is_armed(points, point))
    # The driver that takes up the batch meets it again.
    arm(points, point)
    pipeline.await_(f"{point} fires again", lambda: not is_armed(points, point))
    pipeline.await_("input is processed", pipeline.caught_up(feed.sent))
    (taken_up,) = set(batches_of(pipeline, "finishing planned batch"))
    assert [*before, taken_up] == batches_of(pipeline, "staging")
    assert all_differences(pipeline, feed) == []


# The short form takes those with the hardest outcomes, and batches without Spark, of which each point would cost a start.
SHORT = ("driver.owned", "driver.planned", "driver.some-committed", "driver.before-done-commit")


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("driver_points", "small"), [(SHORT, True), pytest.param(DRIVER_POINTS, False, marks=pytest.mark.slow)]
)
def test_killed_driver_at_a_step_changes_nothing(
    deploy: Start, feed: Feed, points: Path, driver_points: tuple[str, ...], small: bool
) -> None:
    pipeline = started(deploy, feed, **(DRIVERS if small else {}))
    for point in driver_points:
        fire(pipeline, feed, points, point)
    assert all_differences(pipeline, feed) == []


@pytest.mark.parametrize(
    ("canary", "point"),
    [
        ("position_outside_of_the_transaction", "commit.before-begin"),
        ("uncommitted_batch_applied", "stage.closed"),
    ],
)
def test_a_broken_commit_is_noticed(deploy: Start, feed: Feed, points: Path, canary: str, point: str) -> None:
    pipeline = started(deploy, feed, canary=canary, **DRIVERS)
    # Not their digests: positions written by the broken commit have none.
    assert differences(feed.bootstrap, pipeline.name, feed) == []
    fire(pipeline, feed, points, point)
    feed.send(400)
    pipeline.await_("input is processed", pipeline.caught_up(feed.sent))
    assert differences(feed.bootstrap, feed.topic, feed) != []
