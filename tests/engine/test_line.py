"""Where queries are more than Spark's slots, each of them gets its turns, whatever it is called."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from pyspark.sql import SparkSession

from pipelines.engine.line import line_up

QUERIES = ("balances", "cheap", "hot", "uniq")
WORK_S = 8.0


@pytest.fixture
def one_slot() -> Iterator[SparkSession]:
    """A Spark with the slots of a machine that is too small, and the scheduler of a driver."""
    SparkSession.builder.getOrCreate().stop()
    session = (
        SparkSession.builder.master("local[1]")
        .config("spark.scheduler.mode", "FAIR")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    yield session
    session.stop()


def jobs_of_each(session: SparkSession, before: Callable[[str], None]) -> Counter[str]:
    """How many jobs of two tasks each query has had done, all of them asking all the time."""
    done: Counter[str] = Counter()
    ends = time.monotonic() + WORK_S

    def work(query: str) -> None:
        while time.monotonic() < ends:
            before(query)
            session.sparkContext.parallelize(range(2), 2).foreach(lambda _: time.sleep(0.02))
            done[query] += 1

    threads = [threading.Thread(target=work, args=(query,), daemon=True) for query in QUERIES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return done


@pytest.mark.timeout(300)
def test_no_query_is_starved(one_slot: SparkSession) -> None:
    done = jobs_of_each(one_slot, lambda _: line_up(one_slot.sparkContext))
    assert min(done.values()) >= max(done.values()) / 2, done
