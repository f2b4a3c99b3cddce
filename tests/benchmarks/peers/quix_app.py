"""The workloads of the benchmark as a Quix Streams application, exactly-once; runs in a virtualenv of its own.

Arguments: workload, bootstrap servers, application id, source topic, state folder. Results go to the topics
`<application id>-<table>`. The source is keyed by what a workload groups by; flights are grouped in two ways and pass a
repartition topic for each.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from quixstreams import Application, State

Value = dict[str, Any]
Fold = Callable[[Value, list[Any]], list[Any]]


def totals(bid: Value, old: list[Any]) -> list[Any]:
    n, total, top = old or (0, 0, bid["price"])
    return [n + 1, total + bid["price"], max(top, bid["price"])]


def last(bid: Value, old: list[Any]) -> list[Any]:
    return [bid["price"], bid["dateTime"]] if not old or bid["dateTime"] >= old[1] else old


def day(bid: Value, old: list[Any]) -> list[Any]:
    price = bid["price"]
    n, one, two, three, two_total, three_total, low, high, total = old or (0, 0, 0, 0, 0, 0, price, price, 0)
    rank = 1 if price < 10_000 else 2 if price < 1_000_000 else 3
    return [
        n + 1,
        one + (rank == 1),
        two + (rank == 2),
        three + (rank == 3),
        two_total + price * (rank == 2),
        three_total + price * (rank == 3),
        min(low, price),
        max(high, price),
        total + price,
    ]


def delays(flight: Value, old: list[Any]) -> list[Any]:
    n, departed, late, distance, total, worst, best = old or (0, 0, 0, 0, 0, None, None)
    delay = flight["dep_delay"]
    if delay is not None:
        departed, late, total = departed + 1, late + (delay > 15), total + delay
        worst = delay if worst is None else max(worst, delay)
        best = delay if best is None else min(best, delay)
    return [n + 1, departed, late, distance + flight["distance"], total, worst, best]


def route_day(flight: Value, old: list[Any]) -> list[Any]:
    n, arrived, total, worst = old or (0, 0, 0, None)
    delay = flight["arr_delay"]
    if delay is not None:
        arrived, total = arrived + 1, total + delay
        worst = delay if worst is None else max(worst, delay)
    return [n + 1, arrived, total, worst]


def totals_row(state: list[Any]) -> Value:
    return dict(zip(("N", "TOTAL", "TOP"), state, strict=True))


def last_row(state: list[Any]) -> Value:
    return dict(zip(("PRICE", "AT"), state, strict=True))


def day_row(state: list[Any]) -> Value:
    names = ("BIDS", "RANK1", "RANK2", "RANK3", "RANK2_TOTAL", "RANK3_TOTAL", "LOWEST", "HIGHEST", "TOTAL")
    return {**dict(zip(names, state, strict=True)), "MEAN": state[-1] / state[0]}


def delays_row(state: list[Any]) -> Value:
    n, departed, late, distance, total, worst, best = state
    return {
        "FLIGHTS": n,
        "DEPARTED": departed,
        "LATE": late,
        "TOTAL_DISTANCE": distance,
        "MEAN_DELAY": total / departed if departed else 0.0,
        "LATE_SHARE": late / departed if departed else None,
        "WORST_DELAY": worst,
        "BEST_DELAY": best,
    }


def route_day_row(state: list[Any]) -> Value:
    n, arrived, total, worst = state
    return {"FLIGHTS": n, "MEAN_ARR_DELAY": total / arrived if arrived else 0.0, "WORST_ARR_DELAY": worst}


def folded(fold: Fold, row: Callable[[list[Any]], Value]) -> Callable[[Value, State], Value]:
    """One state a key: a list under one name, read, changed and written for every record."""

    def step(value: Value, state: State) -> Value:
        new = fold(value, state.get("s"))
        state.set("s", new)
        return row(new)

    return step


def route_and_day(flight: Value) -> str:
    return ":".join(str(flight[name]) for name in ("origin", "dest", "year", "month", "day"))


FOLDS = {
    "key-totals": ("totals", totals, totals_row),
    "last-per-key": ("last", last, last_row),
    "auction-day": ("days", day, day_row),
}


def build(app: Application, workload: str, name: str, source: str) -> None:
    def out(table: str) -> Any:
        return app.topic(f"{name}-{table}", key_serializer="str", value_serializer="json")

    frame = app.dataframe(app.topic(source, key_deserializer="str", value_deserializer="json"))
    if workload == "stateless":
        high = frame[frame["price"] >= 5_000]
        rows = high.apply(lambda b: {"AUCTION": b["auction"], "AT": b["dateTime"], "DOUBLED": b["price"] * 2})
        rows.to_topic(out("high"))
    elif workload == "flights":
        text = {"key_serializer": "str", "key_deserializer": "str"}
        by_carrier = frame.group_by(lambda f: f["carrier"], name="carriers", **text)
        by_carrier.apply(folded(delays, delays_row), stateful=True).to_topic(out("carrier_delays"))
        by_route = frame.group_by(route_and_day, name="routes", **text)
        by_route.apply(folded(route_day, route_day_row), stateful=True).to_topic(out("route_days"))
    else:
        table, fold, row = FOLDS[workload]
        frame.apply(folded(fold, row), stateful=True).to_topic(out(table))


def main() -> None:
    workload, bootstrap, name, source, folder = sys.argv[1:]
    app = Application(
        broker_address=bootstrap,
        consumer_group=name,
        state_dir=folder,
        processing_guarantee="exactly-once",
        commit_interval=int(os.environ["COMMIT_INTERVAL_MS"]) / 1000,
        auto_offset_reset="earliest",
        producer_extra_config={"linger.ms": 20, "compression.type": "lz4"},
    )
    build(app, workload, name, source)
    app.run()


if __name__ == "__main__":
    main()
