"""How long a result's topic keeps its records."""

from __future__ import annotations

from typing import cast

import pytest

from pipelines.resolve import result_settings
from pipelines.sql import parse_pipeline
from statestore.kafka.admin import Admin

WEEK_MS, FOREVER = "604800000", "-1"
STREAM = "CREATE STREAM r {result} AS SELECT k, at FROM s EMIT CHANGES;"
WINDOWED = """
CREATE TABLE r AS SELECT k, COUNT(*) AS n FROM s WINDOW TUMBLING (SIZE 1 HOUR, RETENTION {retention} DAYS)
  GROUP BY k EMIT CHANGES;
"""


class Topics:
    """Topics of one retention."""

    def configs(self, _topic: str) -> dict[str, str]:
        return {"retention.ms": WEEK_MS}


def retention(statement: str, *, timestamp: str = "") -> tuple[str, str]:
    """Of the result of a statement over `s`, whose own times are of the column given: its policy and retention."""
    source = f"CREATE STREAM s (k STRING KEY, at BIGINT) WITH (kafka_topic='s', value_format='json', partitions=1{timestamp});"
    (query,) = parse_pipeline(source + statement, pipeline="p", default_tasks=1).queries
    settings = result_settings(query, cast(Admin, Topics()))
    return settings["cleanup.policy"], settings["retention.ms"]


def test_a_stream_is_kept_as_long_as_its_source_and_a_window_as_long_as_its_store() -> None:
    assert ("delete", WEEK_MS) == retention(STREAM.format(result=""))
    assert ("compact,delete", WEEK_MS) == retention(WINDOWED.format(retention=2))
    assert ("compact,delete", str(9 * 86_400_000)) == retention(WINDOWED.format(retention=9))


@pytest.mark.parametrize("days", [2, 9])
def test_results_whose_times_are_of_a_column_are_not_deleted_by_them(days: int) -> None:
    """A broker deletes by the times of records, and those of a column may be long ago when they are written."""
    of_source = ", timestamp='at'"
    assert ("delete", FOREVER) == retention(STREAM.format(result="WITH (timestamp='at')"))
    assert ("delete", FOREVER) == retention(STREAM.format(result=""), timestamp=of_source)
    assert ("compact,delete", FOREVER) == retention(WINDOWED.format(retention=days), timestamp=of_source)
