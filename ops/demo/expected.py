"""What the two tables of flights.sql must hold, computed from the same flights with pandas alone.

A mean is the exact sum divided by the count, one rounding: the same double as the pipeline must give.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

Key = tuple[Any, ...]
Rows = dict[Key, dict[str, Any]]
LATE_MIN = 15
# Part of an expression over aggregates: it is in the table's topic, the store holds what it is computed from.
ONLY_IN_TOPIC = frozenset({"LATE_SHARE"})


def carrier_delays(flights: pd.DataFrame) -> Rows:
    """Flights, punctuality and distance of every airline."""
    airlines = flights.assign(late=flights["dep_delay"] > LATE_MIN).groupby("carrier")
    delays = airlines["dep_delay"].agg(["size", "count", "sum", "max", "min"])
    figures = delays.assign(late=airlines["late"].sum(), distance=airlines["distance"].sum())
    return {
        (carrier,): {
            "FLIGHTS": int(number),
            "DEPARTED": int(departed),
            "MEAN_DELAY": _mean(total, departed),
            "WORST_DELAY": _whole(worst),
            "BEST_DELAY": _whole(best),
            "LATE": int(late),
            "LATE_SHARE": _ratio(late, departed),
            "TOTAL_DISTANCE": int(distance),
        }
        for carrier, number, departed, total, worst, best, late, distance in figures.itertuples()
    }


def route_days(flights: pd.DataFrame) -> Rows:
    """Flights and arrival delays of every route on every day."""
    by = flights.groupby(["origin", "dest", "year", "month", "day"])["arr_delay"]
    return {
        key: {"FLIGHTS": int(size), "MEAN_ARR_DELAY": _mean(total, count), "WORST_ARR_DELAY": _whole(worst)}
        for key, size, count, total, worst in by.agg(["size", "count", "sum", "max"]).itertuples()
    }


def _whole(value: float) -> int | None:
    """A delay: the data's missing values have made floats of whole numbers."""
    return None if math.isnan(value) else int(value)


def _mean(total: float, count: int) -> float:
    """What AVG gives: the mean of nothing is 0, as in ksqlDB."""
    return _ratio(total, count) or 0.0


def _ratio(total: float, count: int) -> float | None:
    """A whole total by a count, nothing by zero. Both are far below 2^53, so the one rounding is that of the division."""
    return int(total) / int(count) if count else None


TABLES = {"carrier_delays": carrier_delays, "route_days": route_days}
