"""What the scenarios share: their options, a pipeline of key totals to run them on, and a reader at its output's end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import confluent_kafka as ck
import numpy as np
import orjson
import pandas as pd

from tests.benchmarks import bids, topics
from tests.benchmarks.rounds import Figures, Found, Tell, interleaved
from tests.benchmarks.systems import Broker, System
from tests.benchmarks.workloads import WORKLOADS, Workload
from tests.support.present import present

TOTALS = WORKLOADS["key-totals-10000"]
TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Options:
    """What is asked for; `peaks` gives the records per second that systems have reached with 10,000 keys."""

    rounds: int = 1
    rate: int | None = None
    seconds: int = 30
    state_keys: int = 1_000_000
    minutes: float = 30
    peaks: Mapping[str, float] = field(default_factory=dict)

    def peak_of(self, system: type[System]) -> float:
        """The system's peak, or 40,000 records/s where it is not known."""
        return self.peaks.get(system.name, 40_000.0)


@dataclass(frozen=True)
class Scenario:
    """A measurement of its own kind. `measure` makes one run of one system; `slow` ones run only when named.

    `interval_s` is the commit interval of every system.
    """

    name: str
    what: str
    systems: tuple[str, ...]
    units: Mapping[str, str]
    measure: Callable[[System, Options], Figures]
    keys: Callable[[Options], int] = lambda options: 10_000
    workload: Workload = TOTALS
    slow: bool = False
    interval_s: float = 1.0

    def run(self, broker: Broker, systems: list[type[System]], options: Options, folder: Path, tell: Tell) -> Found:
        """Figures of each round by system, or why there are none."""
        broker = replace(broker, interval_s=self.interval_s)

        def one(kind: type[System], run: str) -> Figures:
            topic = f"source-{run}"
            topics.create(broker.bootstrap, topic)
            bids.fill(broker.bootstrap, topic, every_key_once(self.keys(options)), ["auction"])
            system = kind(broker, self.workload, topic, run, folder / run)
            try:
                system.prepare()
                return self.measure(system, options)
            finally:
                system.close()
                system.remove()

        return interleaved(self.name, systems, 1 if self.slow else options.rounds, one, tell)


def every_key_once(keys: int) -> pd.DataFrame:
    """Bids that make the state complete before anything is measured; all prices are 1."""
    auctions = np.arange(keys)
    return pd.DataFrame({"auction": auctions, "price": 1, "bidder": 0, "dateTime": bids.FIRST_MS + auctions})


def await_(what: str, condition: Callable[[], bool], system: System, timeout_s: float = TIMEOUT_S) -> None:
    """Wait for a condition while the system lives."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        system.require_alive()
        if time.monotonic() > deadline:
            raise TimeoutError(f"{system.name}: {what} did not happen in {timeout_s} s\n{system.tail()}")
        time.sleep(0.05)


def await_committed(system: System, records: int) -> None:
    """Wait until the system has committed so many records of its source."""
    await_(f"commit of {records} records", lambda: system.committed() >= records, system)


def expected_totals(keys: int, *sent: pd.DataFrame) -> dict[str, dict[str, int]]:
    """The table after every key once and what was sent; all prices are 1."""
    auctions = pd.concat([pd.Series(range(keys)), *(frame["auction"] for frame in sent)])
    return {str(key): {"N": n, "TOTAL": n, "TOP": 1} for key, n in auctions.value_counts().items()}


class Tail:
    """Reads the results that become visible from now on, as `read_committed`."""

    def __init__(self, system: System) -> None:
        (topic,) = system.output_topics().values()
        self._system = system
        self._consumer = ck.Consumer(
            {
                "bootstrap.servers": system.broker.bootstrap,
                "group.id": f"{system.run}-tail",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                # A fetch that finds nothing must not hold back what is committed a moment later.
                "fetch.wait.max.ms": 20,
            }
        )
        partitions = self._consumer.list_topics(topic, timeout=20).topics[topic].partitions
        ends = []
        for number in partitions:
            _, end = self._consumer.get_watermark_offsets(ck.TopicPartition(topic, number), timeout=20)
            ends.append(ck.TopicPartition(topic, number, end))
        self._consumer.assign(ends)

    def read(self, timeout_s: float) -> list[tuple[int, int]]:
        """(auction, count) of the results that have come; waits for the first one no longer than the time given."""
        found = self._consumer.consume(1, timeout=timeout_s)
        if found:
            found += self._consumer.consume(10_000, timeout=0)
        for message in found:
            if message.error() is not None:
                raise ck.KafkaException(message.error())
        return [(int(self._system.key_text(present(m.key()))), orjson.loads(present(m.value()))["N"]) for m in found]

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close()
