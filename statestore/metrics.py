"""Figures of stores, named as Kafka Streams names them (`put-rate`, `get-latency-avg`, `dropped-records-total`, …).

Every measured operation gives `<operation>-rate`, `-latency-avg` and `-latency-max`, every event `<event>-rate` and
`-total`. Rates are per second over the last one to two windows of 30 s; latencies are in ns as in Kafka Streams, over
the whole life.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

WINDOW_S = 30.0


@dataclass
class _Sensor:
    """One event or operation of one store. `count`s of the present window and the one before give the rate."""

    began_s: float
    total: float = 0.0
    nanos: int = 0
    nanos_max: int = 0
    now_count: float = 0.0
    before_count: float = 0.0
    before_s: float = 0.0
    timed: bool = False

    def add(self, amount: float, now_s: float) -> None:
        self._roll(now_s)
        self.total += amount
        self.now_count += amount

    def rate(self, now_s: float) -> float:
        self._roll(now_s)
        # A window that has just begun would give absurd rates: less than one window counts as a whole one.
        return (self.before_count + self.now_count) / max(self.before_s + now_s - self.began_s, WINDOW_S)

    def _roll(self, now_s: float) -> None:
        past = now_s - self.began_s
        if past < WINDOW_S:
            return
        recent = past < 2 * WINDOW_S
        self.before_count, self.before_s = (self.now_count, past) if recent else (0.0, 0.0)
        self.now_count, self.began_s = 0.0, now_s


class Metrics:
    """The figures of a task's stores. Counting is a few additions; nothing is computed before somebody looks."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sensors: dict[tuple[str, str], _Sensor] = {}

    def count(self, name: str, store: str, amount: float = 1.0) -> None:
        """An event happened `amount` times. `name` is its total's, `dropped-records-total` for example."""
        now_s = self._clock()
        self._sensor(name.removesuffix("-total"), store, now_s).add(amount, now_s)

    @contextmanager
    def timed(self, operation: str, store: str) -> Iterator[None]:
        """Count and time the operation, failed ones too."""
        began = time.perf_counter_ns()
        try:
            yield
        finally:
            self.record(operation, store, time.perf_counter_ns() - began)

    def record(self, operation: str, store: str, nanos: int) -> None:
        """An operation took `nanos`."""
        now_s = self._clock()
        sensor = self._sensor(operation, store, now_s)
        sensor.add(1.0, now_s)
        sensor.timed = True
        sensor.nanos += nanos
        sensor.nanos_max = max(sensor.nanos_max, nanos)

    def totals(self) -> dict[tuple[str, str], float]:
        """Per event or operation and store how often it happened; 0 for one that never did."""
        counted = {(f"{name}-total", store): sensor.total for (store, name), sensor in self._sensors.items()}
        return defaultdict(float, counted)

    def figures(self, store: str) -> dict[str, float]:
        """All figures of one store by their names."""
        now_s, figures = self._clock(), dict[str, float]()
        for (owner, name), sensor in sorted(self._sensors.items()):
            if owner != store:
                continue
            figures[f"{name}-rate"] = sensor.rate(now_s)
            if sensor.timed:
                figures[f"{name}-latency-avg"] = sensor.nanos / sensor.total
                figures[f"{name}-latency-max"] = float(sensor.nanos_max)
            else:
                figures[f"{name}-total"] = sensor.total
        return figures

    def _sensor(self, name: str, store: str, now_s: float) -> _Sensor:
        found = self._sensors.get((store, name))
        if found is None:
            found = self._sensors[store, name] = _Sensor(now_s)
        return found
