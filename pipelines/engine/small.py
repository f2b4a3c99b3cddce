"""A small batch, computed by the driver itself: Spark takes as long for two records as for some thousands.

    parts ─► decode, combine ─► key, task ─► of each task: group, READ, update, WRITE
    parts ─► decode, project ──────────────► of each task: WRITE

The functions are those that Spark's workers run, over the same records, and so the result is the same. It is only for
plans whose keys workers update (`update.py`), or whose rows they project (`project.py`). Nothing here needs the JVM: a
restarted driver computes small batches while that one starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from pipelines.engine.decode import Count
from pipelines.engine.exchange import ArrowFunction, Exchange, Exchanges, Place, Tasked
from pipelines.engine.input import Part
from pipelines.engine.job import StagedBatch, TaskResult
from statestore.errors import Unavailable

# Of the first try here; the next ones count down. Spark's own attempts count from 0.
ATTEMPT = -1
At = Callable[[str, Callable[[], list[TaskResult]]], list[TaskResult]]


class TooLarge(Exception):
    """A batch of few records has more bytes than a driver should hold."""


class NotComputed(Unavailable):
    """The driver could not compute a batch: not for a server or the broker, so Spark has to."""


@dataclass(frozen=True)
class SmallBatches:
    """How the small batches of one plan are computed.

    by_task: the rows of a part of the input, with their tasks.
    step: the whole of a task, for where it runs.
    """

    by_task: Callable[[Part, Count], Iterator[tuple[int, pa.RecordBatch]]]
    step: Callable[[Exchanges, Tasked], ArrowFunction]

    def run(self, parts: Sequence[Part], exchange: Exchange, *, attempt: int, most_bytes: int, at: At) -> StagedBatch:
        """Stage the batch. Raises what fails, and `TooLarge` if its values are more bytes; then nothing is staged.

        `at` does a task's work at the address of its server, and gives it up with that.
        """
        counted: list[tuple[int, int, int, int]] = []
        tasks: dict[int, list[pa.RecordBatch]] = {}

        def count(records: int, bad: int, values: int, read_bytes: int) -> None:
            counted.append((records, bad, values, read_bytes))
            if sum(found for *_, found in counted) > most_bytes:
                raise TooLarge(f"small batch has more than {most_bytes} bytes")

        for part in parts:
            for task, rows in self.by_task(part, count):
                tasks.setdefault(task, []).append(rows)
        results: tuple[TaskResult, ...] = ()
        if tasks:
            with ThreadPoolExecutor(max_workers=len(tasks)) as staging:
                found = [
                    staging.submit(
                        at, exchange.sockets[task], partial(self._stage, exchange, Place(task, attempt), rows)
                    )
                    for task, rows in tasks.items()
                ]
                results = tuple(result for staged in found for result in staged.result())
        records, bad, values, read_bytes = (sum(each) for each in zip((0, 0, 0, 0), *counted, strict=True))
        return StagedBatch(records, bad, results, values, read_bytes, by_spark=False)

    def _stage(self, exchange: Exchange, place: Place, rows: list[pa.RecordBatch]) -> list[TaskResult]:
        step = self.step(lambda: exchange, lambda: place)
        found = [row for batch in step(rows) for row in batch.to_pylist()]
        return [TaskResult(**row) for row in found]
