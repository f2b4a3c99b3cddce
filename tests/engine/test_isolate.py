"""The search for records that fail: exactly those, at a bounded cost, and never for another error."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipelines.engine.isolate import Trial, cause_of, find_refused, without_refused
from statestore.batches import Planned, Range, Recompute, Refused
from statestore.errors import InvalidInput, Unavailable

Place = tuple[int, int]


def ranges(*ends: int) -> tuple[Range, ...]:
    return tuple(Range("t", "id", partition, 5, 5 + end) for partition, end in enumerate(ends))


def offsets(part: tuple[Range, ...]) -> int:
    return sum(r.end - r.start for r in part)


class Job:
    """Fails if it is given a poisoned place that is not left out."""

    def __init__(self, poisoned: set[Place]) -> None:
        self.poisoned, self.runs = poisoned, 0

    def __call__(self, part: tuple[Range, ...], without: tuple[Refused, ...] = ()) -> str | None:
        self.runs += 1
        left = self.poisoned - {(r.partition, r.offset) for r in without}
        found = sorted((p, o) for p, o in left for r in part if r.partition == p and r.start <= o < r.end)
        return f"poison at {found[0]}" if found else None


class Left:
    """A job that is given what is left of a batch."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def __call__(self, planned: Planned, part: tuple[Range, ...]) -> str | None:
        return self.job(part, planned.refused)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=4), st.data())
def test_exactly_the_poisoned_records_are_found(ends: list[int], data: st.DataObject) -> None:
    places = [(partition, 5 + at) for partition, end in enumerate(ends) for at in range(end)]
    poisoned = set(data.draw(st.lists(st.sampled_from(places), max_size=5))) if places else set()
    found, known = find_refused(ranges(*ends), Job(poisoned), most=10)
    assert known == ranges(*ends)
    assert sorted(poisoned) == sorted((r.partition, r.offset) for r in found)
    assert all(f"poison at {(r.partition, r.offset)}" in r.reason for r in found)


def test_the_cost_grows_with_the_logarithm_of_the_batch() -> None:
    job = Job({(1, 777)})
    assert len(find_refused(ranges(1_000_000, 1_000_000), job, most=2)[0]) == 1
    assert job.runs <= 2 * math.ceil(math.log2(2_000_000)) + 3


def test_with_the_most_records_the_batch_ends_behind_the_last_of_them() -> None:
    found, known = find_refused(ranges(3, 100, 7), Job({(1, 5 + 2 * n) for n in range(50)}), most=10)
    assert [(1, 5 + 2 * n) for n in range(10)] == [(r.partition, r.offset) for r in found]
    assert known[1] == Range("t", "id", 1, 5, 24)


def test_where_the_batch_ends_every_partition_has_its_share() -> None:
    _, known = find_refused(ranges(100, 100, 100), Job({(1, 5 + 50)}), most=1)
    assert [(5, 56), (5, 56), (5, 55)] == [(r.start, r.end) for r in known]


def more_than(most: int) -> Trial:
    """Fails of more records than that."""
    return lambda part, _without: "sum" if offsets(part) > most else None


def test_halves_that_fail_only_together_end_the_batch_between_them() -> None:
    assert find_refused(ranges(8), more_than(4), most=9) == ((), ranges(4))
    assert find_refused(ranges(8, 4), more_than(6), most=9) == ((), ranges(4, 2))
    assert find_refused(ranges(1, 1), more_than(1), most=9) == ((), ranges(1, 0))


def test_a_record_that_fails_once_is_not_refused() -> None:
    answers = iter(["once", "once", None, None, None])
    planned = Planned(1, "plan", ranges(2))
    assert without_refused(planned, lambda _planned, _part: next(answers), most=9).refused == ()


class Sum:
    """Fails of amounts that are more than 9 together; an amount of 10 is a poisoned record. `state` is what is committed."""

    def __init__(self, amounts: list[int]) -> None:
        self.amounts, self.state, self.runs = amounts, 0, 0

    def __call__(self, planned: Planned, part: tuple[Range, ...]) -> str | None:
        self.runs += 1
        return "overflow" if self.state + self.total(planned, part) > 9 else None

    def total(self, planned: Planned, part: tuple[Range, ...]) -> int:
        without = {(r.partition, r.offset) for r in planned.refused}
        places = ((r.partition, offset) for r in part for offset in range(r.start, r.end))
        return sum(self.amounts[o - 5] for p, o in places if (p, o) not in without)


@given(st.lists(st.integers(-10, 10), min_size=1, max_size=60), st.integers(1, 5))
@example([9, -5, 10, 0, 0, 4, 0, 0, 0], 9)
@example([5, -10, 10, 3, 5, 5, -6, 0, 5, -10, 10, 7, 9, -5, 10, 10, 7], 3)
def test_batch_after_batch_goes_through_and_only_what_cannot_be_added_is_refused(amounts: list[int], most: int) -> None:
    total, at, refused = Sum(amounts), 5, []
    end = 5 + len(amounts)
    while at < end:
        whole = Planned(1, "plan", (Range("t", "id", 0, at, end),))
        planned = without_refused(whole, total, most=most)
        assert total(planned, planned.ranges) is None
        assert planned.ranges[0].start == at < planned.ranges[0].end
        for record in planned.refused:
            front = total.total(planned, (Range("t", "id", 0, at, record.offset),))
            assert total.state + front + amounts[record.offset - 5] > 9
        total.state += total.total(planned, planned.ranges)
        refused += [r.offset for r in planned.refused]
        at = planned.ranges[0].end
    assert total.state == sum(amount for offset, amount in enumerate(amounts, start=5) if offset not in refused)


