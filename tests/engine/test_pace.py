"""How much a batch takes: within its bounds, and towards its time."""

from __future__ import annotations

import random
from statistics import mean

import pytest

from pipelines.engine.pace import Bounds, Pace, shares
from pipelines.plan import Window


def settled(
    records_per_s: float, overhead_s: float, bounds: Bounds, record_bytes: int = 100, noise: float = 0.0, seed: int = 1
) -> tuple[int, float]:
    """Size and time of a batch after forty full ones, the first of them slow as on a cold machine."""
    pace, chance = Pace(bounds), random.Random(seed)
    for number in range(40):
        taken = pace.offsets
        seconds = (overhead_s + taken / records_per_s) * chance.uniform(1 - noise, 1 + noise)
        pace.took(
            offsets=taken,
            values=taken,
            read_bytes=taken * record_bytes,
            seconds=seconds + (5.0 if number == 0 else 0.0),
        )
    return taken, overhead_s + taken / records_per_s


@pytest.mark.parametrize("records_per_s", [20_000.0, 300_000.0, 2_000_000.0])
@pytest.mark.parametrize("overhead_s", [0.0, 0.3])
def test_a_full_batch_comes_to_last_as_long_as_it_shall(records_per_s: float, overhead_s: float) -> None:
    _, seconds = settled(records_per_s, overhead_s, Bounds(10**9, 10**12, 1.0))
    assert 0.9 <= seconds <= 1.1


@pytest.mark.parametrize("seed", range(20))
def test_noise_moves_it_and_does_not_drive_it_away(seed: int) -> None:
    _, seconds = settled(300_000.0, 0.3, Bounds(10**9, 10**12, 1.0), noise=0.2, seed=seed)
    assert 0.6 <= seconds <= 2.0


@pytest.mark.parametrize(("overhead_s", "expected_s"), [(0.45, 1.0), (0.9, 1.4), (2.0, 2.5), (4.0, 4.5)])
def test_where_the_fixed_time_is_much_of_the_target_records_take_half_of_the_target(
    overhead_s: float, expected_s: float
) -> None:
    _, seconds = settled(20_000.0, overhead_s, Bounds(10**9, 10**12, 1.0))
    assert seconds == pytest.approx(expected_s, rel=0.1)


def behind_a_backlog(catch_up_s: float, left_s: float) -> float:
    """How long a batch comes to last."""
    pace = Pace(Bounds(10**9, 10**12, 1.0, catch_up_s))
    for _ in range(40):
        taken = pace.offsets
        seconds = 0.2 + taken / 300_000
        pace.took(offsets=taken, values=0, read_bytes=0, seconds=seconds, left=int(left_s * taken / seconds))
    return seconds


@pytest.mark.parametrize("left_s", [5.0, 600.0])
def test_behind_a_backlog_a_batch_lasts_its_target(left_s: float) -> None:
    assert behind_a_backlog(0.0, left_s) == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize(("left_s", "expected_s"), [(5.0, 1.0), (20.0, 2.0), (600.0, 4.0)])
def test_behind_a_long_backlog_a_batch_may_last_longer_where_that_is_allowed(left_s: float, expected_s: float) -> None:
    assert behind_a_backlog(4.0, left_s) == pytest.approx(expected_s, rel=0.1)


def test_a_slow_start_behind_a_backlog_does_not_make_batches_small() -> None:
    """Costs that grow less than their size, as of keys that come again: measured with 500,000 of them."""
    pace = Pace(Bounds(1_000_000, 10**12, 1.0, 4.0))
    warm_up = [5.6, 1.2, 1.1, 1.0]
    for number in range(30):
        taken = pace.offsets
        seconds = 0.4 + 3.2e-4 * taken**0.66 if number >= len(warm_up) else warm_up[number]
        pace.took(offsets=taken, values=0, read_bytes=0, seconds=seconds, left=6_000_000)
    assert taken > 500_000


@pytest.mark.parametrize("seed", range(20))
def test_costs_that_grow_less_than_their_size_do_not_drive_it_away(seed: int) -> None:
    """As of keys that come again, behind a slow start: measured with 500,000 of them. A fit calls much of that fixed."""
    pace, chance = Pace(Bounds(2_000_000, 10**12, 1.0)), random.Random(seed)
    warm_up, lasted = [5.6, 1.2, 1.1, 1.0], []
    for number in range(60):
        taken = pace.offsets
        seconds = (0.3 + 2.4e-4 * taken**0.66) * chance.uniform(0.8, 1.2)
        lasted.append(warm_up[number] if number < len(warm_up) else seconds)
        pace.took(offsets=taken, values=0, read_bytes=0, seconds=lasted[-1], left=6_000_000)
    assert 0.8 <= mean(lasted[-20:]) <= 1.5


def test_records_and_bytes_bound_a_batch_however_fast_it_is() -> None:
    assert settled(1e9, 0.0, Bounds(70_000, 10**12, 1.0))[0] == 70_000
    assert settled(1e9, 0.0, Bounds(10**9, 5_000_000, 1.0), record_bytes=100)[0] == 50_000
    assert settled(1e9, 0.0, Bounds(3, 10**12, 1.0))[0] == 3


