"""`python -m tests.benchmarks.metastore`: how long a restore and a deploy take, before and after a checkpoint.

Commands are written in one transaction, then read by new databases; deploys are whole statements of the protocol,
their topics included, in a metastore that holds the given number of definitions.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

from infra.stack import Stack
from pipelines.metastore.command import Head, hash_of, put
from pipelines.metastore.service import Metastore
from pipelines.metastore.statement import deploy_script, start_pipeline
from pipelines.metastore.validate import DESIRED, PIPELINE
from pipelines.plan import query_to_json
from pipelines.sql import parse_pipeline
from statestore.kafka.admin import Admin
from tests.support.metastore import command
from tests.support.pipeline import settings_for

SQL = """CREATE STREAM bids (auction BIGINT, price BIGINT) WITH (kafka_topic='bids', value_format='json');
CREATE TABLE totals AS SELECT auction, COUNT(*) AS n FROM bids GROUP BY auction EMIT CHANGES;"""


def fill(metastore: Metastore, *, commands: int, definitions: int) -> None:
    """`commands` commands that leave `definitions` pipelines."""
    head = metastore.projection.position().head
    producer = metastore.log.producer()
    producer.init()
    producer.begin()
    for number in range(commands):
        name = f"p{number % definitions}"
        queries = [
            {"plan": query_to_json(query), "batches_topic_id": "b", "changelog_topic_id": "c"}
            for query in parse_pipeline(SQL, pipeline=name).queries
        ]
        body = {"sql": SQL, "sources": [{"name": "BIDS", "topic": "bids"}], "queries": queries, "deployed_at": 0.0}
        value = command(head, put(PIPELINE, name, body), put(DESIRED, name, {"state": "stopped"}), statement=SQL)
        metastore.log.produce(producer, value, name, lambda _: None)
        head = Head(head.sequence + 1, hash_of(value))
    producer.flush()
    producer.commit()


def restore(settings: object, url: str) -> float:
    """Seconds until a new database shows everything."""
    metastore = Metastore(settings.model_copy(update={"metastore_url": url}))  # type: ignore[attr-defined]
    began = time.monotonic()
    fault = metastore.restore()
    seconds = time.monotonic() - began
    assert fault is None
    metastore.close()
    return seconds


def deploys(metastore: Metastore, prefix: str, count: int = 15) -> dict[str, float]:
    """Median and slowest seconds of a deploy and of a start."""
    figures = {}
    for kind in ("deploy", "start"):
        seconds = []
        for number in range(count):
            name = f"{prefix}{number}"
            began = time.monotonic()
            metastore.execute(deploy_script(SQL, name) if kind == "deploy" else start_pipeline(name))
            seconds.append(time.monotonic() - began)
        figures[f"{kind}_s_median"] = round(statistics.median(seconds), 3)
        figures[f"{kind}_s_max"] = round(max(seconds), 3)
    return figures


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.metastore")
    parser.add_argument("--commands", type=int, default=10_000)
    parser.add_argument("--definitions", type=int, default=1_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rollforward-bench-") as folder:
        stack = Stack(Path(folder) / "stack")
        try:
            settings = settings_for(Path(folder), stack.up(components=["kafka"]).bootstrap_servers or "", tasks=4)
            Admin(settings.kafka_config()).create("bids", partitions=1, settings={})
            metastore = Metastore(settings)
            metastore.restore()
            figures: dict[str, object] = {"empty": deploys(metastore, "first")}
            fill(metastore, commands=arguments.commands, definitions=arguments.definitions)
            figures["restore_s"] = round(restore(settings, f"sqlite:///{folder}/all.db"), 3)
            metastore.refresh()
            figures[f"with_{arguments.definitions}_definitions"] = deploys(metastore, "second")
            began = time.monotonic()
            metastore.checkpoint()
            figures["checkpoint_s"] = round(time.monotonic() - began, 3)
            figures["restore_after_checkpoint_s"] = round(restore(settings, f"sqlite:///{folder}/short.db"), 3)
            print(json.dumps({"commands": arguments.commands, **figures}))
        finally:
            stack.down(wipe=True)


if __name__ == "__main__":
    main()
