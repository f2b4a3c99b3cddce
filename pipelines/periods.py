"""Results that are grouped by time: which period each key is of, in Spark SQL and from a stored key.

A key's time is in ms since 1970, as if its date were one of UTC: the start of its window; a DATE or TIMESTAMP; text that
begins with a date such as `2013-01-31` and perhaps an hour; or three whole numbers named YEAR, MONTH and DAY.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pipelines.plan import GroupKey, Query
from pipelines.sql.names import WINDOW_BOUNDS
from statestore.errors import InvalidInput

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
_DATE_PARTS = ("YEAR", "MONTH", "DAY")
# An hour counts behind one sign that a pattern takes as it is: no letter, and none of `[]{}#'`. Otherwise the text begins with a
# date alone.
_PATTERN = re.compile(r"date_format\((?P<moment>.*), 'yyyy-MM-dd(?P<hour>[^A-Za-z'\[\]{}#\\]HH)?.*'\)")
_OF_ROWTIME = re.compile(r"timestamp_millis\(`ROWTIME`\)|from_utc_timestamp\(timestamp_millis\(`ROWTIME`\), '[^']*'\)")


@dataclass(frozen=True)
class TimeGroup:
    """How a query is grouped by time.

    `expression` is a key's time in Spark SQL over the source's columns; None for windows, whose starts lie up to the
    window's size before the row's time. `step_ms` is how fine the times are at the most. `of_record` says that a record's
    own time is never earlier than its key's by more than `slack_ms`, so that Kafka's time index tells where to begin.
    """

    expression: str | None
    step_ms: int
    of_record: bool
    slack_ms: int
    of_key: Callable[[dict[str, Any]], int | None]

    def rows(self, query: Query, from_ms: int, to_ms: int) -> str:
        """Spark SQL for the source's rows that can belong to keys from `from_ms`, included, to `to_ms`, not included."""
        if self.expression is not None:
            return f"({self.expression}) >= {from_ms} AND ({self.expression}) < {to_ms}"
        assert query.window is not None
        return f"`ROWTIME` >= {from_ms} AND `ROWTIME` < {to_ms + query.window.size_ms}"


def time_group(query: Query) -> TimeGroup | None:
    """How the query is grouped by time; None if it is not, or if it aggregates a table.

    What a table's rows counted for before they changed is in the store alone: from the topic only the newest is known.
    """
    if query.stateless or query.changelog:
        return None
    own_time = query.source.timestamp is None
    if query.window is not None:
        return TimeGroup(None, 1, own_time, 0, lambda key: int(key[WINDOW_BOUNDS[0]]))
    for key in query.group_by:
        found = _of_one(key, own_time=own_time)
        if found is not None:
            return found
    keys = {key.name.upper(): key for key in query.group_by if key.type in ("int", "bigint")}
    return _of_parts(*(keys[part] for part in _DATE_PARTS)) if all(part in keys for part in _DATE_PARTS) else None


def require_time_group(query: Query) -> TimeGroup:
    """How the query is grouped by time. Raises `InvalidInput` if it is not, or if it aggregates a table."""
    found = time_group(query)
    if found is None and query.changelog and not query.stateless:
        raise InvalidInput(
            "query aggregates a table, and periods of such a result cannot be computed again",
            query=query.name,
            table=query.source.name,
            hint="`rollforward reset` computes all of it again",
        )
    if found is None:
        raise InvalidInput(
            "query is not grouped by time, so it has no periods to compute again",
            query=query.name,
            hint="give it a window, or group it by a date; `rollforward reset` computes all of it again",
        )
    return found


def _of_one(key: GroupKey, *, own_time: bool) -> TimeGroup | None:
    if key.type == "date":
        return TimeGroup(f"CAST({key.expression} AS BIGINT) * {DAY_MS}", DAY_MS, False, 0, _scaled(key.name, DAY_MS))
    if key.type == "timestamp":
        return TimeGroup(f"CAST({key.expression} AS BIGINT)", 1, False, 0, _scaled(key.name, 1))
    pattern = _PATTERN.fullmatch(key.expression)
    if key.type != "string" or pattern is None:
        return None
    # The pattern's sign between date and hour is one character.
    length, spark, step = (13, "yyyy-MM-dd HH", HOUR_MS) if pattern["hour"] else (10, "yyyy-MM-dd", DAY_MS)
    text = f"substring({key.expression}, 1, 10)"
    if pattern["hour"]:
        text = f"concat({text}, ' ', substring({key.expression}, 12, 2))"
    expression = f"unix_millis(try_to_timestamp({text}, '{spark}'))"
    # No zone is further from UTC than 14 hours.
    of_record = own_time and _OF_ROWTIME.fullmatch(pattern["moment"]) is not None
    return TimeGroup(expression, step, of_record, 14 * HOUR_MS, _written(key.name, length))


def _of_parts(year: GroupKey, month: GroupKey, day: GroupKey) -> TimeGroup:
    parts = ", ".join(f"CAST({key.expression} AS INT)" for key in (year, month, day))

    def of_key(key: dict[str, Any]) -> int | None:
        try:
            return _ms(datetime(key[year.name], key[month.name], key[day.name], tzinfo=UTC))
        except (TypeError, ValueError, OverflowError):
            return None

    return TimeGroup(f"CAST(unix_date(make_date({parts})) AS BIGINT) * {DAY_MS}", DAY_MS, False, 0, of_key)


def _scaled(name: str, ms: int) -> Callable[[dict[str, Any]], int | None]:
    return lambda key: None if key[name] is None else int(key[name]) * ms


def _written(name: str, length: int) -> Callable[[dict[str, Any]], int | None]:
    def of_key(key: dict[str, Any]) -> int | None:
        try:
            text = str(key[name])[:length]
            hour = int(text[11:13]) if length > 10 else 0
            return _ms(datetime.strptime(text[:10], "%Y-%m-%d").replace(hour=hour, tzinfo=UTC))
        except ValueError:
            return None

    return of_key


def _ms(moment: datetime) -> int:
    return int(moment.timestamp()) * 1000
