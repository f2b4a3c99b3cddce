"""Queries that all have jobs all the time, on a Spark with one slot: `python -m tests.engine.line_child` tells their jobs done."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter

from pyspark.sql import SparkSession

from pipelines.engine.line import line_up

QUERIES = ("balances", "cheap", "hot", "uniq")
WORK_S = 8.0


def main() -> None:
    """Print how many jobs of two tasks each query has had done."""
    builder = SparkSession.builder.master("local[1]").config("spark.scheduler.mode", "FAIR")
    session = builder.config("spark.ui.enabled", "false").getOrCreate()
    done: Counter[str] = Counter()
    ends = time.monotonic() + WORK_S

    def work(query: str) -> None:
        while time.monotonic() < ends:
            line_up(session.sparkContext)
            session.sparkContext.parallelize(range(2), 2).foreach(lambda _: time.sleep(0.02))
            done[query] += 1

    threads = [threading.Thread(target=work, args=(query,), daemon=True) for query in QUERIES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    session.stop()
    print(json.dumps({query: done[query] for query in QUERIES}))


if __name__ == "__main__":
    main()
