"""How much one batch takes: bounded in records and bytes, and so that it lasts about as long as it shall.

The bound follows the measured speed. Only batches that were cut by the bound tell anything: a shorter one says more
about the input than about the machine. It moves by at most a factor of four a batch, since a first batch is mostly
the compiler's work and says little about the second.
"""

from __future__ import annotations

from dataclasses import dataclass

_FIRST_RECORDS = 50_000
_LEAST_RECORDS = 1_000
_FACTOR = 4.0
# A batch is cut by its bound if it takes nearly all of it: offsets that are no records take a part.
_FULL = 0.8


@dataclass(frozen=True)
class Bounds:
    """Of one batch: `records` and `bytes` at the most, `seconds` as the target. See the settings of these names."""

    records: int
    bytes: int
    seconds: float


class Pace:
    """The bound of the next batch in offsets."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._records = float(min(_FIRST_RECORDS, bounds.records))
        self._record_bytes = 0.0

    @property
    def offsets(self) -> int:
        """How many offsets the next batch may take in all."""
        most = min(self._records, self._bounds.records)
        if self._record_bytes > 0:
            most = min(most, self._bounds.bytes / self._record_bytes)
        return max(1, int(most))

    def took(self, *, offsets: int, read_bytes: int, seconds: float) -> None:
        """Learn from a finished batch."""
        if offsets <= 0:
            return
        full = offsets >= _FULL * self.offsets
        self._record_bytes = read_bytes / offsets
        if not full:
            return
        wanted = offsets * self._bounds.seconds / max(seconds, 0.001)
        slowest, fastest = self._records / _FACTOR, self._records * _FACTOR
        self._records = min(max(wanted, slowest, _LEAST_RECORDS), fastest, float(self._bounds.records))


def shares(backlog: dict[int, int], most: int) -> dict[int, int]:
    """How many offsets to take of each partition: all, or in proportion to the backlog, at least one of each."""
    total = sum(backlog.values())
    if total <= most:
        return backlog
    return {partition: min(left, max(1, left * most // total)) for partition, left in backlog.items()}
