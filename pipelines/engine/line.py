"""The line that jobs of all queries stand in for Spark's slots.

Spark shares its slots fairly among pools, and gives a free one to the pool with the fewest tasks at work; among pools with
none, which is all that wait where queries are more than slots, to the first by its name. With a pool a query the last
by name would wait as long as the others have jobs. So every job goes into the next pool of a ring: who came first has the
first name, but at the ring's end, and nobody is overtaken by more jobs than the ring has pools. They are few, since Spark
never lets go of a pool.
"""

from __future__ import annotations

from itertools import count

from pyspark import SparkContext

POOLS = 64
_jobs = count()


def line_up(context: SparkContext) -> None:
    """Put the job that this thread submits next behind those that have been put there before."""
    context.setLocalProperty("spark.scheduler.pool", f"{next(_jobs) % POOLS:02d}")
