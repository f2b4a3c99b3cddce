"""The bids that most workloads read: made from a seed, produced to a topic, and their results by pandas.

A value is `{"auction","price","bidder","dateTime"}`; the key is the text of what the workload groups by, joined by
colons. That places a key's records in one partition, so that Kafka Streams and Quix need no repartition topic; ours
and Spark shuffle all the same. The record's time is `dateTime`. Bids are numbered by their times: no two are equal.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from statestore.columns import RECORDS
from tests.benchmarks.outputs import Rows
from tests.benchmarks.topics import CHUNK, produce

FIRST_MS = 1_700_000_000_000
DAY_MS = 86_400_000


@dataclass(frozen=True)
class Draw:
    """How many of each there are, drawn evenly, and the time between two bids; `days` spreads all bids over so many."""

    auctions: int
    bidders: int = 100_000
    prices: int = 10_000
    days: int = 0

    def frame(self, records: int) -> pd.DataFrame:
        """The bids, in their order."""
        random = np.random.default_rng(1)
        step = max(1, self.days * DAY_MS // records)
        return pd.DataFrame(
            {
                "auction": random.integers(0, self.auctions, records),
                "price": random.integers(0, self.prices, records),
                "bidder": random.integers(0, self.bidders, records),
                "dateTime": FIRST_MS + np.arange(records) * step,
            }
        )


def fill(bootstrap: str, topic: str, bids: pd.DataFrame, key: list[str]) -> None:
    """Produce the bids, keyed by the columns of `key`; `day` stands for the day of `dateTime`."""
    produce(bootstrap, topic, (records(bids[at : at + CHUNK], key) for at in range(0, len(bids), CHUNK)))


def records(bids: pd.DataFrame, key: list[str]) -> pa.RecordBatch:
    """The bids as records (`columns.RECORDS`)."""
    columns = {name: pa.array(column) for name, column in bids.assign(day=bids["dateTime"] // DAY_MS).items()}
    texts = {name: column.cast(pa.string()) for name, column in columns.items()}
    pieces: list[pa.Array | str] = []
    for name in ("auction", "price", "bidder", "dateTime"):
        pieces += [f'{"," if pieces else "{"}"{name}":', texts[name]]
    keys = pc.binary_join_element_wise(*(texts[name] for name in key), ":")
    values = pc.binary_join_element_wise(*pieces, "}", "")
    return pa.RecordBatch.from_arrays(
        [keys.cast(pa.binary()), values.cast(pa.binary()), columns["dateTime"]], schema=RECORDS
    )


def key_totals(bids: pd.DataFrame) -> Rows:
    """Count, sum and maximum of price per auction."""
    found = bids.groupby("auction")["price"].agg(["size", "sum", "max"])
    return rows(found.set_axis(["N", "TOTAL", "TOP"], axis=1))


def last_per_key(bids: pd.DataFrame) -> Rows:
    """The newest bid of every bidder on every auction."""
    found = bids.groupby(["auction", "bidder"])[["price", "dateTime"]].last()
    return rows(found.set_axis(["PRICE", "AT"], axis=1))


def auction_days(bids: pd.DataFrame) -> Rows:
    """Ten aggregates of price per auction and day, five of them over a part of the prices."""
    price = bids["price"]
    two, three = (price >= 10_000) & (price < 1_000_000), price >= 1_000_000
    marked = bids.assign(
        day=bids["dateTime"] // DAY_MS,
        RANK1=price < 10_000,
        RANK2=two,
        RANK3=three,
        RANK2_TOTAL=price * two,
        RANK3_TOTAL=price * three,
    )
    by = marked.groupby(["auction", "day"])
    found = by["price"].agg(["size", "min", "max", "sum"]).set_axis(["BIDS", "LOWEST", "HIGHEST", "TOTAL"], axis=1)
    found = found.join(by[["RANK1", "RANK2", "RANK3", "RANK2_TOTAL", "RANK3_TOTAL"]].sum())
    return rows(found.assign(MEAN=found["TOTAL"] / found["BIDS"]))


def high_bids(bids: pd.DataFrame) -> pa.Table:
    """Bids of 5,000 and more, projected; a stream's result is a table, whose order does not count."""
    high = bids[bids["price"] >= 5_000]
    columns = {"AUCTION": high["auction"], "AT": high["dateTime"], "DOUBLED": high["price"] * 2}
    return pa.table(columns)


def rows(found: pd.DataFrame) -> Rows:
    """A frame by its keys' text, as the outputs are read."""
    keys = [":".join(map(str, key)) if isinstance(key, tuple) else str(key) for key in found.index]
    return dict(zip(keys, found.to_dict("records"), strict=True))
