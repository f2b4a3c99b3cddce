"""What is told to a registry that is slow, away or broken: in order, bounded, and nobody waits for it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import delete
from sqlalchemy.exc import OperationalError
from structlog.testing import capture_logs

from ops.control import is_of
from pipelines import heart
from pipelines.heart import Heart
from pipelines.recomputes import Recomputes
from pipelines.registry import DriverRow, Registry
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


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    registry = Registry(f"sqlite:///{tmp_path / 'registry.db'}")
    yield registry
    registry.close()


def test_a_driver_that_runs_is_shown_again_after_its_database_was_lost(registry: Registry) -> None:
    beats = Heart("p", registry, lambda: ("running", []), lambda: None)
    beats.start(metrics_port=7)
    with registry.engine.begin() as connection:
        connection.execute(delete(DriverRow))
    beats.beat_now()
    await_("its row", lambda: (row := registry.driver("p")) is not None and row.state == "running", 10)
    row = registry.driver("p")
    assert row is not None
    assert (os.getpid(), 7) == (row.pid, row.metrics_port)
    # Another driver's row is left alone, also in a container where it has the same number.
    registry.driver_started("p", pid=os.getpid(), process_started=0.0, host="there")
    beats._show()
    row = registry.driver("p")
    assert row is not None
    assert ("there", "starting") == (row.host, row.state)
    beats.end("stopped", "")


def test_a_driver_begins_behind_its_deployment_whatever_the_clocks_say(registry: Registry) -> None:
    now = time.time()
    for ahead_s in (0, 120, 86_400):
        began = []
        for _driver in range(2):
            beats = Heart("p", registry, lambda: ("running", []), lambda: None, deployed_at=now + ahead_s)
            beats._begin_row()
            row = registry.driver("p")
            assert row is not None and is_of(row, now + ahead_s)
            began.append(row.started_at)
            time.sleep(0.01)
        # Two drivers of one pid are told apart by it.
        assert began[0] < began[1]
        assert ahead_s or began[0] >= now


def test_while_the_registry_is_away_the_stream_is_told_of_no_request(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = threading.Event()
    waiting = Recomputes.waiting

    def asked(recomputes: Recomputes, pipeline: str) -> frozenset[str]:
        if away.is_set():
            raise OperationalError("select", {}, Exception("time-out"))
        return waiting(recomputes, pipeline)

    monkeypatch.setattr(Recomputes, "waiting", asked)
    Recomputes(registry.engine).ask("p", "q", from_ms=0, to_ms=1, dry_run=False)
    beats = Heart("p", registry, lambda: ("running", []), lambda: None)
    beats.start(metrics_port=None)
    assert beats.is_requested("q")
    away.set()
    beats.beat_now()
    await_("none", lambda: not beats.is_requested("q"), 10)
    away.clear()
    beats.beat_now()
    await_("the request", lambda: beats.is_requested("q"), 10)
    beats.end("stopped", "")


def test_a_registry_that_does_not_answer_any_more_does_not_keep_a_driver(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heart, "_REPORTS_S", 0.3)
    answers = threading.Event()
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
