"""Figures of stores, named as Kafka Streams names them (`put-rate`, `get-latency-avg`, `dropped-records-total`, …).

Every measured operation gives `<operation>-rate`, `-latency-avg` and `-latency-max`, every event `<event>-rate` and
`-total`; where both have one name, the rate is the event's. A gauge is read when somebody looks. Rates are per second
over the last one to two windows of 30 s; latencies are in ns as in Kafka Streams, over the whole life.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from operator import itemgetter
from typing import TypeVar

T = TypeVar("T")
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
        # By store and name. Apart, since an event counts what an operation of the same name does many of at once.
        self._events: dict[tuple[str, str], _Sensor] = {}
        self._operations: dict[tuple[str, str], _Sensor] = {}
        self._gauges: dict[tuple[str, str], Callable[[], float]] = {}

    def count(self, name: str, store: str, amount: float = 1.0) -> None:
        """An event happened `amount` times. `name` is its total's, `dropped-records-total` for example."""
        now_s = self._clock()
        _sensor(self._events, name.removesuffix("-total"), store, now_s).add(amount, now_s)

    def gauge(self, name: str, store: str, read: Callable[[], float] | None) -> None:
        """What `read` gives is the figure `name`, until None takes its place."""
        if read is None:
            self._gauges.pop((store, name), None)
        else:
            self._gauges[store, name] = read

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
        sensor = _sensor(self._operations, operation, store, now_s)
        sensor.add(1.0, now_s)
        sensor.nanos += nanos
        sensor.nanos_max = max(sensor.nanos_max, nanos)

    def totals(self) -> dict[tuple[str, str], float]:
        """Per event or operation and store how often it happened; 0 for one that never did."""
        sensors = {**self._operations, **self._events}
        return defaultdict(float, {(f"{name}-total", store): sensor.total for (store, name), sensor in sensors.items()})

    def figures(self, store: str) -> dict[str, float]:
        """All figures of one store by their names."""
        now_s, figures = self._clock(), dict[str, float]()
        for name, sensor in _of(store, self._operations):
            figures[f"{name}-rate"] = sensor.rate(now_s)
            figures[f"{name}-latency-avg"] = sensor.nanos / sensor.total
            figures[f"{name}-latency-max"] = float(sensor.nanos_max)
        for name, sensor in _of(store, self._events):
            figures[f"{name}-rate"] = sensor.rate(now_s)
            figures[f"{name}-total"] = sensor.total
        for name, read in _of(store, self._gauges):
            figures[name] = float(read())
        return figures


def _sensor(sensors: dict[tuple[str, str], _Sensor], name: str, store: str, now_s: float) -> _Sensor:
    found = sensors.get((store, name))
    if found is None:
        found = sensors[store, name] = _Sensor(now_s)
    return found


def _of(store: str, known: Mapping[tuple[str, str], T]) -> list[tuple[str, T]]:
    """Name and value of all that is the store's. Any thread may look while the writer adds more."""
    return sorted(((name, one) for (owner, name), one in list(known.items()) if owner == store), key=itemgetter(0))
