"""Cuts a backlog by time: what a batch takes of each partition where the order of records decides which are late.

    p0  ────────────────────────────┤··········     before T, of each partition    taken
    p1   ─   ─    ─   ─   ─   ─   ─ ┤  ·   ·        from T on                      left to the batches behind

A batch takes its records in the order of `record_order.py`, but only its own. Had it a part of each backlog, and did one
partition's part reach further in time, its newest records would close windows that the next batches still have records
for. So it ends at one time in all partitions. Where brokers find the first record of a time or later, the largest time so
far in the partition has come to it: batch after batch is the order that one batch of the whole backlog would have. A task
sees its own records only, so one that jumps back behind the cut may come later to it than within one batch.

T is found by halving: one question about all partitions a step, beginning where it will be if records go on as in the batch
before. It is good enough where the batch is full, as the pace takes it. Of records of one millisecond that a batch cannot
hold as well it takes some, in their order; if they are more than a whole batch, each partition's share. So a batch is never
empty, whatever brokers answer.

Records without a time come first. The markers of transactions have the time at which they were written, and brokers do not
tell them from records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from pipelines.engine.pace import FULL, shares
from statestore.batches import Range

# A batch aims at the middle of what is full.
_AIM = (FULL + 1) / 2
_LEAST_STEP_MS = 1_000
# Before the first record of any time, and behind the last.
_BEFORE, _BEHIND = -1, 2**63 - 1
# By partition: the first offset of a time or later, of the records from an offset on; any behind so many if it is not among them.
FirstAt = Callable[[int, Mapping[int, int], int], Mapping[int, int]]


class TimeCut:
    """Remembers how far one query's batches have come in time. `now_ms` is where to look first."""

    def __init__(self, first_at: FirstAt, now_ms: int) -> None:
        self._first_at = first_at
        self._time = now_ms
        # Of the batch before, how long an offset was, and whether it ended within a millisecond.
        self._offset_ms = 0.0
        self._is_within = False

    def shortened(self, ranges: tuple[Range, ...], most: int) -> tuple[Range, ...]:
        """The first so many offsets of these; perhaps some more, of each partition one at the least."""
        at, backlog = {r.partition: r.start for r in ranges}, {r.partition: r.offsets for r in ranges if r.offsets}
        taken = self.taken(at, backlog, most)
        return tuple(replace(r, end=r.start + taken.get(r.partition, 0)) for r in ranges)

    def taken(self, at: Mapping[int, int], backlog: Mapping[int, int], most: int) -> dict[int, int]:
        """How many offsets of each partition's backlog, which begins `at`, a batch takes that may take so many."""
        if len(backlog) == 1 or sum(backlog.values()) <= most:
            return shares(dict(backlog), most)
        time, taken = self._search(at, backlog, most)
        if time > self._time:
            self._offset_ms = (time - self._time) / sum(taken.values())
        self._time = time
        return taken

    def _search(self, at: Mapping[int, int], backlog: Mapping[int, int], most: int) -> tuple[int, dict[int, int]]:
        """The time at which the batch ends, and what it takes."""
        low, sure = _BEFORE, dict.fromkeys(backlog, 0)
        high, beyond = _BEHIND, dict(backlog)
        ahead = max(_LEAST_STEP_MS, int(_AIM * most * self._offset_ms))
        guess, step = self._time + ahead, max(_LEAST_STEP_MS, ahead // 4)
        if self._is_within:
            # It may well be the same one.
            guess, step = self._time + 1, 1
        self._is_within = False
        while high - low > 1:
            guess = min(max(guess, low + 1), high - 1)
            found = self._before(guess, at, backlog, most)
            if sum(found.values()) > most:
                high, beyond = guess, found
            else:
                low, sure = guess, found
                if sum(sure.values()) >= FULL * most:
                    return low, sure
            if low == _BEFORE or high == _BEHIND:
                guess = high - step if low == _BEFORE else low + step
                step = max(2 * step, _LEAST_STEP_MS)
            else:
                guess = (low + high) // 2
        self._is_within = True
        return low, _with_some(sure, beyond, most)

    def _before(self, time_ms: int, at: Mapping[int, int], backlog: Mapping[int, int], most: int) -> dict[int, int]:
        """How many offsets of each backlog lie before a time, or that they are more than a batch takes."""
        first = self._first_at(time_ms, {p: at[p] for p in backlog}, most)
        return {p: min(max(first[p] - at[p], 0), left) for p, left in backlog.items()}


def _with_some(sure: dict[int, int], beyond: dict[int, int], most: int) -> dict[int, int]:
    """Of what lies between two times that follow each other as much as fits, in the order of records of one time."""
    if not any(sure.values()):
        return shares(beyond, most)
    taken, room = dict(sure), most - sum(sure.values())
    for partition in sorted(taken):
        more = min(room, max(0, beyond[partition] - taken[partition]))
        taken[partition] += more
        room -= more
    return taken
