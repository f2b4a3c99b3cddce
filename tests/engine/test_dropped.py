"""A driver whose pipeline is dropped ends, also where it has not seen that it was to stop before."""

from __future__ import annotations

import pytest

from pipelines.metastore.embedded import execute, want
from pipelines.metastore.statement import drop_pipeline
from pipelines.registry import STOPPED
from pipelines.settings import Settings
from tests.support.feed import SQL, create_topic
from tests.support.pipeline import PipelineUnderTest
from tests.support.waiting import await_


@pytest.mark.timeout(300)
def test_a_driver_ends_with_its_pipeline(settings: Settings, kafka: str, unique: str) -> None:
    create_topic(kafka, unique)
    pipeline = PipelineUnderTest(settings, unique, SQL.format(topic=unique))
    try:
        process = pipeline.start()
        pipeline.await_running()
        # Both between two of its heartbeats, most often.
        want(unique, STOPPED, settings, pipeline.registry)
        execute(drop_pipeline(unique), settings)
        code = await_("the driver's end", lambda: (process.poll(),) if process.poll() is not None else None, 60)
        assert code == (0,), pipeline.tail()
        pipeline.await_no_orphans()
    finally:
        pipeline.close()
