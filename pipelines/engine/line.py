"""The line that jobs of all queries stand in for Spark's slots.

Spark shares its slots fairly among pools, and gives a free one to the pool with the fewest tasks at work; among pools with
none, which is all that wait where queries are more than slots, to the first by its name. With a pool a query the last
by name would wait as long as the others have jobs. So every job goes into the next pool of a round: who came first has the
first name. A new round, whose jobs would be before all of the last one, begins when the last one's are done: for the
length of a batch, once in some hundred. Pools are used again, since Spark never lets go of one and sorts them all for
every task.

Jobs that may take minutes would hold up the next round. They have a pool of their own, before all others.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark import SparkContext

POOLS = 256
_LONG = "000"
# A job of the last round that takes longer is overtaken.
_PATIENCE_S = 30.0


class Line:
    """The places of one Spark. Given out from 1; a place is held until its job is over."""

    def __init__(self, pools: int = POOLS) -> None:
        self._pools = pools
        self._given = 0
        self._held = 0
        self._changed = threading.Condition()

    @contextmanager
    def place(self, context: SparkContext, *, long: bool = False) -> Iterator[None]:
        """The job that this thread submits within stands behind those that came before."""
        if long:
            context.setLocalProperty("spark.scheduler.pool", _LONG)
            yield
            return
        with self._changed:
            if self._given == self._pools:
                self._changed.wait_for(lambda: not self._held or self._given < self._pools, _PATIENCE_S)
            # Whoever is first behind the last round begins the next one.
            self._given = self._given % self._pools + 1
            self._held += 1
            context.setLocalProperty("spark.scheduler.pool", f"{self._given:03d}")
        try:
            yield
        finally:
            with self._changed:
                self._held -= 1
                self._changed.notify_all()


LINE = Line()
