"""Input with times that jump back, the three tables over it, and the model of each: for tests that kill."""

from __future__ import annotations

import json
import random
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import confluent_kafka as ck

from pipelines.deploy import DeployedQuery, deployed_queries
from pipelines.plan import EVERY_RECORD, Window
from pipelines.query import StoreReader
from statestore.batches import BatchesLog, Order
from statestore.kafka.reader import Reader
from statestore.layouts.segments import Segments, default_interval_ms
from statestore.partitioner import task_of
from statestore.store import Isolation
from tests.support.feed import read_topic
from tests.support.pipeline import PipelineUnderTest
from tests.support.present import present

SQL = """
CREATE STREAM trips (k VARCHAR KEY, x INT) WITH (kafka_topic='{topic}', value_format='json');
CREATE TABLE hops WITH (emit='every-record', partitions=1) AS
  SELECT k, COUNT(*) AS n, SUM(x) AS total, WINDOWSTART AS ws FROM trips
  WINDOW HOPPING (SIZE 10 SECONDS, ADVANCE BY 5 SECONDS, RETENTION 2 MINUTES, GRACE PERIOD 15 SECONDS)
  GROUP BY k HAVING SUM(x) % 5 <> 0 EMIT CHANGES;
CREATE TABLE tumbles WITH (partitions=1) AS
  SELECT k, COUNT(*) AS n, SUM(x) AS total, WINDOWSTART AS ws FROM trips
  WINDOW TUMBLING (SIZE 10 SECONDS, RETENTION 2 MINUTES, GRACE PERIOD 0 SECONDS) GROUP BY k EMIT CHANGES;
CREATE TABLE running WITH (emit='every-record', partitions=1) AS
  SELECT k, COUNT(*) AS n, SUM(x) AS total FROM trips GROUP BY k HAVING SUM(x) % 5 <> 0 EMIT CHANGES;
"""
QUERIES = ("hops", "tumbles", "running")
Cell = tuple[str, int | None]


@dataclass
class TableModel:
    """One table: what each record does to it, one at a time. A task's stream time is its own."""

    deployed: DeployedQuery
    cells: dict[Cell, tuple[int, int]] = field(default_factory=dict)
    stream_times: dict[int, int] = field(default_factory=lambda: defaultdict(lambda: -1))
    dropped: int = 0
    results: dict[Cell, list[tuple[int, int] | None]] = field(default_factory=lambda: defaultdict(list))

    def take(self, key: str, x: int, time_ms: int) -> None:
        task = task_of(key.encode(), self.deployed.query.tasks)
        self.stream_times[task] = max(self.stream_times[task], time_ms)
        window = self.deployed.query.window
        for start in _starts(window, time_ms):
            if window is not None and start + window.size_ms + window.grace_ms <= self.stream_times[task]:
                self.dropped += 1
                continue
            self._add((key, None if window is None else start), x)

    def _add(self, cell: Cell, x: int) -> None:
        old = self.cells.get(cell)
        new = (1, x) if old is None else (old[0] + 1, old[1] + x)
        self.cells[cell] = new
        having = self.deployed.query.having is not None
        if not having or new[1] % 5 != 0:
            self.results[cell].append(new)
        elif old is not None and old[1] % 5 != 0:
            self.results[cell].append(None)

    def stored(self) -> dict[Cell, tuple[int, int]]:
        """What the store can be asked for: windows that are not out of retention."""
        window = self.deployed.query.window
        if window is None:
            return self.cells
        return {
            cell: value for cell, value in self.cells.items() if present(cell[1]) >= self._readable(cell[0], window)
        }

    def _readable(self, key: str, window: Window) -> int:
        segments = Segments("s", window.retention_ms, default_interval_ms(window.retention_ms))
        return segments.readable_from(self.stream_times[task_of(key.encode(), self.deployed.query.tasks)])


def _starts(window: Window | None, time_ms: int) -> Iterator[int]:
    if window is None:
        yield 0
        return
    first = (time_ms - window.size_ms) // window.advance_ms * window.advance_ms
    for start in range(first, time_ms + 1, window.advance_ms):
        if 0 <= start <= time_ms < start + window.size_ms:
            yield start


