"""How far a restore is: amount, percent, rate and time left, as it goes, and nothing when it has ended."""

from __future__ import annotations

import pytest

from statestore.listener import RestoreMeter, Restoring, told


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


RESTORING = Restoring("s", "s-changelog", 0, start=1000, end=3000)


def test_records_are_told_with_their_rate_and_the_time_left() -> None:
    clock = Clock()
    meter = RestoreMeter(clock)
    with told(meter, RESTORING) as on_batch:
        assert {"unit": "records", "amount": 0, "percent": 0, "per_second": None, "left_s": None} == meter.figures()
        clock.now += 2
        # Half of the offsets are markers or were compacted away.
        on_batch(1500, 250)
        assert {"unit": "records", "amount": 250, "percent": 25, "per_second": 125, "left_s": 6.0} == meter.figures()
        clock.now += 2
        on_batch(2000, 250)
        assert {"unit": "records", "amount": 500, "percent": 50, "per_second": 125, "left_s": 4.0} == meter.figures()
    assert meter.figures() is None


def test_a_snapshot_is_told_in_bytes_and_its_tail_in_records() -> None:
    clock = Clock()
    meter = RestoreMeter(clock)
    meter.on_snapshot_downloaded(done=0, total=400)
    clock.now += 1
    meter.on_snapshot_downloaded(done=100, total=400)
    assert {"unit": "bytes", "amount": 100, "percent": 25, "per_second": 100, "left_s": 3.0} == meter.figures()
    meter.on_snapshot_downloaded(done=400, total=400)
    assert meter.figures() is None
    with told(meter, RESTORING):
        assert "records" == (meter.figures() or {})["unit"]


def test_a_suspended_restore_is_over_for_now() -> None:
    meter = RestoreMeter(Clock())
    with pytest.raises(OSError, match="gone"), told(meter, RESTORING) as on_batch:
        on_batch(1001, 1)
        raise OSError("gone")
    assert meter.figures() is None