def test_a_record_for_which_those_in_front_make_room_is_not_refused() -> None:
    total = Sum([-5, 10, 0, 0, 4, 0, 0, 0])
    total.state = 9
    planned = without_refused(Planned(1, "plan", ranges(8)), total, most=9)
    assert [6] == [r.offset for r in planned.refused]
    assert planned.ranges == ranges(4)
    total.state += total.total(planned, planned.ranges)
    rest = Planned(2, "plan", (Range("t", "id", 0, 9, 13),))
    assert rest == without_refused(rest, total, most=9)


@given(st.lists(st.lists(st.integers(0, 10), max_size=20), min_size=1, max_size=4), st.integers(1, 5))
def test_no_partition_waits_for_another_and_no_record_is_lost(partitions: list[list[int]], most: int) -> None:
    poisoned = {(p, 5 + at) for p, values in enumerate(partitions) for at, value in enumerate(values) if value == 10}
    starts, refused = dict.fromkeys(range(len(partitions)), 5), set()
    ends = {p: 5 + len(values) for p, values in enumerate(partitions)}
    while starts != ends:
        whole = Planned(1, "plan", tuple(Range("t", "id", p, starts[p], ends[p]) for p in starts))
        planned = without_refused(whole, Left(Job(set(poisoned))), most=most)
        assert offsets(planned.ranges) > 0
        taken = {(r.partition, o) for r in planned.ranges for o in range(r.start, r.end)}
        assert poisoned & taken == {(r.partition, r.offset) for r in planned.refused}
        refused |= poisoned & taken
        starts = {r.partition: r.end for r in planned.ranges}
    assert refused == poisoned


@pytest.mark.parametrize("is_period", [False, True])
def test_where_no_record_matters_to_another_none_is_read_again_for_it(is_period: bool) -> None:
    poisoned, read = Job({(0, 5 + 2_000 * n) for n in range(50)}), []

    def failure(planned: Planned, part: tuple[Range, ...]) -> str | None:
        read.append(offsets(part))
        return Left(poisoned)(planned, part)

    whole = Planned(1, "plan", ranges(100_000))
    if is_period:
        whole = Planned(1, "plan", ranges(0), recompute=Recompute("request", 0, 1, ranges(100_000)))
    assert 50 == len(without_refused(whole, failure, most=100, stateless=not is_period).refused)
    assert sum(read) < 12 * 100_000


def test_a_period_is_not_cut() -> None:
    period = Recompute("request", 0, 1, ranges(50))
    planned = Planned(1, "plan", ranges(0), recompute=period)
    poisoned = Job({(0, 5 + n) for n in range(20)})
    with pytest.raises(InvalidInput, match="period fails of more records"):
        without_refused(planned, lambda _planned, part: poisoned(part), most=10)


def test_a_period_may_fail_of_as_many_records_as_can_be_left_out() -> None:
    planned = Planned(1, "plan", ranges(0), recompute=Recompute("request", 0, 1, ranges(50)))
    left_out = without_refused(planned, Left(Job({(0, 5 + n) for n in range(10)})), most=10)
    assert [5 + n for n in range(10)] == [r.offset for r in left_out.refused]


def test_a_period_that_fails_only_together_says_so() -> None:
    planned = Planned(1, "plan", ranges(0), recompute=Recompute("request", 0, 1, ranges(50)))
    with pytest.raises(InvalidInput, match="period fails of its records together"):
        without_refused(planned, lambda _planned, part: "sum" if offsets(part) > 20 else None, most=10)


@pytest.mark.parametrize("most", [1, 10])
def test_a_record_that_fails_though_it_is_left_out_ends_the_search(most: int) -> None:
    poisoned = Job({(0, 9)})
    with pytest.raises(InvalidInput, match="record fails though it is left out"):
        without_refused(Planned(1, "plan", ranges(50)), lambda _planned, part: poisoned(part), most=most)


def test_another_error_ends_the_search() -> None:
    def gone(_part: tuple[Range, ...], _without: tuple[Refused, ...]) -> str | None:
        raise Unavailable("store server does not answer")

    with pytest.raises(Unavailable):
        find_refused(ranges(8), gone, most=9)


def test_an_error_whose_text_is_gone_has_a_cause_as_well() -> None:
    class Lost(Exception):
        """As py4j's: its text is the JVM's, which has ended."""

        def __str__(self) -> str:
            raise ConnectionRefusedError

    assert cause_of(Lost("o42")) == "Lost('o42')"
