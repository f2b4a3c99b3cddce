"""Archiving the source topics of pipelines: which topics those are, one after the other."""

from __future__ import annotations

from ops.environment import Progress
from pipelines.archive import Archived, archive_each, archive_topic
from pipelines.deploy import deployed_queries
from pipelines.registry import Registry
from pipelines.settings import Settings


def source_topics(registry: Registry, pipeline: str | None) -> list[str]:
    """Topics that queries of the pipeline read, or of all, and that no query writes."""
    rows = registry.pipelines()
    read = {q.query.source.topic for row in rows if pipeline in (None, row.name) for q in deployed_queries(row)}
    if pipeline is not None:
        registry.pipeline(pipeline)
    return sorted(read - {q.query.output_topic for row in rows for q in deployed_queries(row)})


def archive_all(topics: list[str], settings: Settings, tell: Progress = lambda _step, _detail: None) -> list[Archived]:
    """Add to the archive what the topics have got since the last time. Safe to run twice, also at once.

    A topic or partition that fails stops none of the others; the first error is raised behind them.
    """

    def one(topic: str) -> list[Archived]:
        kafka, archive, most = settings.kafka_config(), settings.archive_config(), settings.archive_file_records
        return archive_topic(topic, kafka, archive, records_max=most, tell=tell)

    return archive_each(topics, one)
