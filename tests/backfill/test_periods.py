"""How queries are grouped by time, and what turns one version of a period into another. Without Spark and Kafka."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from ops.backfill import require_whole
from ops.dagster.backfill import backfill_assets
from ops.dagster.deployed import Deployed
from pipelines.engine.recompute import Compared, compare
from pipelines.engine.recomputing import planned_recompute
from pipelines.periods import DAY_MS, HOUR_MS, time_group
from pipelines.plan import Query
from pipelines.recomputes import RecomputeRow
from pipelines.sql import parse_pipeline
from statestore.batches import Range
from statestore.errors import InvalidInput
from statestore.staging import DELETED, EMIT_TOMBSTONE, EMIT_VALUE

STREAM = (
    "CREATE STREAM s (a VARCHAR KEY, n INT, d DATE, t TIMESTAMP, year INT, month INT, day INT)"
    " WITH (kafka_topic='x', value_format='json');"
)
MARCH = 20_513 * DAY_MS  # 2026-03-01


def query(group: str, window: str = "") -> Query:
    head = "CREATE TABLE q WITH (key_format='json') AS SELECT"
    sql = f"{STREAM} {head} a, {group}, COUNT(*) AS c FROM s {window} GROUP BY a, {group} EMIT CHANGES;"
    return parse_pipeline(sql, pipeline="p").queries[0]


@pytest.mark.parametrize(
    ("group", "key", "step_ms", "of_record"),
    [
        ("d", {"D": 20_513}, DAY_MS, False),
        ("t", {"T": MARCH}, 1, False),
        ("TIMESTAMPTOSTRING(ROWTIME, 'yyyy-MM-dd')", {"KSQL_COL_0": "2026-03-01"}, DAY_MS, True),
        ("TIMESTAMPTOSTRING(ROWTIME, 'yyyy-MM-dd HH', 'Asia/Tokyo')", {"KSQL_COL_0": "2026-03-01 00"}, HOUR_MS, True),
        ("FORMAT_DATE(d, 'yyyy-MM-dd')", {"KSQL_COL_0": "2026-03-01"}, DAY_MS, False),
        ("year, month, day", {"YEAR": 2026, "MONTH": 3, "DAY": 1}, DAY_MS, False),
    ],
)
def test_a_date_in_group_by_is_a_time(group: str, key: dict[str, object], step_ms: int, of_record: bool) -> None:
    found = time_group(query(group))
    assert found is not None
    assert (step_ms, of_record, MARCH) == (found.step_ms, found.of_record, found.of_key({"A": "x", **key}))


def test_a_window_is_a_time_and_other_groups_are_none() -> None:
    found = time_group(query("n", "WINDOW TUMBLING (SIZE 1 HOUR, GRACE PERIOD 5 MINUTES)"))
    assert found is not None
    assert (True, 0, 7) == (found.of_record, found.slack_ms, found.of_key({"WINDOWSTART": 7}))
    assert [None, None] == [time_group(query(group)) for group in ("n", "year, month")]
    # No month 13, and no such year: a group of no time is in no period.
    parts = time_group(query("year, month, day"))
    assert parts is not None
    for year, month in ((2026, 13), (2**33, 1), (2**70, 1), (0, 1), (None, 1)):
        assert parts.of_key({"YEAR": year, "MONTH": month, "DAY": 1}) is None


@dataclass
class Offsets:
    """A source whose partition begins at 0 and has a record of each ms from 1970 on; it remembers what times were asked."""

    asked: list[int] = field(default_factory=list)

    def is_compacted(self) -> bool:
        return False

    def begins(self) -> dict[int, int]:
        return {0: 0}

    def at_time(self, time_ms: int) -> dict[int, int]:
        self.asked.append(time_ms)
        return {0: time_ms}

    def range(self, partition: int, start: int, end: int) -> Range:
        return Range("x", "id", partition, start, end)


@pytest.mark.parametrize(("from_ms", "start"), [(0, 0), (13 * HOUR_MS, 0), (15 * HOUR_MS, HOUR_MS)])
def test_a_period_that_begins_with_1970_begins_with_the_topic(from_ms: int, start: int) -> None:
    source: Any = Offsets()
    row = RecomputeRow(id="r", pipeline="p", query="q", from_ms=from_ms, to_ms=DAY_MS, dry_run=True)
    by_day = query("TIMESTAMPTOSTRING(ROWTIME, 'yyyy-MM-dd')")
    planned = planned_recompute(by_day, row, source, {0: DAY_MS})
    assert ((Range("x", "id", 0, start, DAY_MS),), from_ms) == (planned.ranges, planned.from_ms)
    assert min(source.asked) >= 0


def test_an_aggregation_of_a_table_has_no_periods_to_compute_and_says_why() -> None:
    sql = (
        "CREATE TABLE t (id INT PRIMARY KEY, d DATE, n INT) WITH (kafka_topic='x', value_format='json');"
        "CREATE TABLE q WITH (key_format='json') AS SELECT d, SUM(n) AS total FROM t GROUP BY d EMIT CHANGES;"
    )
    (of_table,) = parse_pipeline(sql, pipeline="p").queries
    assert time_group(of_table) is None
    with pytest.raises(InvalidInput, match="aggregates a table"):
        require_whole(of_table, 0, DAY_MS)
    assert [] == backfill_assets([Deployed("p", sql, 0.0, (), (of_table,))])


def test_what_is_asked_for_are_whole_days_or_hours() -> None:
    require_whole(query("t"), HOUR_MS, 2 * HOUR_MS)
    for group, bounds in (("d", (0, HOUR_MS)), ("t", (0, 1)), ("t", (HOUR_MS, HOUR_MS))):
        with pytest.raises(InvalidInput, match="period"):
            require_whole(query(group), *bounds)


def test_only_what_differs_is_changed() -> None:
    known = {b"same": b"1", b"other": b"1", b"hidden": b"1", b"surplus": b"1"}
    wanted = {
        b"same": (b"1", 5, b"v1"),
        b"other": (b"2", 5, b"v2"),
        b"hidden": (b"2", 5, None),
        b"new": (b"3", 5, b"v3"),
    }
    compared, changes = compare(known, wanted)
    assert Compared(1, 0, keys=4, equal=1, changed=2, added=1, removed=1) == compared
    assert {
        b"hidden": (b"2", EMIT_TOMBSTONE, None),
        b"new": (b"3", EMIT_VALUE, b"v3"),
        b"other": (b"2", EMIT_VALUE, b"v2"),
        b"surplus": (DELETED, EMIT_TOMBSTONE, None),
    } == {row["key"]: (row["state"], row["emit"], row["value"]) for row in changes}
    assert [] == compare({b"same": b"1"}, {b"same": (b"1", 5, b"v1")})[1]


def test_windows_that_no_store_keeps_are_left_as_they_are() -> None:
    old, new = (b"k" + start.to_bytes(8, "big") + bytes(4) for start in (10, 20))
    compared, changes = compare({}, {old: (b"1", 5, b"v"), new: (b"1", 5, b"v")}, readable_from=15)
    assert (1, 1, [new]) == (compared.expired, compared.added, [row["key"] for row in changes])
