"""Visits of a few days, some of them too late for their window, and what every result must be."""

from __future__ import annotations

import json
import random
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import confluent_kafka as ck

from pipelines.deploy import deployed_queries
from pipelines.query import StoreReader
from statestore.store import Isolation
from tests.support.feed import read_topic
from tests.support.pipeline import PipelineUnderTest
from tests.support.present import present

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
FIRST_MS = int(datetime(2026, 3, 1, tzinfo=UTC).timestamp()) * 1000
DAYS = 3
SQL = """
CREATE STREAM visits (city VARCHAR, n INT) WITH (kafka_topic='{topic}', value_format='json');
CREATE TABLE hourly WITH (partitions=1) AS SELECT city, COUNT(*) AS visits, SUM(n) AS total FROM visits
  WINDOW TUMBLING (SIZE 1 HOUR, RETENTION 30 DAYS, GRACE PERIOD 0 SECONDS) GROUP BY city EMIT CHANGES;
CREATE TABLE daily WITH (key_format='json', partitions=1) AS
  SELECT city, TIMESTAMPTOSTRING(ROWTIME, 'yyyy-MM-dd') AS day, COUNT(*) AS visits, SUM(n) AS total, MAX(n) AS top
  FROM visits GROUP BY city, TIMESTAMPTOSTRING(ROWTIME, 'yyyy-MM-dd') HAVING COUNT(*) > 1 EMIT CHANGES;
"""
Cell = tuple[str, str]


@dataclass
class Visits:
    """Sends records to both partitions of a topic, and remembers them."""

    bootstrap: str
    topic: str
    sent: list[tuple[str, int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(5)
        self._producer = ck.Producer({"bootstrap.servers": self.bootstrap, "acks": "all"})

    def send(self, count: int, *, late: bool = False) -> None:
        """So many records over all days in the order of their times, or late ones of any time."""
        for number in range(count):
            at = FIRST_MS + (self._random.randrange(DAYS * DAY_MS) if late else number * DAYS * DAY_MS // count)
            city, n = f"c{self._random.randrange(4)}", self._random.randrange(100)
            self.sent.append((city, n, at))
            value = b"nonsense" if number % 50 == 49 else json.dumps({"city": city, "n": n}).encode()
            if value == b"nonsense":
                self.sent.pop()
            self._producer.produce(self.topic, value, None, number % 2, None, None, at)
        assert self._producer.flush(60) == 0

    @property
    def records(self) -> int:
        """How many are in the topic."""
        consumer = ck.Consumer({"bootstrap.servers": self.bootstrap, "group.id": "unused"})
        ends = [consumer.get_watermark_offsets(ck.TopicPartition(self.topic, p), timeout=30)[1] for p in (0, 1)]
        consumer.close()
        return sum(ends)

    def daily(self) -> dict[Cell, tuple[int, ...]]:
        """The right content of the store of table `daily`."""
        found: dict[Cell, list[int]] = defaultdict(list)
        for city, n, at in self.sent:
            found[city, datetime.fromtimestamp(at / 1000, UTC).strftime("%Y-%m-%d")].append(n)
        return {cell: (len(ns), sum(ns), max(ns)) for cell, ns in found.items()}

    def hourly(self) -> dict[Cell, tuple[int, ...]]:
        """The content of the store of table `hourly` if no record were too late."""
        found: dict[Cell, list[int]] = defaultdict(list)
        for city, n, at in self.sent:
            found[city, str(at // HOUR_MS * HOUR_MS)].append(n)
        return {cell: (len(ns), sum(ns)) for cell, ns in found.items()}


def stored(pipeline: PipelineUnderTest, table: str) -> dict[Cell, tuple[int, ...]]:
    """The content of a table's store."""
    (deployed,) = [d for d in deployed_queries(pipeline.registry.pipeline(pipeline.name)) if d.query.name == table]
    rows = StoreReader(deployed, pipeline.settings, pipeline.registry).scan(None, None, Isolation.READ_COMMITTED)
    found = {}
    for row in rows:
        at = row.key.get("DAY") or str(row.key["WINDOWSTART"])
        found[row.key["CITY"], at] = tuple(row.value.values())
    return found


def shown(bootstrap: str, pipeline: str, table: str) -> dict[Any, tuple[int, ...]]:
    """The newest result of every key in a table's topic."""
    found: dict[Any, tuple[int, ...]] = {}
    for message in read_topic(bootstrap, f"{pipeline}-{table}"):
        raw, value = present(message.key()), message.value()
        if table == "hourly":
            key: Cell = raw[:-8].decode(), str(int.from_bytes(raw[-8:], "big"))
        else:
            key = tuple(json.loads(raw).values())
        if value is None:
            found.pop(key, None)
        else:
            found[key] = tuple(json.loads(value).values())
    return found


def await_shown(bootstrap: str, pipeline: str, table: str, expected: Mapping[Any, tuple[int, ...] | None]) -> None:
    """Wait until the results are these: the broker ends a transaction after it has answered the commit."""
    deadline = time.monotonic() + 60
    while (found := shown(bootstrap, pipeline, table)) != expected:
        assert time.monotonic() < deadline, f"{found} instead of {expected}"
