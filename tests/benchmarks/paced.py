"""A process that produces bids at a steady rate, each with the time at which it was produced.

    python -m tests.benchmarks.paced BOOTSTRAP TOPIC RATE SECONDS KEYS FILE

It creates no topic. Prices are 1 and times in the values the same, auctions are drawn evenly from KEYS. SIGTERM ends it early. The file (numpy) has a
row (auction, time in ms) for each record in the order of sending and is complete when the process has ended with 0.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import confluent_kafka as ck
import numpy as np
import pandas as pd
import pyarrow as pa

from statestore.columns import records_of
from statestore.librdkafka import queue_but
from tests.benchmarks import bids

TICK_S = 0.005


def main() -> None:
    """Produce until the time is over, then write the file."""
    bootstrap, topic, rate, seconds, keys, file = sys.argv[1:]
    auctions, times = run(bootstrap, topic, rate=float(rate), seconds=float(seconds), keys=int(keys))
    np.save(file, np.stack([auctions, times], axis=1))


def run(bootstrap: str, topic: str, *, rate: float, seconds: float, keys: int) -> tuple[np.ndarray, np.ndarray]:
    """Produce; gives what was sent."""
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopped.append(number))
    producer = ck.Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 5,
            "compression.type": "lz4",
            "enable.idempotence": True,
            "queue.buffering.max.messages": 2_000_000,
            "partitioner": "murmur2_random",
        }
    )
    random = np.random.default_rng(2)
    # Made before the clock starts: at a high rate making them would take a core.
    values = [b'{"auction":%d,"price":1,"bidder":0,"dateTime":%d}' % (n, bids.FIRST_MS) for n in range(keys)]
    of_each = records_of((b"%d" % n, value, 0) for n, value in enumerate(values))
    auctions: list[np.ndarray] = []
    times: list[np.ndarray] = []
    count, start = 0, time.time()
    while not stopped and (passed := time.time() - start) < seconds:
        drawn = random.integers(0, keys, int(passed * rate) - count)
        now_ms = int((start + passed) * 1000)
        _produce(producer, topic, of_each.take(pa.array(drawn)), now_ms)
        count += len(drawn)
        auctions.append(drawn)
        times.append(np.full(len(drawn), now_ms))
        producer.poll(0)
        time.sleep(TICK_S)
    assert producer.flush(60) == 0
    return np.concatenate(auctions), np.concatenate(times)


def _produce(producer: ck.Producer, topic: str, records: pa.RecordBatch, now_ms: int) -> None:
    """Produce them, and wait where the broker does not keep up: records keep their time."""
    now = pa.repeat(pa.scalar(now_ms, pa.int64()), len(records))
    for record in queue_but(producer, topic, records.set_column(2, "time_ms", now), -1):
        _produce_one(producer, topic, *record)


def _produce_one(producer: ck.Producer, topic: str, key: bytes | None, value: bytes | None, time_ms: int) -> None:
    while True:
        try:
            producer.produce(topic, value, key, -1, None, None, time_ms)
            return
        except BufferError:
            producer.poll(0.1)


class Paced:
    """The process, and what it has sent when it has ended."""

    def __init__(self, bootstrap: str, topic: str, *, rate: float, seconds: float, keys: int, file: Path) -> None:
        self._file = file
        arguments = [bootstrap, topic, str(rate), str(seconds), str(keys), str(file)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.paced", *arguments], stdin=subprocess.DEVNULL
        )

    @property
    def running(self) -> bool:
        """Whether it still produces."""
        return self._process.poll() is None

    def sent(self) -> pd.DataFrame:
        """End it if it runs, and give `auction` and `ms` of every record in their order."""
        self._process.terminate()
        code = self._process.wait(120)
        assert code == 0, f"the producing process ended with {code}"
        return pd.DataFrame(np.load(self._file), columns=["auction", "ms"])

    def kill(self) -> None:
        """End it without asking what it has sent."""
        self._process.kill()
        self._process.wait()


if __name__ == "__main__":
    main()
