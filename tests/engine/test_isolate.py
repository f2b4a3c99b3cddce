"""The search for records that fail: exactly those, at a bounded cost, and never for another error."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.engine.isolate import find_refused
from statestore.batches import Range
from statestore.errors import InvalidInput, Unavailable

Place = tuple[int, int]


def ranges(*ends: int) -> tuple[Range, ...]:
    return tuple(Range("t", "id", partition, 5, 5 + end) for partition, end in enumerate(ends))


class Job:
    """Fails if it is given a poisoned place."""

    def __init__(self, poisoned: set[Place]) -> None:
        self.poisoned, self.runs = poisoned, 0

    def __call__(self, part: tuple[Range, ...]) -> str | None:
        self.runs += 1
        found = sorted((p, o) for p, o in self.poisoned for r in part if r.partition == p and r.start <= o < r.end)
        return f"poison at {found[0]}" if found else None


@given(st.lists(st.integers(0, 40), min_size=1, max_size=4), st.data())
def test_exactly_the_poisoned_records_are_found(ends: list[int], data: st.DataObject) -> None:
    places = [(partition, 5 + at) for partition, end in enumerate(ends) for at in range(end)]
    poisoned = set(data.draw(st.lists(st.sampled_from(places), max_size=5))) if places else set()
    found = find_refused(ranges(*ends), Job(poisoned), most=10)
    assert sorted(poisoned) == [(r.partition, r.offset) for r in found]
    assert all(f"poison at {(r.partition, r.offset)}" in r.reason for r in found)


def test_the_cost_grows_with_the_logarithm_of_the_batch() -> None:
    job = Job({(1, 777)})
    assert len(find_refused(ranges(1_000_000, 1_000_000), job, most=1)) == 1
    assert job.runs <= 2 * math.ceil(math.log2(2_000_000)) + 3


def test_too_many_end_the_search() -> None:
    with pytest.raises(InvalidInput, match="too many records"):
        find_refused(ranges(100), Job({(0, 5 + n) for n in range(50)}), most=10)


def test_a_failure_that_no_single_record_makes_refuses_none() -> None:
    assert find_refused(ranges(8), lambda part: "sum" if sum(r.end - r.start for r in part) > 1 else None, most=9) == ()


def test_a_record_that_fails_once_is_not_refused() -> None:
    answers = iter(["once", "once", None, None])
    assert find_refused(ranges(2), lambda _part: next(answers), most=9) == ()


def test_another_error_ends_the_search() -> None:
    def gone(_part: tuple[Range, ...]) -> str | None:
        raise Unavailable("store server does not answer")

    with pytest.raises(Unavailable):
        find_refused(ranges(8), gone, most=9)
