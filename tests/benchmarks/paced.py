"""A process that produces bids at a steady rate, each with the time at which it was produced.

    python -m tests.benchmarks.paced BOOTSTRAP TOPIC RATE SECONDS KEYS FILE

It creates no topic. Prices are 1, auctions are drawn evenly from KEYS. SIGTERM ends it early. The file (numpy) has a
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

TICK_S = 0.005
CHUNK = 1_000_000


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
    auctions: list[int] = []
    times: list[int] = []
    start = time.time()
    drawn = iter(())
    while not stopped and (passed := time.time() - start) < seconds:
        now_ms = int((start + passed) * 1000)
        for _ in range(int(passed * rate) - len(auctions)):
            auction = next(drawn, None)
            if auction is None:
                drawn = iter(random.integers(0, keys, CHUNK).tolist())
                auction = next(drawn)
            value = b'{"auction":%d,"price":1,"bidder":0,"dateTime":%d}' % (auction, now_ms)
            _produce(producer, topic, value, auction, now_ms)
            auctions.append(auction)
            times.append(now_ms)
        producer.poll(0)
        time.sleep(TICK_S)
    assert producer.flush(60) == 0
    return np.array(auctions, dtype=np.int64), np.array(times, dtype=np.int64)


def _produce(producer: ck.Producer, topic: str, value: bytes, auction: int, now_ms: int) -> None:
    """Produce one, and wait where the broker does not keep up: the record keeps its time."""
    while True:
        try:
            producer.produce(topic, value, b"%d" % auction, -1, None, None, now_ms)
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
