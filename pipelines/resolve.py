"""What a stateless plan leaves open until its topics are looked at: its tasks, and its result topic's shape."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pipelines.plan import Query
from statestore.changelog_topic import EVENT_TIMES
from statestore.errors import InvalidConfig

if TYPE_CHECKING:
    from statestore.kafka.admin import Admin

MAX_BYTES = "max.message.bytes"
_MAX_BYTES_OF_BROKERS = 1_048_588


def resolved(query: Query, admin: Admin) -> Query:
    """The plan with a task for each source partition, and as many result partitions unless it says otherwise.

    A result topic that exists already, as that of INSERT INTO, keeps its partitions. Raises `InvalidConfig` if the
    source does not exist.
    """
    if not query.stateless or query.tasks:
        return query
    found = admin.describe([query.source.topic, query.output_topic])
    if query.source.topic not in found:
        raise InvalidConfig("source topic does not exist", topic=query.source.topic, query=query.name)
    tasks = found[query.source.topic].partitions
    existing = found.get(query.output_topic)
    partitions = query.output_partitions or (existing.partitions if existing is not None else tasks)
    return replace(query, tasks=tasks, output_partitions=partitions)


def resolved_as(query: Query, deployed: Query) -> Query:
    """The plan with what was left open taken from its deployed form, so that the two can be compared."""
    if not query.stateless:
        return query
    partitions = query.output_partitions or deployed.output_partitions
    return replace(query, tasks=query.tasks or deployed.tasks, output_partitions=partitions)


def result_settings(query: Query, admin: Admin) -> dict[str, str]:
    """Topic settings of the result: a table keeps the newest value of a key, a stream all for as long as its source.

    A windowed table does both, since its keys never end, and keeps a window at least as long as its store does. Brokers
    delete by the times of records: where these are of a column, and may be long ago when they are written, nothing is
    deleted.
    """
    settings = {**EVENT_TIMES, "cleanup.policy": "compact"}
    is_table = not query.stateless or query.changelog
    if is_table and query.window is None and not query.keeps_window:
        return settings
    of_column = query.timestamp is not None or query.source.timestamp is not None
    retention = "-1" if of_column else admin.configs(query.source.topic).get("retention.ms", "-1")
    if not is_table:
        return {**settings, "cleanup.policy": "delete", "retention.ms": retention}
    if query.window is not None and int(retention) >= 0:
        retention = str(max(int(retention), query.window.retention_ms))
    return {**settings, "cleanup.policy": "compact,delete", "retention.ms": retention}


def record_size(query: Query, admin: Admin) -> dict[str, str]:
    """Topic settings for records as large as the source's; none where brokers take them anyway."""
    most = admin.configs(query.source.topic).get(MAX_BYTES, "0")
    return {MAX_BYTES: most} if int(most) > _MAX_BYTES_OF_BROKERS else {}
