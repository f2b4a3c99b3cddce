"""Windows and results of every record across SIGKILL: results, stores, stream time and late records equal the model."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.settings import Settings
from statestore.failpoints import DRIVER_POINTS, SERVER_POINTS, STORE_POINTS, arm, is_armed
from tests.crash.conftest import SMALL_BATCHES
from tests.support.feed import create_topic
from tests.support.pipeline import PipelineUnderTest
from tests.support.windows import SQL, WindowFeed


@pytest.fixture
def pipeline(
    settings: Settings, kafka: str, unique: str, points: Path, request: pytest.FixtureRequest
) -> Iterator[PipelineUnderTest]:
    create_topic(kafka, unique, partitions=getattr(request, "param", 1))
    environment = {"ROLLFORWARD_FAILPOINTS": str(points)}
    deployed = PipelineUnderTest(
        settings.model_copy(update={"tasks": 2, **SMALL_BATCHES}), unique, SQL.format(topic=unique), environment
    )
    yield deployed
    deployed.close()


# The third is met between the write that applies a batch and the deletion of what has expired.
SHORT = ("commit.position-sent", "apply.before-write", "indexed.dropped", "driver.some-committed")
_PARTS = ("stage", "commit", "indexed", "apply", "drop", "driver")
_LONG = tuple(p for p in (*SERVER_POINTS, *STORE_POINTS, *DRIVER_POINTS) if p.partition(".")[0] in _PARTS)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("killed_at", [SHORT, pytest.param(_LONG, marks=pytest.mark.slow)])
def test_killed_at_a_step_windows_and_running_results_stay_what_they_are(
    pipeline: PipelineUnderTest, kafka: str, points: Path, killed_at: tuple[str, ...]
) -> None:
    feed = WindowFeed(kafka, pipeline, seed=11)
    feed.send(300)
    pipeline.start()
    pipeline.await_("first input is processed", feed.caught_up)
    for point in killed_at:
        arm(points, point)
        feed.send(200)
        if point == "driver.owned":
            pipeline.kill_driver()
            pipeline.start()
        pipeline.await_(f"{point} fires", lambda point=point: not is_armed(points, point))  # type: ignore[misc]
        # A batch whose driver died behind "done" is never reported, so there has to be another one.
        feed.send(30)
        pipeline.await_("input is processed", feed.caught_up)
    assert [] == feed.differences()

    # Without the local folder everything comes back from Kafka, the stream time too: what was late is late again.
    assert 0 == pipeline.stop()
    before = {name: feed.orders(name) for name in feed.models}
    shutil.rmtree(pipeline.settings.states)
    shutil.rmtree(pipeline.settings.home / "snapshots", ignore_errors=True)
    feed.send(200)
    pipeline.start()
    pipeline.await_("input after the loss is processed", feed.caught_up)
    assert [] == feed.differences()
    for name in ("hops", "tumbles"):
        assert all(order.dropped >= before[name][task].dropped > 0 for task, order in feed.orders(name).items())


@pytest.mark.timeout(900)
@pytest.mark.parametrize("pipeline", [2], indirect=True, ids=["two-partitions"])
def test_a_backlog_in_small_batches_with_a_kill_between_them_is_what_one_batch_makes_of_it(
    pipeline: PipelineUnderTest, kafka: str, points: Path
) -> None:
    feed = WindowFeed(kafka, pipeline, seed=3)
    feed.send_uneven(1_200)
    arm(points, "commit.position-sent")
    pipeline.start()
    pipeline.await_("a server dies", lambda: not is_armed(points, "commit.position-sent"))
    pipeline.await_("input is processed", feed.caught_up)
    # Windows are what the order counts for: `running` takes its part of each partition.
    assert [] == feed.differences(("hops", "tumbles"))
    assert all(feed.models[name].dropped == 0 for name in ("hops", "tumbles"))
