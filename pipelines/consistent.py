"""A whole store as it is between two batches, while its driver goes on.

The tasks of a query commit a batch one by one: a reader that looks at one after the other may meet the first behind
batch n and the second before it. What no single task's reader can see wrong is wrong in their sum then, such as money
under way from an account of one task to an account of another. So this view is taken like a value under a sequence
lock: the batches topic says which batch is planned and which is done; a view counts if, before all reading, the newest
planned batch was done, and if after all reading it still is the newest planned one. Nobody waits for the reader.

A batch is the unit: two records are in one view or in none if they are in one batch. Batches end at the last stable
offset of each partition, so records that one producer writes to one partition in one transaction are, as long as the
bounds of a batch (`max_records_per_batch`, `target_batch_s`) do not cut between them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from pipelines.deploy import DeployedQuery
from pipelines.query import Row, StoreReader
from pipelines.registry import Registry
from pipelines.settings import Settings
from statestore.batches import BatchesLog
from statestore.errors import Unavailable
from statestore.kafka.reader import Reader
from statestore.store import Isolation

_PAUSE_S = 0.02


@dataclass(frozen=True)
class View:
    """Every entry of a store behind `batch` and before the next one; batch -1 is the empty store before the first.

    `ends` is where the input stood then: source partition and the offset after the newest record that was taken.
    """

    batch: int
    rows: tuple[Row, ...]
    ends: dict[int, int]


class ConsistentReader:
    """Reads one query's store as of one batch."""

    def __init__(self, deployed: DeployedQuery, settings: Settings, registry: Registry) -> None:
        self._query = deployed.query.name
        self._reader = StoreReader(deployed, settings, registry)
        self._log = BatchesLog(Reader(settings.kafka_config()), deployed.batches_topic, tasks=deployed.query.tasks)

    def _resting(self) -> tuple[int, dict[int, int]] | None:
        """The newest planned batch if it is done, and where it ends; None while one is under way."""
        log = self._log.driver_log()
        if log.planned is None:
            return -1, {}
        ends = {r.partition: r.end for r in log.planned.ranges}
        return (log.planned.batch, ends) if log.planned.batch <= log.done else None

    def read(self, *, timeout_s: float) -> View:
        """The store between two batches. Raises `Unavailable` if no such moment came in time, or a server is gone."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            before = self._resting()
            if before is not None:
                rows = tuple(self._reader.scan(None, None, Isolation.READ_COMMITTED))
                if self._resting() == before:
                    batch, ends = before
                    return View(batch, rows, ends)
            time.sleep(_PAUSE_S)
        raise Unavailable(
            "batches leave no time for a consistent view",
            query=self._query,
            seconds=timeout_s,
            hint="ask again, or raise batch_interval_s",
        )
