"""What a system costs that has nothing to do: CPU of its processes, and records that it writes all the same."""

from __future__ import annotations

import time

import confluent_kafka as ck

from tests.benchmarks.rounds import Figures
from tests.benchmarks.scenarios.base import Options, await_committed
from tests.benchmarks.systems import System

KEYS = 10_000
SETTLE_S = 15.0
UNITS = {"cpu_percent_of_a_core": "%", "records_written": "records"}


def measure(system: System, options: Options) -> Figures:
    """One run: the input is read, compilers have settled, then the time asked for without input."""
    system.start()
    await_committed(system, KEYS)
    time.sleep(SETTLE_S)
    cpu, written, began = sum(system.cpu().values()), written_records(system), time.monotonic()
    time.sleep(options.seconds)
    spent = sum(system.cpu().values()) - cpu
    system.require_alive()
    return {
        "cpu_percent_of_a_core": 100 * spent / (time.monotonic() - began),
        "records_written": float(written_records(system) - written),
    }


def written_records(system: System) -> int:
    """End offsets of all topics of the run: a transaction's marker counts as well."""
    consumer = ck.Consumer({"bootstrap.servers": system.broker.bootstrap, "group.id": "benchmark-reader"})
    try:
        topics = consumer.list_topics(timeout=20).topics
        return sum(
            consumer.get_watermark_offsets(ck.TopicPartition(name, partition), timeout=20)[1]
            for name, topic in topics.items()
            if name.startswith(system.run)
            for partition in topic.partitions
        )
    finally:
        consumer.close()
