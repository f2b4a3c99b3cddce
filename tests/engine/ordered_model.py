"""What aggregation in record order means, one record at a time: dictionaries, loops, Python's own numbers."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from pipelines.plan import EVERY_RECORD, Query


@dataclass(frozen=True)
class Input:
    """One record: a bad one has no key and a dead letter instead."""

    partition: int
    offset: int
    time: int
    key: str | None
    x: int | None
    d: float | None
    t: str | None
    m: Decimal | None


@dataclass
class Model:
    """One task. `states` maps (key, window start) to (time, results by aggregate's name)."""

    query: Query
    states: dict[tuple[str, int | None], tuple[int, dict[str, Any]]] = field(default_factory=dict)
    stream_time: int = -1
    dropped: int = 0

    def batch(self, records: list[Input]) -> list[tuple[Any, ...]]:
        """Results in order: (key, window start, time, parts after, time before or None, parts before, is last)."""
        before = dict(self.states)
        results = []
        for record in merged(records):
            results += self._record(record)
        newest = {(result[0], result[1]): number for number, result in enumerate(results)}
        flagged = [(*result, newest[result[0], result[1]] == number) for number, result in enumerate(results)]
        if self.query.emission == EVERY_RECORD:
            return flagged
        last = [result for result in flagged if result[-1]]
        return [(*r[:4], *before.get((r[0], r[1]), (None, {})), True) for r in last]

    def _record(self, record: Input) -> list[tuple[Any, ...]]:
        assert record.key is not None
        self.stream_time = max(self.stream_time, record.time)
        results = []
        window = self.query.window
        for start in self._windows(record.time):
            if window is None or start is None or start + window.size_ms + window.grace_ms > self.stream_time:
                old: tuple[Any, dict[str, Any]] = self.states.get((record.key, start), (None, {}))
                time = record.time if old[0] is None else max(old[0], record.time)
                new = (time, {a.name: after(a.function, old[1].get(a.name), record) for a in self.query.aggregates})
                self.states[record.key, start] = new
                results.append((record.key, start, *new, *old))
            else:
                self.dropped += 1
        return results

    def _windows(self, time: int) -> list[int | None]:
        window = self.query.window
        if window is None:
            return [None]
        starts = range(0, time + 1, window.advance_ms)
        return [start for start in starts if start <= time < start + window.size_ms]


def merged(records: list[Input]) -> list[Input]:
    """Again and again the earliest of the partitions' next records, of equally early ones that of the lowest."""
    queues: dict[int, list[Input]] = {}
    for record in sorted(records, key=lambda r: r.offset):
        if record.key is not None:
            queues.setdefault(record.partition, []).append(record)
    order = []
    while waiting := [queue for queue in queues.values() if queue]:
        order.append(min(waiting, key=lambda queue: (queue[0].time, queue[0].partition)).pop(0))
    return order


def after(function: str, old: Any, record: Input) -> Any:
    """The aggregate after one record more."""
    match function:
        case "count_all":
            return (old or 0) + 1
        case "count":
            return (old or 0) + (record.x is not None)
        case "sum":
            return _or(old, record.x, lambda: old + record.x)
        case "sum_d":
            return _or(old, record.d, lambda: old + record.d)
        case "sum_m":
            return _or(old, record.m, lambda: old + record.m)
        case "min":
            return _or(old, record.t, lambda: min(old, record.t, key=str.encode))
        case "max":
            return _or(old, record.t, lambda: max(old, record.t, key=str.encode))
        case "max_m":
            return _or(old, record.m, lambda: max(old, record.m))
        case "min_x":
            return _or(old, record.x, lambda: min(old, record.x))
        case "latest":
            return old if record.t is None else record.t
        case "latest_or_null":
            return record.t
        case "earliest":
            return record.t if old is None else old
        case "topk":
            kept = sorted(
                [*json.loads(old or "[]"), *([] if record.x is None else [str(record.x)])], key=int, reverse=True
            )
            return json.dumps(kept[:2], separators=(",", ":"))
    raise AssertionError(function)


def _or(old: Any, new: Any, both: Any) -> Any:
    if old is None:
        return new
    return old if new is None else both()
