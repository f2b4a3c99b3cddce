"""`make bench`: records per second and CPU per record of count, sum and maximum per auction.

Two key counts, each exactly-once and with transactions off, on one topic each, interleaved. A run's first batches warm
the JVM up and are not counted. CPU is that of all processes of ours: driver, JVM, Python workers, store servers.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

import confluent_kafka as ck
import psutil

from infra.stack import Stack
from ops.environment import with_spark
from pipelines.settings import Settings
from tests.support.feed import SQL, create_topic
from tests.support.pipeline import PipelineUnderTest, settings_for

WARM_UP_BATCHES = 4


def fill(bootstrap: str, topic: str, *, records: int, keys: int) -> None:
    """`records` bids on `keys` auctions, over four partitions."""
    create_topic(bootstrap, topic)
    producer = ck.Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 20,
            "compression.type": "lz4",
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    draw = random.Random(1).randrange
    for number in range(records):
        value = b'{"auction":%d,"price":%d,"bidder":%d,"dateTime":%d}' % (
            draw(keys),
            draw(10_000),
            draw(100_000),
            1_700_000_000_000 + number,
        )
        producer.produce(topic, value, None, number // 50 % 4, None, None, 1_700_000_000_000 + number)
        if number % 10_000 == 0:
            producer.poll(0)
            while len(producer) > 500_000:
                producer.poll(0.1)
    assert producer.flush(120) == 0


def cpu_by_kind(root: int) -> dict[str, float]:
    """CPU seconds so far of the driver's processes."""
    spent: dict[str, float] = {"driver": 0.0, "jvm": 0.0, "workers": 0.0, "servers": 0.0}
    for process in [psutil.Process(root), *psutil.Process(root).children(recursive=True)]:
        try:
            command, times = " ".join(process.cmdline()), process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        kind = next(
            (
                kind
                for kind, mark in (
                    ("jvm", "java"),
                    ("servers", "statestore.server"),
                    ("workers", "worker_daemon"),
                )
                if mark in command
            ),
            "driver",
        )
        spent[kind] += times.user + times.system
    return spent


def measure(settings: Settings, topic: str, name: str, records: int) -> dict[str, object]:
    """One run over the topic; figures of the batches after the warm-up."""
    pipeline = PipelineUnderTest(settings, name, SQL.format(topic=topic))
    try:
        process = pipeline.start()
        pipeline.await_("warm-up", lambda: pipeline.batches() >= WARM_UP_BATCHES, timeout_s=600)
        before = cpu_by_kind(process.pid)
        warm = pipeline.registry.batches(pipeline=name)[-1]
        pipeline.await_("end of input", pipeline.caught_up(records), timeout_s=600)
        after = cpu_by_kind(process.pid)
        counted = [batch for batch in pipeline.registry.batches(pipeline=name) if batch.id > warm.id]
        done = sum(batch.records for batch in counted)
        seconds = counted[-1].finished_at - warm.finished_at
        cpu = {kind: after[kind] - before[kind] for kind in after}
        return {
            "records": done,
            "seconds": round(seconds, 2),
            "batches": len(counted),
            "records_per_s": round(done / seconds),
            "cpu_us_per_record": round(sum(cpu.values()) / done * 1e6, 2),
            "cpu_us_per_record_by_process": {kind: round(value / done * 1e6, 2) for kind, value in cpu.items()},
            "commit_share": round(sum(batch.commit_seconds for batch in counted) / seconds, 3),
        }
    finally:
        pipeline.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench")
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--batch", type=int, default=1_000_000, help="records a batch at most")
    parser.add_argument("--keys", type=int, nargs="+", default=[10_000, 500_000])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks.json"))
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="rollforward-bench-") as folder:
        stack = Stack(Path(folder) / "stack")
        bootstrap = stack.up(components=["kafka"]).bootstrap_servers or ""
        try:
            found = with_spark(Settings(bootstrap_servers=bootstrap))
            for keys in arguments.keys:
                print(f"filling {arguments.records} records, {keys} keys", file=sys.stderr, flush=True)
                fill(bootstrap, f"bids{keys}", records=arguments.records, keys=keys)
                runs: dict[bool, list[dict[str, object]]] = {True: [], False: []}
                for number in range(arguments.rounds):
                    for transactions in (True, False):
                        name = f"b{keys}_{'eos' if transactions else 'off'}_{number}_{os.getpid()}"
                        settings = settings_for(
                            Path(folder) / name,
                            bootstrap,
                            java_home=found.java_home,
                            connector_jars=found.connector_jars,
                            max_records_per_batch=arguments.batch,
                            batch_interval_s=0.05,
                            transactions=transactions,
                        )
                        figures = measure(settings, f"bids{keys}", name, arguments.records)
                        print(json.dumps({"keys": keys, "transactions": transactions, **figures}), file=sys.stderr)
                        runs[transactions].append(figures)
                rows += report(keys, runs)
        finally:
            stack.down(wipe=True)
    command = "make bench BENCH='" + " ".join(sys.argv[1:]) + "'"
    result = {"command": command, "cores": os.cpu_count(), "at": time.strftime("%Y-%m-%d"), "rows": rows}
    arguments.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result))


def report(keys: int, runs: dict[bool, list[dict[str, object]]]) -> list[dict[str, object]]:
    """The median run of both systems, with ours against no transactions as a ratio."""
    rows = []
    rates = {on: statistics.median(float(str(r["records_per_s"])) for r in runs[on]) for on in runs}
    for on, system in ((True, "rollforward"), (False, "rollforward-no-transactions")):
        best = min(runs[on], key=lambda run: abs(float(str(run["records_per_s"])) - rates[on]))
        ratio = round(rates[True] / rates[on], 3)
        rows.append({"workload": f"key-totals-{keys}", "system": system, "ratio_ours_to_this": ratio, **best})
    return rows


if __name__ == "__main__":
    main()
