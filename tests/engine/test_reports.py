"""What is told to a registry that is slow, away or broken: in order, bounded, and nobody waits for it."""

from __future__ import annotations

import threading
import time

from structlog.testing import capture_logs

from pipelines.reports import Reports


def test_reports_are_made_in_their_order_and_an_error_ends_none_behind_it() -> None:
    made: list[int] = []
    reports = Reports("p")
    for number in range(100):
        reports.put(lambda number=number: made.append(number))  # type: ignore[misc]
        reports.put(lambda: 1 // 0)
    with capture_logs() as logged:
        reports.close(10)
    assert list(range(100)) == made
    assert {"report was not made"} == {line["event"] for line in logged}


def test_a_registry_that_does_not_answer_holds_nobody_up() -> None:
    answers = threading.Event()
    reports = Reports("p", most=3)
    started = time.monotonic()
    reports.put(answers.wait)
    with capture_logs() as logged:
        for _ in range(10):
            reports.put(lambda: None)
    reports.close(0.2)
    assert time.monotonic() - started < 5
    # One may have been taken up before the queue was full.
    assert logged[-1]["dropped"] in (7, 8)
    answers.set()
