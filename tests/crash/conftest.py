"""A feed and a pipeline for each crash test."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from pipelines.settings import Settings
from tests.support.feed import SQL, Feed, create_topic
from tests.support.pipeline import PipelineUnderTest

CANARIES = Path(__file__).parents[1] / "support" / "canary"
# So small that at nearly every commit the next batch's job is under way.
SMALL_BATCHES = {"max_records_per_batch": 60}
# Of what crashes here most is Spark's: batches that the driver computes itself are asked for.
SPARKS = {"small_batch_records": 0}
# And those that need no Spark, where it has no part in what is looked at: each of its starts costs ten seconds of CPU.
DRIVERS = {"small_batch_records": 30_000}
Start = Callable[..., PipelineUnderTest]
# Limits of time, by class: their texts, such as the end of a log, say nothing.
LIMITS = [TimeoutError, subprocess.TimeoutExpired, psutil.TimeoutExpired]


@pytest.fixture
def feed(kafka: str, unique: str) -> Feed:
    """Seeded input on a topic of its own."""
    create_topic(kafka, unique)
    return Feed(kafka, unique, seed=7)


@pytest.fixture
def deploy(settings: Settings, feed: Feed, points: Path) -> Iterator[Start]:
    """Deploys the feed's pipeline; `canary` names a bug that its store servers shall have."""
    deployed: list[PipelineUnderTest] = []

    def deploy(*, canary: str = "", **changed: object) -> PipelineUnderTest:
        environment = {"ROLLFORWARD_FAILPOINTS": str(points)}
        if canary:
            # The bug is put in before the working directory is on the path, so this very tree has to be named.
            environment |= {"ROLLFORWARD_CANARY": canary, "PYTHONPATH": f"{CANARIES}{os.pathsep}{CANARIES.parents[2]}"}
        pipeline = PipelineUnderTest(
            settings.model_copy(update={**SPARKS, **changed}), feed.topic, SQL.format(topic=feed.topic), environment
        )
        deployed.append(pipeline)
        return pipeline

    yield deploy
    for pipeline in deployed:
        pipeline.close()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A wrong result after a crash is never tried again, only what did not happen in time: see `make test`."""
    if config.getoption("reruns"):
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(pytest.mark.flaky(reruns=1, only_rerun=LIMITS))
