"""How much slower batches are while a task of theirs is being snapshotted.

What is compared are input records a second of batch time, of the newest batches of both sorts. A pipeline that waits for
its input shows no loss, whatever a snapshot takes; one that has as much as it can do does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

# Some minutes of batches, so that the batches between are of about the same time as those beside a snapshot.
_BATCHES_MAX = 600
_SPANS_MAX = 100
# Of each sort: fewer say nothing.
_BATCHES_MIN = 3


@dataclass(frozen=True)
class _Batch:
    records: int
    began_ms: int
    ended_ms: int


class SnapshotLoss:
    """One query's batches and snapshots. Times are wall time in ms."""

    def __init__(self) -> None:
        self._batches: deque[_Batch] = deque(maxlen=_BATCHES_MAX)
        self._spans: deque[tuple[int, int]] = deque(maxlen=_SPANS_MAX)

    def batch(self, records: int, *, began_ms: int, ended_ms: int) -> None:
        """A batch was finished. One without records is of no speed."""
        if records and ended_ms > began_ms:
            self._batches.append(_Batch(records, began_ms, ended_ms))

    def snapshot(self, *, began_ms: int, ended_ms: int) -> None:
        """A snapshot was taken; told again, it is the same one."""
        if (began_ms, ended_ms) not in self._spans:
            self._spans.append((began_ms, ended_ms))

    def ratio(self) -> float | None:
        """The part of its speed that the query loses, below 0 where it was faster; None while too little is known."""
        batches = list(self._batches)
        during = [batch for batch in batches if self._is_beside(batch)]
        between = [batch for batch in batches if not self._is_beside(batch)]
        if min(len(during), len(between)) < _BATCHES_MIN:
            return None
        return 1 - _per_ms(during) / _per_ms(between)

    def _is_beside(self, batch: _Batch) -> bool:
        return any(began < batch.ended_ms and batch.began_ms < ended for began, ended in self._spans)


def _per_ms(batches: Iterable[_Batch]) -> float:
    found = list(batches)
    return sum(batch.records for batch in found) / sum(batch.ended_ms - batch.began_ms for batch in found)
