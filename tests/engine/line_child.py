"""Queries that all have jobs all the time, on a Spark with one slot: `python -m tests.engine.line_child` tells how they fare.

There are so few places in the line that it begins anew all the time.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter

from pyspark.sql import SparkSession

from pipelines.engine.line import Line

QUERIES = ("balances", "cheap", "hot", "uniq")
WORK_S = 8.0


def main() -> None:
    """Print how many jobs of two tasks each query has had done, and the longest time that one of them took."""
    builder = SparkSession.builder.master("local[1]").config("spark.scheduler.mode", "FAIR")
    session = builder.config("spark.ui.enabled", "false").getOrCreate()
    done: Counter[str] = Counter()
    longest: dict[str, float] = {}
    line = Line(pools=7)
    ends = time.monotonic() + WORK_S

    def work(query: str) -> None:
        while (began := time.monotonic()) < ends:
            with line.place(session.sparkContext):
                session.sparkContext.parallelize(range(2), 2).foreach(lambda _: time.sleep(0.02))
            if done[query]:
                # The first one waits for the workers.
                longest[query] = max(time.monotonic() - began, longest.get(query, 0.0))
            done[query] += 1

    threads = [threading.Thread(target=work, args=(query,), daemon=True) for query in QUERIES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    session.stop()
    print(json.dumps({"done": {query: done[query] for query in QUERIES}, "longest_s": longest}))


if __name__ == "__main__":
    main()
