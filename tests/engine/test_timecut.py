"""Batches of a backlog in several partitions end at one time in all of them, so none makes late what the next ones hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipelines.engine.intake import Intake
from pipelines.engine.isolate import without_refused
from pipelines.engine.pace import FULL, Bounds, Pace
from pipelines.engine.record_order import record_order
from pipelines.engine.timecut import TimeCut
from pipelines.plan import Window
from statestore.batches import Planned, Range, count_offsets
from tests.engine.ordered_model import Input
from tests.engine.test_record_order import QUERY, Task

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
NOW_MS = 1_700_000_000_000
WINDOWED = replace(QUERY, window=Window("tumbling", 10 * MINUTE_MS, 10 * MINUTE_MS, 5 * MINUTE_MS, 2 * HOUR_MS))


class Log:
    """A topic: of each partition the records' times, None where there is no record any more. Answers as a source does."""

    def __init__(self, *partitions: Sequence[int | None]) -> None:
        self.partitions = partitions
        self.asked = 0

    def first_at(self, time_ms: int, starts: Mapping[int, int], most: int) -> dict[int, int]:
        assert time_ms >= 0
        self.asked += 1
        return {
            number: next((n for n in range(start, len(times)) if (times[n] or -1) >= time_ms), len(times))
            for number, start in starts.items()
            for times in [self.partitions[number]]
        }

    def deleted(self, *_: object) -> tuple[Range, ...]:
        return ()

    def range(self, partition: int, start: int, end: int) -> Range:
        return Range("t", "id", partition, start, end)

    @property
    def ends(self) -> dict[int, int]:
        return {number: len(times) for number, times in enumerate(self.partitions)}


def batches(log: Log, most: int, *, by_time: bool = True, begin: int = 0) -> list[tuple[Range, ...]]:
    """What batch after batch takes, each of so many records at the most, until nothing is left from an offset on."""
    source: Any = log
    intake = Intake(source, Pace(Bounds(most, 10**12, 1.0)), TimeCut(log.first_at, NOW_MS) if by_time else None)
    intake.take_in(dict.fromkeys(log.ends, begin), first=True)
    taken: list[tuple[Range, ...]] = []
    while (ranges := intake.next(log.ends)) is not None:
        assert any(r.offsets for r in ranges), "a batch of nothing"
        intake.stands(Planned(len(taken), "h", ranges))
        taken.append(ranges)
    return taken


def inputs(log: Log, ranges: tuple[Range, ...]) -> list[Input]:
    """The records of a batch."""
    return [
        Input(r.partition, offset, time, "k", 1, None, None, None)
        for r in ranges
        for offset in range(r.start, r.end)
        if (time := log.partitions[r.partition][offset]) is not None
    ]


def dropped(log: Log, taken: list[tuple[Range, ...]]) -> int:
    """How many records come late."""
    task = Task(WINDOWED)
    for ranges in taken:
        task.batch(inputs(log, ranges))
    return task.dropped


