"""Rates over the last windows, totals and latencies over the whole life."""

from __future__ import annotations

from statestore.metrics import Metrics


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_an_event_has_a_rate_and_a_total() -> None:
    clock = Clock()
    metrics = Metrics(clock)
    metrics.count("dropped-records-total", "s", 60)
    assert {"dropped-records-rate": 2.0, "dropped-records-total": 60.0} == metrics.figures("s")
    clock.now_s += 45
    metrics.count("dropped-records-total", "s", 30)
    assert {"dropped-records-rate": 2.0, "dropped-records-total": 90.0} == metrics.figures("s")
    clock.now_s += 1000
    assert {"dropped-records-rate": 0.0, "dropped-records-total": 90.0} == metrics.figures("s")


def test_an_operation_has_latencies() -> None:
    metrics = Metrics(Clock())
    for nanos in (100, 300):
        metrics.record("put", "s", nanos)
    figures = metrics.figures("s")
    assert {"put-rate": 2 / 30, "put-latency-avg": 200.0, "put-latency-max": 300.0} == figures


def test_stores_are_counted_apart_and_unknown_ones_are_zero() -> None:
    metrics = Metrics(Clock())
    metrics.count("restore-total", "a", 3)
    assert (3, 0, 0) == tuple(
        metrics.totals()[key] for key in (("restore-total", "a"), ("restore-total", "b"), ("put-total", "a"))
    )
