"""The rows of a period by Spark are those whose stored keys are of it, whatever pattern the key's text was written with."""

from __future__ import annotations

import string
from datetime import UTC, datetime, timedelta

from pyspark.sql import SparkSession

from pipelines.periods import DAY_MS, HOUR_MS, TimeGroup, time_group
from pipelines.sql import parse_pipeline
from pipelines.sql.error import SqlError

FIRST = datetime(2026, 3, 1, tzinfo=UTC)
# Hours in which text that is cut at a wrong place would be of another hour, of another day, or none.
TIMES_MS = [int((FIRST + timedelta(hours=hour)).timestamp()) * 1000 + 1 for hour in (0, 1, 9, 10, 12, 19, 23, 24, 34)]
# Signs that Spark takes as no part of a pattern are left out.
SIGNS = ("", *(sign for sign in string.punctuation if sign not in "#{}]"), " ", "é", "·")
PATTERNS = [
    *(f"yyyy-MM-dd{sign}HH{rest}" for sign in SIGNS for rest in ("", "mm", ":mm")),
    *(f"yyyy-MM-dd{rest}" for rest in ("''T''HH", "''''HH", "  HH", "hh", " hh", "[ HH]", "DHH", "T")),
]


def grouped_by(pattern: str) -> tuple[str, TimeGroup] | None:
    """The text of the key in Spark SQL, and how it is grouped; None for what is refused as a pattern."""
    key = f"TIMESTAMPTOSTRING(ROWTIME, '{pattern}')"
    sql = (
        "CREATE STREAM s (n INT) WITH (kafka_topic='x', value_format='json');"
        f"CREATE TABLE q AS SELECT {key} AS k, COUNT(*) AS c FROM s GROUP BY {key} EMIT CHANGES;"
    )
    try:
        [query] = parse_pipeline(sql, pipeline="p").queries
    except SqlError:
        return None
    found = time_group(query)
    return None if found is None else (query.group_by[0].expression, found)


def test_rows_and_stored_keys_are_of_the_same_period(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(time_ms,) for time_ms in TIMES_MS], "`ROWTIME` bigint").coalesce(1)
    groups = {pattern: found for pattern in PATTERNS if (found := grouped_by(pattern)) is not None}
    columns = [text for key, group in groups.values() for text in (key, group.expression or "")]
    columns_of_rows = list(zip(*rows.selectExpr(*columns).collect(), strict=True))
    steps = dict[str, int]()
    for number, (pattern, (_, group)) in enumerate(groups.items()):
        steps[pattern] = group.step_ms
        texts, of_rows = columns_of_rows[2 * number : 2 * number + 2]
        expected = [time_ms // group.step_ms * group.step_ms for time_ms in TIMES_MS]
        assert (pattern, expected) == (pattern, list(of_rows))
        assert (pattern, expected) == (pattern, [group.of_key({"K": text}) for text in texts])
    assert [HOUR_MS, HOUR_MS] == [steps["yyyy-MM-dd HH"], steps["yyyy-MM-dd.HH:mm"]]
    assert [DAY_MS, DAY_MS] == [steps["yyyy-MM-ddHH"], steps["yyyy-MM-dd''T''HH"]]
