"""A small batch, computed by the driver itself: Spark takes as long for two records as for some thousands.

    parts ─► decode, combine ─► key, task ─► of each task: group, READ, update, WRITE

The functions are those that Spark's workers run, over the same records, and so the result is the same. It is only for
plans whose keys workers update (`update.py`), and a batch with a record for the dead letters is Spark's. Nothing here
needs the JVM: a restarted driver computes small batches while that one starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipelines.engine.combine import Combine
from pipelines.engine.decode import Count, decoder
from pipelines.engine.exchange import ArrowFunction, Exchange, Place, Tasked
from pipelines.engine.input import Part
from pipelines.engine.job import StagedBatch, TaskResult
from pipelines.engine.keybytes import KeyBytes
from pipelines.engine.merge import GROUPED
from pipelines.engine.update import Update
from pipelines.plan import Query
from statestore.partitioner import tasks_of

# Of all that is computed here. Spark's own count from 0, and of one driver a batch is computed here once.
ATTEMPT = -1


@dataclass(frozen=True)
class SmallBatches:
    """How the small batches of one plan are computed. `step` gives the whole of a task for where it runs."""

    query: Query
    combine: Combine
    update: Update
    keys: KeyBytes
    step: Callable[[Callable[[], Exchange], Tasked], ArrowFunction]

    def run(self, parts: Sequence[Part], exchange: Exchange) -> StagedBatch | None:
        """Stage the batch; None, and nothing is staged, where a record has to be a dead letter. Raises what fails."""
        counted: list[tuple[int, int, int]] = []
        rows = [batch for part in parts for batch in self._rows(part, lambda *counts: counted.append(counts))]
        if any(batch.column("__raw").null_count < batch.num_rows for batch in rows):
            return None
        tasks = self._by_task(pa.Table.from_batches(rows)) if rows else {}
        results: tuple[TaskResult, ...] = ()
        if tasks:
            with ThreadPoolExecutor(max_workers=len(tasks)) as staging:
                found = [staging.submit(self._stage, exchange, task, rows) for task, rows in tasks.items()]
                results = tuple(result for staged in found for result in staged.result())
        records, bad, read_bytes = (sum(each) for each in zip((0, 0, 0), *counted, strict=True))
        return StagedBatch(records, bad, results, read_bytes, by_spark=False)

    def _rows(self, part: Part, count: Count) -> Iterator[pa.RecordBatch]:
        """Combined rows of one part."""
        decode = self.combine.after(decoder(self.query.source, self.combine.needs_raw, count, None))
        return decode(part.records())

    def _by_task(self, rows: pa.Table) -> dict[int, pa.Table]:
        """The rows with their keys, as `Update.grouped` takes them, by their task."""
        keys = self.keys([rows.column(f"{GROUPED}{key}").combine_chunks() for key in self.update.keys])
        tasks = tasks_of(keys, self.query.tasks)
        keyed = rows.append_column("__key", keys).append_column("__dead", pa.nulls(len(keys), pa.string()))
        return {int(task): keyed.filter(pa.array(tasks == task)) for task in np.unique(tasks)}

    def _stage(self, exchange: Exchange, task: int, rows: pa.Table) -> list[TaskResult]:
        step = self.step(lambda: exchange, lambda: Place(task, ATTEMPT))
        found = [row for batch in step(rows.to_batches()) for row in batch.to_pylist()]
        return [TaskResult(**row) for row in found]
