"""What is told to a registry that is slow, away or broken: in order, bounded, and nobody waits for it."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from pipelines import heart
from pipelines.heart import Heart
from pipelines.registry import Registry
from pipelines.reports import Reports
from tests.support.waiting import await_


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


def test_a_registry_that_does_not_answer_any_more_does_not_keep_a_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heart, "_REPORTS_S", 0.3)
    registry, answers = Registry(f"sqlite:///{tmp_path / 'registry.db'}"), threading.Event()
    beats = Heart("p", registry, lambda: ("running", []), lambda: None)
    beats.start(metrics_port=None)
    seen = registry.driver_seen
    monkeypatch.setattr(registry, "driver_seen", lambda *a, **k: (answers.wait(20), seen(*a, **k)))
    beats.beat_now()
    started = time.monotonic()
    with capture_logs() as logged:
        beats.end("stopped", "")
    assert time.monotonic() - started < 5
    assert "registry does not answer: the driver ends all the same" in [line["event"] for line in logged]
    # Should it answer yet, the last word is the last.
    answers.set()
    await_("the last word", lambda: (row := registry.driver("p")) is not None and row.state == "stopped", 10)
    registry.close()
