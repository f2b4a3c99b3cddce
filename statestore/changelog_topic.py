"""The topic of a store's changelog: its name and its configuration, as Kafka Streams sets them.

| store | cleanup.policy | besides |
|---|---|---|
| key-value, plain and timestamped; lists; suppression | compact | |
| window, session | compact,delete | retention.ms = the store's retention and a day |
| window that retains duplicates | delete | retention.ms as above: no two records have one key |
| versioned | compact | min.compaction.lag.ms = the history's retention and a day |

The day (`additional_retention_ms`) is for clocks that differ: the broker deletes by its own. What a deployment sets
for all changelogs goes over these values, what is set for one store's topic goes over both.
"""

from __future__ import annotations

from collections.abc import Mapping

from statestore.windows import MAX_TIME_MS

ADDITIONAL_RETENTION_MS = 24 * 60 * 60 * 1000
# Of every topic whose records have event times. Kafka refuses what is more than an hour ahead of its clock by default:
# one record with such a time in a column of its value could not be written, and would stop its task for good.
EVENT_TIMES = {"message.timestamp.type": "CreateTime", "message.timestamp.after.max.ms": str(MAX_TIME_MS)}


def changelog_topic(application: str, store: str) -> str:
    """The topic's name."""
    return f"{application}-{store}-changelog"


def compacted() -> dict[str, str]:
    """For stores that keep the newest value of a key."""
    return {**EVENT_TIMES, "cleanup.policy": "compact"}


def windowed(
    retention_ms: int, *, retain_duplicates: bool = False, additional_retention_ms: int = ADDITIONAL_RETENTION_MS
) -> dict[str, str]:
    """For window and session stores."""
    policy = "delete" if retain_duplicates else "compact,delete"
    return {**EVENT_TIMES, "cleanup.policy": policy, "retention.ms": _sum(retention_ms, additional_retention_ms)}


def versioned(history_retention_ms: int, *, additional_retention_ms: int = ADDITIONAL_RETENTION_MS) -> dict[str, str]:
    """For versioned stores: old versions of a key must stay readable for the length of the history."""
    lag = _sum(history_retention_ms, additional_retention_ms)
    return {**EVENT_TIMES, "cleanup.policy": "compact", "min.compaction.lag.ms": lag}


def _sum(retention_ms: int, additional_ms: int) -> str:
    return str(min(retention_ms + additional_ms, MAX_TIME_MS))


def configured(
    library: Mapping[str, str], *, everywhere: Mapping[str, str] | None = None, topic: Mapping[str, str] | None = None
) -> dict[str, str]:
    """A topic's configuration: what is set for the topic, else for all topics, else by this library."""
    return {**library, **(everywhere or {}), **(topic or {})}