def uneven() -> Log:
    """A thousand records over an hour beside a hundred of its last five minutes."""
    return Log(
        [NOW_MS - HOUR_MS + n * HOUR_MS // 1_000 for n in range(1_000)],
        [NOW_MS - 5 * MINUTE_MS + n * 5 * MINUTE_MS // 100 for n in range(100)],
    )


def test_a_backlog_in_small_batches_drops_what_one_batch_drops() -> None:
    log = uneven()
    parts, cut = batches(log, 110, by_time=False), batches(log, 110)
    assert 0 == dropped(log, batches(log, 10_000))
    assert dropped(log, parts) > 600
    assert 0 == dropped(log, cut)
    assert len(cut) <= len(parts) / FULL + 1


def test_no_batch_reaches_past_what_is_left_of_another_partition() -> None:
    log = uneven()
    for ranges in batches(log, 110):
        newest = max(log.partitions[r.partition][r.end - 1] or 0 for r in ranges if r.offsets)
        left = [log.partitions[r.partition][r.end] for r in ranges if r.end < log.ends[r.partition]]
        assert all(newest <= (time or 0) for time in left)


TIMES = st.lists(st.integers(0, 6).map(lambda step: step * step), max_size=60).map(
    lambda steps: list(accumulate(steps))
)


@st.composite
def logs(draw: st.DrawFn) -> Log:
    """Partitions whose times go on and jump back, some records without a time or gone."""
    odd = st.sampled_from([None, -1, *[0] * 12, 30])
    partitions = []
    for times in draw(st.lists(TIMES, min_size=2, max_size=4)):
        offs = draw(st.lists(odd, min_size=len(times), max_size=len(times)))
        begin = draw(st.sampled_from([0, 50, NOW_MS, 10**16]))
        partitions.append(
            [off if off in (None, -1) else begin + max(0, t - (off or 0)) for t, off in zip(times, offs, strict=True)]
        )
    return Log(*partitions)


def in_order(records: list[Input]) -> list[Input]:
    columns = {"__partition": [r.partition for r in records], "__offset": [r.offset for r in records]}
    order = record_order(pa.table({**columns, "__time": pa.array([r.time for r in records], pa.int64())}))
    return [records[n] for n in order.to_pylist()]


@settings(deadline=None)
@example(log=Log([5] * 100, [5] * 7, []), most=10)
@example(log=Log([-1] * 30, [-1] * 30), most=7)
@example(log=Log([2**63 - 1] * 30, [0] * 30), most=7)
@given(log=logs(), most=st.integers(1, 50))
def test_every_record_is_in_one_batch_and_a_full_one_where_more_is_left(log: Log, most: int) -> None:
    taken = batches(log, most)
    for number, end in log.ends.items():
        spans = [(r.start, r.end) for ranges in taken for r in ranges if r.partition == number and r.offsets]
        assert list(range(end)) == [offset for start, stop in spans for offset in range(start, stop)]
    for ranges in taken[:-1]:
        # Shares are rounded, and of each partition one at the least.
        assert FULL * most - len(ranges) <= sum(r.offsets for r in ranges) <= most + len(ranges)


@settings(deadline=None)
@given(log=logs(), most=st.integers(20, 60))
def test_batch_after_batch_is_the_order_of_one(log: Log, most: int) -> None:
    everything = in_order(inputs(log, tuple(log.range(number, 0, end) for number, end in log.ends.items())))
    # None of what comes at one time is more than a batch.
    heads: dict[int, int] = {}
    at_once: dict[int, int] = {}
    for number, times in enumerate(log.partitions):
        for time in times:
            heads[number] = max(heads.get(number, -1), -1 if time is None else time)
            at_once[heads[number]] = at_once.get(heads[number], 0) + 1
    if max(at_once.values(), default=0) <= most:
        assert everything == [record for ranges in batches(log, most) for record in in_order(inputs(log, ranges))]


def test_while_records_go_on_alike_brokers_are_asked_once_a_batch() -> None:
    begin = NOW_MS - 24 * HOUR_MS
    log = Log(*([begin + n * 2_000 + p for n in range(40_000 - 5_000 * p)] for p in range(3)))
    first = Log(*log.partitions)
    TimeCut(first.first_at, NOW_MS).taken(dict.fromkeys(log.ends, 0), log.ends, 1_000)
    assert first.asked <= 45
    taken = batches(log, 1_000)
    assert log.asked <= first.asked + 1.5 * len(taken)


def test_of_records_of_one_time_few_questions_are_asked() -> None:
    log = Log(*([NOW_MS + n // 15_000 * 24 * HOUR_MS for n in range(60_000)] for _ in range(3)))
    taken = batches(log, 1_000)
    assert len(taken) <= 180 + 3
    assert log.asked <= 3 * len(taken)


def poisoned(log: Log, most: int) -> list[tuple[Range, ...]]:
    """Batch after batch, each cut since it fails of more than so many records, as amounts do that are too much together."""
    cut, at, taken = TimeCut(log.first_at, NOW_MS), dict.fromkeys(log.ends, 0), []
    while at != log.ends:
        planned = Planned(0, "h", tuple(log.range(number, at[number], end) for number, end in log.ends.items()))

        def failure(_planned: Planned, part: tuple[Range, ...]) -> str | None:
            return "sum" if count_offsets(part) > most else None

        left = without_refused(planned, failure, most=9, cut=cut.shortened)
        assert 0 < count_offsets(left.ranges) <= most
        assert not left.refused
        taken.append(left.ranges)
        at = {r.partition: r.end for r in left.ranges}
    return taken


def test_a_batch_that_is_cut_because_it_fails_ends_at_one_time_as_well() -> None:
    log = uneven()
    assert 0 == dropped(log, poisoned(log, 150))
    # Of two records, of which one may be taken at a time.
    assert 2 == len(poisoned(Log([1], [2]), 1))


@pytest.mark.parametrize("partitions", [[list(range(100))], [list(range(100)), []]])
def test_where_one_partition_waits_nobody_is_asked(partitions: list[list[int]]) -> None:
    log = Log(*partitions)
    assert [10] * 10 == [sum(r.offsets for r in ranges) for ranges in batches(log, 10)]
    assert 0 == log.asked
