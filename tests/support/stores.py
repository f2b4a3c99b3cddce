"""Stores against the model."""

from __future__ import annotations

from ops.verification import Against, verify_all
from pipelines.deploy import deployed_queries
from pipelines.query import StoreReader
from pipelines.registry import PipelineDefinition
from pipelines.settings import Settings
from statestore.store import Isolation
from tests.support.feed import Feed, compare, differences
from tests.support.pipeline import PipelineUnderTest


def store_differences(pipeline: PipelineUnderTest, feed: Feed) -> list[str]:
    """Differences of the stores from the model, read with `read_committed`."""
    (deployed,) = deployed_queries(pipeline.registry.pipeline(pipeline.name))
    reader = StoreReader(deployed, pipeline.settings, pipeline.registry)
    rows = list(reader.scan(None, None, Isolation.READ_COMMITTED))
    found = {row.key["AUCTION"]: row.value for row in rows}
    problems = compare(found, feed.expected(), "store") + ([] if len(found) == len(rows) else ["a key in two tasks"])
    return problems + digest_differences(pipeline)


def digest_differences(pipeline: PipelineUnderTest) -> list[str]:
    """Local stores that are not what was committed with their batch, or of which nobody knows it."""
    return differences_from("digest", pipeline.registry.pipeline(pipeline.name), pipeline.settings)


def differences_from(against: Against, row: PipelineDefinition, settings: Settings) -> list[str]:
    """Local stores that are not what they are compared with, or that could not be compared with it."""
    found = verify_all(row, settings, lambda _task, _detail: None, percent=100, against=against)
    return [f"store differs from its {against}: {one}" for one in found if one.differs or one.against != against]


def all_differences(pipeline: PipelineUnderTest, feed: Feed) -> list[str]:
    """Differences of outputs, dead letters, changelog and stores."""
    return differences(feed.bootstrap, pipeline.name, feed) + store_differences(pipeline, feed)
