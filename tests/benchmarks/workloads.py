"""What is measured: each workload's input, its statements for Rollforward, and the result it must have.

`peer` is the name under which the peers' programs know it. Adding one means a row here and a branch in each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

import pipelines
from ops.demo import expected as demo_expected
from ops.demo import flights as demo_flights
from tests.benchmarks import bids
from tests.benchmarks.bids import Draw
from tests.benchmarks.outputs import Expected
from tests.benchmarks.topics import in_batches, produce

SOURCE = """CREATE STREAM bids (auction BIGINT, price BIGINT, bidder BIGINT, dateTime BIGINT)
  WITH (kafka_topic = '{topic}', value_format = 'json');
"""
KEY_TOTALS = """CREATE TABLE totals AS
  SELECT auction, COUNT(*) AS n, SUM(price) AS total, MAX(price) AS top
  FROM bids GROUP BY auction EMIT CHANGES;
"""
# Times and prices in one number: the newest bid is the largest. Prices are below 100,000.
LAST_PER_KEY = """CREATE TABLE last WITH (key_format = 'json') AS
  SELECT auction, bidder,
    MAX(dateTime * 100000 + price) % 100000 AS price,
    MAX(dateTime * 100000 + price) / 100000 AS at
  FROM bids GROUP BY auction, bidder EMIT CHANGES;
"""
# Nexmark's query 17, whose filtered aggregates are three counts, with two filtered sums more.
AUCTION_DAY = """CREATE TABLE days WITH (key_format = 'json') AS
  SELECT auction, dateTime / 86400000 AS day,
    COUNT(*) AS bids,
    SUM(CASE WHEN price < 10000 THEN 1 ELSE 0 END) AS rank1,
    SUM(CASE WHEN price >= 10000 AND price < 1000000 THEN 1 ELSE 0 END) AS rank2,
    SUM(CASE WHEN price >= 1000000 THEN 1 ELSE 0 END) AS rank3,
    SUM(CASE WHEN price >= 10000 AND price < 1000000 THEN price ELSE 0 END) AS rank2_total,
    SUM(CASE WHEN price >= 1000000 THEN price ELSE 0 END) AS rank3_total,
    MIN(price) AS lowest, MAX(price) AS highest, AVG(price) AS mean, SUM(price) AS total
  FROM bids GROUP BY auction, dateTime / 86400000 EMIT CHANGES;
"""
STATELESS = """CREATE STREAM high AS
  SELECT auction, dateTime AS at, price * 2 AS doubled
  FROM bids WHERE price >= 5000 EMIT CHANGES;
"""
FLIGHTS_MAX = 5_100_000


@dataclass(frozen=True)
class Workload:
    """One workload. `fill` produces so many records to a topic; `expected` gives each result's rows for as many.

    `size` is how many records it takes for some ten seconds of steady state of ours on two cores.
    """

    name: str
    peer: str
    what: str
    sql: str
    tables: tuple[str, ...]
    fill: Callable[[str, str, int], None]
    expected: Callable[[int], dict[str, Expected]]
    size: int

    def records(self, asked: int) -> int:
        """How many records it takes of those asked for."""
        return asked


def on_bids(
    name: str,
    what: str,
    query: str,
    table: str,
    draw: Draw,
    result: Callable[[pd.DataFrame], Expected],
    *,
    size: int,
    key: tuple[str, ...] = ("auction",),
    peer: str = "",
) -> Workload:
    """A workload over bids; `key` is what its source is keyed by."""

    def fill(bootstrap: str, topic: str, records: int) -> None:
        bids.fill(bootstrap, topic, draw.frame(records), list(key))

    return Workload(
        name,
        peer or name,
        what,
        SOURCE + query,
        (table,),
        fill,
        lambda records: {table: result(draw.frame(records))},
        size,
    )


def flights_sample(records: int) -> tuple[pd.DataFrame, int]:
    """The flights that are produced, and how many times over: whole years, or a part of one."""
    flights = demo_flights.load_flights()
    return flights.head(records), max(1, records // len(flights))


def fill_flights(bootstrap: str, topic: str, records: int) -> None:
    """Produce flights, keyed by aeroplane."""
    flights, times = flights_sample(records)
    once = demo_flights.records(flights)
    produce(bootstrap, topic, in_batches(record for _ in range(times) for record in once))


def flights_expected(records: int) -> dict[str, Expected]:
    """The demo's two tables; what is counted or summed grows with the repetitions, the rest is the same."""
    flights, times = flights_sample(records)
    counted = {"FLIGHTS", "DEPARTED", "LATE", "TOTAL_DISTANCE"}
    return {
        name: {
            ":".join(map(str, key)): {column: v * times if column in counted else v for column, v in row.items()}
            for key, row in table(flights).items()
        }
        for name, table in demo_expected.TABLES.items()
    }


@dataclass(frozen=True)
class Flights(Workload):
    """The demo's pipeline over the year's flights: again and again up to five million, or a part of the year."""

    def records(self, asked: int) -> int:
        year = len(demo_flights.load_flights())
        return asked if asked < year else min(asked, FLIGHTS_MAX) // year * year


def _flights_sql() -> str:
    text = (Path(pipelines.__file__).parent / "examples" / "flights.sql").read_text()
    return text.replace("kafka_topic = 'flights'", "kafka_topic = '{topic}'")


WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        *(
            on_bids(
                f"key-totals-{keys}",
                f"count, sum and maximum per key, {keys:,} keys",
                KEY_TOTALS,
                "totals",
                Draw(auctions=keys),
                bids.key_totals,
                size=size,
                peer="key-totals",
            )
            for keys, size in ((10_000, 40_000_000), (500_000, 16_000_000))
        ),
        on_bids(
            "last-per-key",
            "newest bid of each bidder on each auction (Nexmark q18), 500,000 pairs",
            LAST_PER_KEY,
            "last",
            Draw(auctions=500, bidders=1_000),
            bids.last_per_key,
            size=4_000_000,
            key=("auction", "bidder"),
        ),
        on_bids(
            "auction-day",
            "ten aggregates per auction and day (Nexmark q17), 100,000 keys",
            AUCTION_DAY,
            "days",
            Draw(auctions=10_000, prices=2_000_000, days=10),
            bids.auction_days,
            size=24_000_000,
            key=("auction", "day"),
        ),
        on_bids(
            "stateless",
            "filter and projection, half of the records pass",
            STATELESS,
            "high",
            Draw(auctions=10_000),
            bids.high_bids,
            size=16_000_000,
        ),
        Flights(
            "flights",
            "flights",
            "the demo's two tables over real flights",
            _flights_sql(),
            ("carrier_delays", "route_days"),
            fill_flights,
            flights_expected,
            FLIGHTS_MAX,
        ),
    )
}
