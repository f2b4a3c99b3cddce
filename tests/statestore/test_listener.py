"""How far a restore is: amount, percent, rate and time left, as it goes, and nothing when it has ended."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import pytest
from structlog.testing import capture_logs

from statestore.listener import RestoreLog, RestoreMeter, Restoring, told


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


def lines(logged: list[MutableMapping[str, Any]], event: str) -> list[dict[str, Any]]:
    return [
        {k: v for k, v in line.items() if k not in ("event", "log_level")} for line in logged if line["event"] == event
    ]


def test_a_long_restore_is_told_in_the_log_every_few_seconds() -> None:
    clock = Clock()
    with capture_logs() as logged:
        meter = RestoreMeter(clock, task="q-0")
        meter.on_snapshot_downloaded(done=0, total=1_000)
        for done in range(100, 1_000, 100):
            clock.now += 2
            meter.on_snapshot_downloaded(done=done, total=1_000)
        with told(meter, RESTORING) as on_batch:
            clock.now += 5
            on_batch(2_000, 1_000)
    assert [
        {"task": "q-0", "unit": "bytes", "amount": 300, "percent": 30, "per_second": 50, "left_s": 14.0},
        {"task": "q-0", "unit": "bytes", "amount": 600, "percent": 60, "per_second": 50, "left_s": 8.0},
        {"task": "q-0", "unit": "bytes", "amount": 900, "percent": 90, "per_second": 50, "left_s": 2.0},
        {"task": "q-0", "unit": "records", "amount": 1_000, "percent": 50, "per_second": 200, "left_s": 5.0},
    ] == lines(logged, "restore goes on")


def test_a_short_restore_has_no_line_of_its_progress() -> None:
    clock = Clock()
    with capture_logs() as logged, told(RestoreMeter(clock), RESTORING) as on_batch:
        clock.now += 4
        on_batch(2_000, 1_000)
    assert [] == logged


def test_the_log_of_a_program_s_restore_has_its_progress_too() -> None:
    clock = Clock()
    with capture_logs() as logged, told(RestoreLog(clock), RESTORING) as on_batch:
        clock.now += 5
        on_batch(2_000, 1_000)
    assert ["restore started", "restore goes on", "restore ended"] == [line["event"] for line in logged]
    [told_] = lines(logged, "restore goes on")
    assert ("s", "s-changelog", 50, 200) == (told_["store"], told_["topic"], told_["percent"], told_["per_second"])


def test_a_snapshot_begun_again_is_measured_from_there() -> None:
    clock = Clock()
    meter = RestoreMeter(clock)
    meter.on_snapshot_downloaded(done=0, total=400)
    clock.now += 50
    meter.on_snapshot_downloaded(done=0, total=800)
    clock.now += 1
    meter.on_snapshot_downloaded(done=200, total=800)
    assert {"unit": "bytes", "amount": 200, "percent": 25, "per_second": 200, "left_s": 3.0} == meter.figures()