def test_a_batch_is_never_empty_and_short_input_teaches_nothing() -> None:
    pace = Pace(Bounds(10**9, 1, 1.0))
    before = pace.offsets
    pace.took(offsets=10, values=0, read_bytes=0, seconds=50.0)
    assert pace.offsets == before
    pace.took(offsets=10, values=10, read_bytes=10_000, seconds=0.1)
    assert pace.offsets == 1


def test_one_batch_moves_the_bound_by_a_factor_of_two_at_most() -> None:
    pace = Pace(Bounds(10**9, 10**12, 1.0))
    pace.took(offsets=pace.offsets, values=0, read_bytes=0, seconds=100.0)
    before = pace.offsets
    pace.took(offsets=before, values=0, read_bytes=0, seconds=100.0)
    assert pace.offsets == before // 2


def test_partitions_share_a_batch_by_what_they_have() -> None:
    assert shares({0: 10, 1: 20}, 100) == {0: 10, 1: 20}
    assert shares({0: 1_000, 1: 3_000}, 400) == {0: 100, 1: 300}
    assert shares({0: 1_000_000, 1: 2}, 10) == {0: 9, 1: 1}


@pytest.mark.parametrize(("size_ms", "advance_ms", "first"), [(60, 60, 50_000), (60, 25, 16_666), (86_400, 60, 34)])
def test_where_a_record_is_in_many_windows_the_first_batch_has_fewer(size_ms: int, advance_ms: int, first: int) -> None:
    overlap = Window("hopping", size_ms, advance_ms, 0, size_ms).overlap
    assert first == Pace(Bounds(10**9, 10**12, 1.0), rows=overlap).offsets
    assert min(10, first) == Pace(Bounds(10, 10**12, 1.0), rows=overlap).offsets


def test_where_a_record_is_in_many_windows_a_batch_comes_to_last_as_long_as_it_shall_by_few_records() -> None:
    pace = Pace(Bounds(10**9, 10**12, 1.0), rows=1440)
    for _ in range(20):
        taken = pace.offsets
        pace.took(offsets=taken, values=0, read_bytes=0, seconds=0.2 + taken / 250)
    assert 150 <= taken <= 250


def test_the_first_job_of_spark_is_not_learnt_from_also_after_batches_without_one() -> None:
    pace = Pace(Bounds(10**9, 10**12, 1.0))
    pace.took(offsets=100, values=0, read_bytes=0, seconds=0.05, by_spark=False)
    before = pace.offsets
    pace.took(offsets=before, values=0, read_bytes=0, seconds=6.0)
    assert before == pace.offsets


def test_full_batches_without_spark_make_the_next_one_larger() -> None:
    pace = Pace(Bounds(10**9, 10**12, 1.0))
    before = pace.offsets
    pace.took(offsets=before, values=0, read_bytes=0, seconds=0.1, by_spark=False)
    assert pace.offsets > before


def test_before_anything_is_known_of_the_records_a_batch_that_may_be_too_large_is_a_guess() -> None:
    pace = Pace(Bounds(1_000_000, 512 * 1024 * 1024, 1.0))
    assert not pace.is_guess(512) and pace.is_guess(513)
    pace.expect(100_000.0)
    assert pace.offsets == 512 * 1024 * 1024 // 100_000 and not pace.is_guess(10**6)
    pace.expect(None)
    assert pace.offsets == 512
    # What a batch shows counts more.
    pace.took(offsets=512, values=512, read_bytes=512, seconds=0.1)
    assert pace.offsets > 1_000 and not pace.is_guess(10**6)
    # One of nulls shows nothing: large records may come behind them. A sample of nulls is one all the same.
    pace.took(offsets=512, values=0, read_bytes=0, seconds=0.1)
    assert pace.offsets > 1_000 and pace.is_guess(10**6)
    pace.expect(0.0)
    assert pace.offsets > 1_000 and not pace.is_guess(10**6)


def after(batches: int, part: float, offsets_per_s: float) -> Pace:
    """The pace after so many full batches, one of so many offsets of which has a value of 10 kB."""
    pace = Pace(Bounds(4_000_000, 512 * 1024 * 1024, 1.0))
    pace.expect(10_000.0)
    for _ in range(batches):
        offsets = pace.offsets
        values = int(offsets * part)
        seconds = 0.2 + offsets / offsets_per_s
        pace.took(offsets=offsets, values=values, read_bytes=values * 10_000, seconds=seconds, left=10**9)
    return pace


@pytest.mark.parametrize("part", [0.01, 0.5, 1.0])
def test_few_values_among_many_offsets_let_no_batch_be_too_large_once_all_have_one(part: float) -> None:
    """As behind the compacted head of a topic, or behind many tombstones."""
    assert after(14, part, 10**7).offsets * 10_000 <= 512 * 1024 * 1024


def test_one_batch_lowers_the_size_of_a_value_by_a_factor_of_two_at_most() -> None:
    pace = after(3, 1.0, 10**7)
    assert 10_000 == pace.bytes_of(1)
    pace.took(offsets=10, values=1, read_bytes=1, seconds=0.1)
    assert 5_000 == pace.bytes_of(1)
    # Nor do nulls, though a sample is asked for, which counts where it is larger.
    pace.took(offsets=10, values=0, read_bytes=0, seconds=0.1)
    assert pace.is_guess(10**6)
    pace.expect(0.0)
    assert 2_500 == pace.bytes_of(1)
    pace.expect(20_000.0)
    assert 20_000 == pace.bytes_of(1)
