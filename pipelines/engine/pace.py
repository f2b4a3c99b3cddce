"""How much one batch takes: bounded in records and bytes, and so that it lasts about as long as it shall.

A batch costs a fixed time and a time for every record. Both are fitted to the latest batches that were cut by the bound
(a shorter one says more about the input than about the machine), and the next batch takes what fits into the target. On
a machine where the fixed part takes more than half of the target, small batches would be mostly fixed cost and the backlog
would grow: there a batch's records take half of the target, and it lasts that much longer than its fixed time.

A batch lasts its target behind a backlog, too. Who would rather catch up sooner lets it last longer there: a record waits
for what is before it, hardly for its own batch, and a larger one combines more records of a key. Then a batch may last a
tenth of what the backlog will take, up to the time that is allowed.

Bytes are bounded by the mean size of values in the batch before, for every offset: of a compacted topic, or among nulls,
few offsets have a value, and the next ones may all have one. The first batch has none before it, and one behind nulls alone
none that tells: where it could be too large if its records were as large as brokers take them, a sample of its records says
how large they are.

The bound moves by at most a factor of two a batch. Spark's first batch is not learnt from: it is mostly the compiler's
work.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import linear_regression, mean

_FIRST_RECORDS = 50_000
_LEAST_RECORDS = 1_000
_FACTOR = 2.0
# A batch is cut by its bound if it takes nearly all of it: offsets that are no records take a part.
FULL = 0.8
_REMEMBERED = 6
# A batch's records take this part of the target at the least.
_LEAST_PART = 0.5
# Of the time that the backlog will take a batch may last one part of so many, where it may last longer at all.
_BACKLOG_PARTS = 10
# What a broker takes as one batch of records unless it is told otherwise: no record is larger.
_LARGEST_BYTES = 1024 * 1024
# The largest must be so many times the smallest to tell the fixed time from that of the records: times of batches of about
# one size differ by chance, and a fit would call most of them fixed.
_SPREAD = 1.5


@dataclass(frozen=True)
class Bounds:
    """Of one batch: `records` and `bytes` at the most, `seconds` as the target, `catch_up_s` as that behind a backlog.

    See the settings of these names. A `catch_up_s` of no more than `seconds` changes nothing.
    """

    records: int
    bytes: int
    seconds: float
    catch_up_s: float = 0.0


class Pace:
    """The bound of the next batch in offsets. A record becomes up to so many `rows`: one for each window that takes it."""

    def __init__(self, bounds: Bounds, rows: int = 1) -> None:
        self._bounds = bounds
        self._least = max(1, _LEAST_RECORDS // rows)
        self._records = float(min(max(1, _FIRST_RECORDS // rows), bounds.records))
        self._record_bytes: float | None = None
        # By batches, of which one lowers it by no more than the factor: few values may be small by chance.
        self._shown_bytes = 0.0
        self._fixed_s: float | None = None
        self._warm = False
        self._seen: deque[tuple[float, float]] = deque(maxlen=_REMEMBERED)

    @property
    def offsets(self) -> int:
        """How many offsets the next batch may take in all."""
        most = min(self._records, self._bounds.records)
        if self._record_bytes:
            most = min(most, self._bounds.bytes / self._record_bytes)
        return max(1, int(most))

    def is_guess(self, offsets: int) -> bool:
        """Whether so many offsets may be more bytes than the bound, and nothing is known of the records' size yet."""
        return self._record_bytes is None and offsets * _LARGEST_BYTES > self._bounds.bytes

    def bytes_of(self, offsets: int) -> float:
        """How many bytes of values so many offsets have, by what is known of the records' size; 0 where nothing is."""
        return offsets * (self._record_bytes or 0)

    def expect(self, record_bytes: float | None) -> None:
        """Take this for the size of a record's value until a batch has shown it, or what batches have shown, if that is more.

        None is the largest there is.
        """
        self._record_bytes = _LARGEST_BYTES if record_bytes is None else max(record_bytes, self._shown_bytes)

    def took(
        self, *, offsets: int, values: int, read_bytes: int, seconds: float, left: int = 0, by_spark: bool = True
    ) -> None:
        """Learn from a finished batch, whose `values` were so many bytes, and that has left so many offsets of the backlog."""
        if offsets <= 0:
            return
        full = offsets >= FULL * self.offsets
        self._shown_bytes = max(read_bytes / values if values else 0.0, self._shown_bytes / _FACTOR)
        # Nulls, and offsets that are no records, tell nothing of the next ones, which may be large.
        self._record_bytes = self._shown_bytes if values else None
        if by_spark and not self._warm:
            self._warm = True
        elif full:
            self._seen.append((float(offsets), seconds))
            slowest, fastest = self._records / _FACTOR, self._records * _FACTOR
            goal_s = max(self._bounds.seconds, self._patience_s(left * seconds / offsets))
            wanted = min(max(self._wanted(offsets, seconds, goal_s), slowest), fastest)
            self._records = min(max(wanted, self._least), float(self._bounds.records))

    def _patience_s(self, backlog_s: float) -> float:
        return min(backlog_s / _BACKLOG_PARTS, self._bounds.catch_up_s)

    def _wanted(self, offsets: int, seconds: float, goal_s: float) -> float:
        """The size that the fit says; without one, another size to learn from."""
        sizes, times = zip(*self._seen, strict=True)
        if max(sizes) >= _SPREAD * min(sizes):
            self._fixed_s = max(linear_regression(sizes, times).intercept, 0.0)
        if self._fixed_s is None:
            return offsets * _FACTOR if seconds < goal_s else offsets / _FACTOR
        # Noise can turn the slope round, and a machine can become faster: no batch shows more than it took.
        self._fixed_s = min(self._fixed_s, *times)
        record_s: float = (mean(times) - self._fixed_s) / mean(sizes)
        records_s = max(goal_s - self._fixed_s, _LEAST_PART * self._bounds.seconds)
        return records_s / max(record_s, 1e-9)


def shares(backlog: dict[int, int], most: int) -> dict[int, int]:
    """How many offsets to take of each partition: all, or in proportion to the backlog, at least one of each."""
    total = sum(backlog.values())
    if total <= most:
        return backlog
    return {partition: min(left, max(1, left * most // total)) for partition, left in backlog.items()}