class WindowFeed:
    """Seeded records of one partition, or of two in the order of their times: the same however they are cut into batches."""

    def __init__(self, bootstrap: str, pipeline: PipelineUnderTest, *, seed: int) -> None:
        self.bootstrap, self.pipeline = bootstrap, pipeline
        self.models = {d.query.name: TableModel(d) for d in deployed_queries(pipeline.registry.pipeline(pipeline.name))}
        self.sent = 0
        # After going back results come a second time: the newest of each is what counts then.
        self.again = False
        # Times of today: behind a commit marker, records of long ago would be a segment of their own and be compacted.
        self._random, self._now = random.Random(seed), int(time.time()) // 60 * 60_000
        self._producer = ck.Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "acks": "all"})

    def send(self, count: int) -> None:
        """Produce so many records more. Time goes on by half a second a record, and some records are late."""
        for _ in range(count):
            self._now += self._random.randrange(1_000)
            time_ms = self._now - self._random.choice([0, 0, 0, 2_000, 9_000, 30_000])
            key, x = f"k{self._random.randrange(40)}", self._random.randrange(-20, 100)
            self._producer.produce(self.pipeline.name, json.dumps({"x": x}), key, 0, None, None, time_ms)
            self.sent += 1
            for model in self.models.values():
                model.take(key, x, time_ms)
        assert self._producer.flush(60) == 0

    def send_uneven(self, count: int) -> None:
        """Produce a backlog, once and first: most of it steadily to partition 0, the newest part mostly to partition 1.

        No time jumps back, so in the order of one batch none is late. (Where some do, a task, which sees its own records only,
        may take one of them before or behind another partition's, by where batches end.)
        """
        for number in range(count):
            self._now += self._random.randrange(1_000)
            key, x = f"k{self._random.randrange(40)}", self._random.randrange(-20, 100)
            partition = 1 if number > 0.8 * count and self._random.randrange(4) else 0
            self._producer.produce(self.pipeline.name, json.dumps({"x": x}), key, partition, None, None, self._now)
            for model in self.models.values():
                model.take(key, x, self._now)
        self.sent += count
        assert self._producer.flush(60) == 0

    def caught_up(self) -> bool:
        """Whether all three queries have finished the input."""
        newest = self.pipeline.registry.newest_batches(self.pipeline.name)
        return len(newest) == 3 and all(sum(end for _, end in row.offsets.values()) == self.sent for row in newest)

    # Looking.

    def differences(self, queries: tuple[str, ...] = QUERIES) -> list[str]:
        """What results, stores and figures have that the models have not, or the other way round."""
        return [problem for name in queries for problem in self._differences(name)]

    def _differences(self, name: str) -> list[str]:
        model = self.models[name]
        found, problems = self.results(name), []
        every = model.deployed.query.emission == EVERY_RECORD
        for cell in sorted(set(found) | {cell for cell, results in model.results.items() if results}, key=str):
            expected = model.results[cell]
            all_of_them = every and not self.again
            same = found.get(cell) == expected if all_of_them else found.get(cell, [None])[-1:] == expected[-1:]
            if not same or (len(found[cell]) > len(expected) and not self.again):
                problems.append(f"{name} {cell}: results {found.get(cell)} instead of {expected}")
        problems += self.unlike_stores(name)
        times = {task: order.stream_time_ms for task, order in self.orders(name).items() if order.stream_time_ms >= 0}
        if every and times != dict(model.stream_times):
            problems.append(f"{name}: stream times {times} instead of {dict(model.stream_times)}")
        return problems

    def unlike_stores(self, name: str) -> list[str]:
        """What a store and its count of late records have that the model has not, or the other way round."""
        model, problems = self.models[name], []
        if (stored := self._stored(model)) != model.stored():
            problems.append(f"{name}: store {stored} instead of {model.stored()}")
        orders = self.orders(name)
        if sum(order.dropped for order in orders.values()) != model.dropped:
            problems.append(f"{name}: {orders} dropped instead of {model.dropped}")
        return problems

    def results(self, name: str) -> dict[Cell, list[tuple[int, int] | None]]:
        """Every result of a query, by key and window, in their order; None for a tombstone."""
        model = self.models[name]
        found: dict[Cell, list[Any]] = defaultdict(list)
        for message in read_topic(self.bootstrap, model.deployed.query.output_topic):
            raw, start = present(message.key()), None
            if model.deployed.query.window is not None:
                raw, start = raw[:-8], int.from_bytes(raw[-8:], "big")
            told = message.value()
            value = None if told is None else json.loads(told)
            assert value is None or value.get("WS", start) == start
            found[raw.decode(), start].append(value and (value["N"], value["TOTAL"]))
        return found

    def _stored(self, model: TableModel) -> dict[Cell, tuple[int, int]]:
        reader = StoreReader(model.deployed, self.pipeline.settings, self.pipeline.registry)
        rows = list(reader.scan(None, None, Isolation.READ_COMMITTED))
        found = {(row.key["K"], row.key.get("WINDOWSTART")): tuple(row.value.values()) for row in rows}
        assert len(found) == len(rows), "a key in two tasks"
        return found

    def orders(self, name: str) -> dict[int, Order]:
        """Stream time and late records of every task, as committed."""
        deployed = self.models[name].deployed
        log = BatchesLog(
            Reader(self.pipeline.settings.kafka_config()), deployed.batches_topic, tasks=deployed.query.tasks
        )
        positions = {task: log.position(task) for task in range(deployed.query.tasks)}
        return {task: (position.order if position else None) or Order() for task, position in positions.items()}
