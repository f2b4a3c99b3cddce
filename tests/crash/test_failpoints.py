"""SIGKILL at every step of the protocol: outputs, stores and dead letters equal the model each time.

Server points are met by one driver that replaces its servers; driver points each end a driver, and the test starts
the next one. The input is seeded; the model is a dict.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.deploy import deployed_queries
from pipelines.query import StoreReader
from pipelines.settings import Settings
from statestore.failpoints import DRIVER_POINTS, SERVER_POINTS, arm, is_armed
from statestore.store import Isolation
from tests.support.feed import SQL, Feed, compare, create_topic, differences
from tests.support.pipeline import PipelineUnderTest

# A point of recovery is only met when there is something to replay: a batch that was committed and not applied.
_MADE_BY = {point: "commit.committed" for point in SERVER_POINTS if point.startswith("recover.")} | {
    point: "stage.closed" for point in SERVER_POINTS if point.startswith("own.")
}


@pytest.fixture
def feed(kafka: str, unique: str) -> Feed:
    create_topic(kafka, unique)
    return Feed(kafka, unique, seed=7)


def start_pipeline(settings: Settings, feed: Feed, points: Path) -> PipelineUnderTest:
    """A running pipeline over the feed, with the folder of its failpoints."""
    points.mkdir()
    pipeline = PipelineUnderTest(
        settings, feed.topic, SQL.format(topic=feed.topic), {"ROLLFORWARD_FAILPOINTS": str(points)}
    )
    pipeline.start()
    pipeline.await_running()
    return pipeline


def stores_differ(pipeline: PipelineUnderTest, feed: Feed) -> list[str]:
    """Differences of the stores from the model."""
    (deployed,) = deployed_queries(pipeline.registry.pipeline(pipeline.name))
    reader = StoreReader(deployed, pipeline.settings, pipeline.registry)
    rows = list(reader.scan(None, None, Isolation.READ_COMMITTED))
    found = {row.key["AUCTION"]: row.value for row in rows}
    return compare(found, feed.expected(), "store") + ([] if len(found) == len(rows) else ["a key in two tasks"])


def fire(pipeline: PipelineUnderTest, feed: Feed, points: Path, point: str) -> None:
    """Send input until the point has killed its process and the input has been processed all the same."""
    first = _MADE_BY.get(point)
    if first is not None:
        arm(points, first)
    arm(points, point)
    feed.send(400)
    pipeline.await_(f"{point} fires", lambda: not is_armed(points, point))
    pipeline.await_("input is processed", pipeline.caught_up(feed.sent))


@pytest.mark.timeout(600)
def test_killed_server_at_every_step_changes_nothing(settings: Settings, feed: Feed, tmp_path: Path) -> None:
    points = tmp_path / "points"
    pipeline = start_pipeline(settings, feed, points)
    try:
        feed.send(1_000)
        pipeline.await_("first input is processed", pipeline.caught_up(feed.sent))
        for point in SERVER_POINTS:
            fire(pipeline, feed, points, point)
            assert stores_differ(pipeline, feed) == [], point
        assert differences(feed.bootstrap, feed.topic, feed) == []
        assert pipeline.stop() == 0
        assert stores_differ(pipeline, feed) == []
    finally:
        pipeline.close()


@pytest.mark.timeout(600)
def test_killed_driver_at_every_step_changes_nothing(settings: Settings, feed: Feed, tmp_path: Path) -> None:
    points = tmp_path / "points"
    pipeline = start_pipeline(settings, feed, points)
    try:
        feed.send(1_000)
        pipeline.await_("first input is processed", pipeline.caught_up(feed.sent))
        for point in DRIVER_POINTS:
            fire_driver(pipeline, feed, points, point)
        pipeline.await_("input is processed", pipeline.caught_up(feed.sent))
        assert differences(feed.bootstrap, feed.topic, feed) == []
        assert stores_differ(pipeline, feed) == []
    finally:
        pipeline.close()


def fire_driver(pipeline: PipelineUnderTest, feed: Feed, points: Path, point: str) -> None:
    """Kill a driver at the point; `driver.owned` is only met by a starting one."""
    arm(points, point)
    feed.send(400)
    if point == "driver.owned":
        pipeline.kill_driver()
        pipeline.start()
    pipeline.await_(f"{point} fires", lambda: not is_armed(points, point))
