"""Windows and results of every record, computed again by real drivers after going back, and by a clone."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace

import pytest

from pipelines.clone import clone
from pipelines.deploy import DeployedQuery, deployed_queries
from pipelines.past import past_version
from pipelines.plan import EVERY_RECORD
from pipelines.rewind import rewind
from pipelines.settings import Settings
from tests.support.feed import create_topic
from tests.support.pipeline import PipelineUnderTest
from tests.support.windows import QUERIES, SQL, WindowFeed


def of_clone(feed: WindowFeed, pipeline: PipelineUnderTest) -> WindowFeed:
    """The same input and models, for the clone's tables."""
    theirs = copy.copy(feed)
    theirs.pipeline = pipeline
    deployed = deployed_queries(pipeline.registry.pipeline(pipeline.name))
    theirs.models = {one.query.name: replace(feed.models[one.query.name], deployed=one) for one in deployed}
    return theirs


def committed_at(deployed: DeployedQuery, settings: Settings, *, batch: int) -> int:
    """When all tasks had committed a batch, in ms."""
    with past_version(deployed, settings, batch=batch) as version:
        steps = [task.known.at(batch) for task in version.cut.tasks]
        return max(step.at_ms for step in steps if step is not None)


@pytest.fixture
def closes() -> Iterator[ExitStack]:
    """Ends the drivers that still run."""
    with ExitStack() as stack:
        yield stack


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_windows_and_every_record_s_results_come_again(
    settings: Settings, kafka: str, unique: str, closes: ExitStack
) -> None:
    create_topic(kafka, unique, partitions=1)
    settings = settings.model_copy(update={"tasks": 2, "max_records_per_batch": 60})
    sql = SQL.format(topic=unique)
    pipeline = closes.enter_context(closing(PipelineUnderTest(settings, unique, sql)))
    feed = WindowFeed(kafka, pipeline, seed=5)
    feed.send(600)
    assert 0 == pipeline.run_until_end(900)
    assert [] == feed.differences()

    row = pipeline.registry.pipeline(unique)
    deployed = deployed_queries(row)
    then = committed_at(deployed[0], settings, batch=4)

    # Records are cut into other batches the second time.
    settings = settings.model_copy(update={"max_records_per_batch": 250})
    assert 3 == len(clone(row, f"{unique}_copy", settings, pipeline.registry, batch=None, at_ms=then))
    for one in deployed:
        assert rewind(one, settings, pipeline.registry, batch=None, at_ms=then).offsets_again > 0
    feed.send(100)
    pipeline.settings = settings
    assert 0 == pipeline.run_until_end(900)
    feed.again = True
    assert [] == feed.differences()

    copied = closes.enter_context(closing(PipelineUnderTest(settings, f"{unique}_copy", sql)))
    assert 0 == copied.run_until_end(900)
    theirs = of_clone(feed, copied)
    for name in QUERIES:
        assert [] == theirs.unlike_stores(name)
        assert theirs.orders(name) == feed.orders(name)
        expected = theirs.models[name].results
        every = theirs.models[name].deployed.query.emission == EVERY_RECORD
        results = theirs.results(name)
        assert results
        for cell, found_of_cell in results.items():
            last = len(found_of_cell) if every else 1
            assert expected[cell][-last:] == found_of_cell[-last:], (name, cell)
