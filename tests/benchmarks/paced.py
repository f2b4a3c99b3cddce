"""A process that produces bids at a steady rate, each with the time at which it was due.

    python -m tests.benchmarks.paced BOOTSTRAP TOPIC RATE SECONDS KEYS FILE

It creates no topic. Prices are 1 and times in the values the same, auctions are drawn evenly from KEYS. SIGTERM ends it early. The file (numpy) has a
row (auction, time in ms) for each record, each key's in the order of sending, and is complete when the process has ended with 0.

What is measured needs the machine's cores. So batches of records are encoded and compressed before the clock starts, and sent
again and again: all records of one have the same time, which stands in the batch's head, outside of what is compressed. Only
the head's checksum is new each time. A record's time is when it was due: where the broker does not keep up, it counts as late.
"""

from __future__ import annotations

import asyncio
import signal
import struct
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.util import calc_crc32c

from statestore.murmur2 import partitions_of
from tests.benchmarks import bids
from tests.benchmarks.topics import PARTITIONS

Auctions = npt.NDArray[np.int64]
# Every partition gets one batch each time, so often where that is a record at least.
TICK_S = 0.01
# Records that are made, in batches of each partition between so many.
MADE = 800_000
MADE_BATCHES = (32, 4_096)
IN_FLIGHT = 16
_LZ4 = 3
# Of a record batch (format 2): where its checksum lies, what it covers, and where its first and last time lie.
_CRC, _COVERED, _TIMES = 17, 21, 27


@dataclass(frozen=True)
class Batch:
    """Records of one partition, encoded and compressed, and their auctions in their order."""

    auctions: Auctions
    encoded: bytearray

    @classmethod
    def of(cls, auctions: Auctions, records: pa.RecordBatch) -> Batch:
        """The records (`columns.RECORDS`), bids on these auctions."""
        builder = DefaultRecordBatchBuilder(
            magic=2,
            compression_type=_LZ4,
            is_transactional=0,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            batch_size=2**30,
        )
        keys, values, _ = (column.to_pylist() for column in records.columns)
        for number, (key, value) in enumerate(zip(keys, values, strict=True)):
            builder.append(number, 0, key, value, [])
        return cls(auctions, bytearray(builder.build()))

    def at(self, time_ms: int) -> bytes:
        """It, with this time for all its records."""
        struct.pack_into(">qq", self.encoded, _TIMES, time_ms, time_ms)
        struct.pack_into(">I", self.encoded, _CRC, calc_crc32c(memoryview(self.encoded)[_COVERED:]))
        return bytes(self.encoded)


@dataclass(frozen=True)
class Supply:
    """Batches of `size` records for each partition; one of each goes out every `period_s`."""

    batches: list[list[Batch]]
    size: int
    period_s: float

    @classmethod
    def of(cls, rate: float, keys: int) -> Supply:
        """For so many records a second in all."""
        size = max(1, round(rate * TICK_S / PARTITIONS))
        least, most = MADE_BATCHES
        count = min(max(MADE // (PARTITIONS * size), least), most)
        # A fifth more than is needed: partitions do not get the same share.
        drawn = np.random.default_rng(2).integers(0, keys, int(1.2 * PARTITIONS * count * size) + 1_000)
        frame = pd.DataFrame({"auction": drawn, "price": 1, "bidder": 0, "dateTime": bids.FIRST_MS})
        records = bids.records(frame, ["auction"])
        owners = partitions_of(records.column("key"), PARTITIONS)
        batches = [
            _batches(drawn[mine], records.filter(pa.array(mine)), size, count)
            for mine in (owners == partition for partition in range(PARTITIONS))
        ]
        return cls(batches, size, PARTITIONS * size / rate)

    def turn(self, number: int) -> list[Batch]:
        """One batch for each partition."""
        return [each[number % len(each)] for each in self.batches]


def _batches(auctions: Auctions, records: pa.RecordBatch, size: int, most: int) -> list[Batch]:
    """Batches of so many records each, as many as there are whole ones, up to `most`."""
    starts = range(0, min(len(auctions) // size, most) * size, size)
    return [Batch.of(auctions[at : at + size], records.slice(at, size)) for at in starts]


def main() -> None:
    """Produce until the time is over, then write the file."""
    bootstrap, topic, rate, seconds, keys, file = sys.argv[1:]
    supply = Supply.of(float(rate), int(keys))
    auctions, times = asyncio.run(run(bootstrap, topic, supply, seconds=float(seconds)))
    np.save(file, np.stack([auctions, times], axis=1))


async def run(bootstrap: str, topic: str, supply: Supply, *, seconds: float) -> tuple[Auctions, Auctions]:
    """Produce; gives what was sent."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    client = AIOKafkaClient(bootstrap_servers=bootstrap)
    await client.bootstrap()
    (leader,) = client.cluster.brokers()
    sent: list[tuple[Auctions, int]] = []
    flying: set[asyncio.Task[None]] = set()
    start, turns = time.time(), int(seconds / supply.period_s)
    # One request that fails ends them all, and this.
    async with asyncio.TaskGroup() as sending:
        for turn in range(turns):
            due = start + turn * supply.period_s
            while not stopped.is_set() and (time.time() < due or len(flying) >= IN_FLIGHT):
                await asyncio.sleep(min(max(due - time.time(), 0.001), TICK_S))
            if stopped.is_set():
                break
            batches, due_ms = supply.turn(turn), int(due * 1000)
            sent += [(batch.auctions, due_ms) for batch in batches]
            records = [(partition, batch.at(due_ms)) for partition, batch in enumerate(batches)]
            request = ProduceRequest(transactional_id=None, required_acks=-1, timeout=60_000, topics=[(topic, records)])
            flying.add(task := sending.create_task(_send(client, leader.nodeId, request)))
            task.add_done_callback(flying.discard)
            # The request goes out before the next one, which keeps their order.
            await asyncio.sleep(0)
    await client.close()
    auctions = np.concatenate([auctions for auctions, _ in sent] or [np.zeros(0, np.int64)])
    return auctions, np.repeat([ms for _, ms in sent], supply.size)


async def _send(client: AIOKafkaClient, node: int, request: ProduceRequest) -> None:
    response = await client.send(node, request)
    errors = [(partition, code) for _, found in response.topics for partition, code, *_ in found if code]
    if errors:
        raise RuntimeError(f"the broker refuses records: partition and error {errors}")


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
