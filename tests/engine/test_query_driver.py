"""A batch that is given up: what its error says is true of every task. A task that stops between batches is opened again."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from pipelines.engine import query_driver
from pipelines.engine.job import StagedBatch
from pipelines.engine.query_driver import QueryDriver
from pipelines.engine.spark import SparkNotStarted
from pipelines.traces import NO_TRACES
from statestore.batches import Planned, Range, Recompute
from statestore.errors import DataCorrupted, Unavailable, Unrecoverable

PLANNED = Planned(7, "plan", (Range("s", "id", 0, 0, 10),))
QUERY: Any = SimpleNamespace(name="q", tasks=2, on_error="stop")


def driver_of(figures: list[dict[str, Any]]) -> QueryDriver:
    """One whose every attempt fails at the commit; the tasks then have these figures."""

    def commit(_planned: Planned, _staged: StagedBatch) -> None:
        raise Unavailable("store server has ended", task="q-1")

    def nothing(*_: Any, **__: Any) -> None:
        return None

    driver = object.__new__(QueryDriver)
    fakes: dict[str, Any] = {
        "deployed": SimpleNamespace(pipeline="p", query=QUERY),
        "query": QUERY,
        "_settings": SimpleNamespace(batch_attempts=2, small_batch_bytes=0, on_error="stop"),
        "_pace": SimpleNamespace(bytes_of=lambda _offsets: 1),
        "_aborted": threading.Event(),
        "_traces": NO_TRACES,
        "_ahead": SimpleNamespace(take=nothing, drop=nothing),
        "_stager": SimpleNamespace(stage=lambda *_: StagedBatch(10, 0, ()), most=None),
        "_journal": SimpleNamespace(require_newest=nothing),
        "_servers": SimpleNamespace(figures=lambda _query: figures, ensure=nothing),
        "_log": structlog.get_logger(),
        "_begin_next": nothing,
        "_commit": commit,
    }
    for name, fake in fakes.items():
        if not isinstance(getattr(QueryDriver, name, None), property):
            setattr(driver, name, fake)
    return driver


def task(batch: int, state: str = "running") -> dict[str, Any]:
    return {"task": "q-0", "state": state, "batch": batch, "epoch": 1}


@pytest.mark.parametrize(
    ("figures", "known"),
    [
        ([task(6), task(6)], "nothing of the batch is committed"),
        ([task(7), task(6)], "some tasks have committed the batch, the others will"),
        ([task(7)], "some tasks have committed the batch, the others will"),
        # A task that does not answer, or whose last commit is not known, may have committed.
        ([task(6)], "some tasks may have committed the batch, then the others will"),
        ([task(6), task(6, "recovering")], "some tasks may have committed the batch, then the others will"),
    ],
)
def test_nothing_is_said_to_be_committed_only_where_that_is_known(figures: list[dict[str, Any]], known: str) -> None:
    with pytest.raises(Unavailable) as given_up:
        driver_of(figures)._run(QUERY, PLANNED, 0.0)
    assert given_up.value.hint == f"{known}; fix the cause and start the pipeline again"


@pytest.mark.parametrize("state", ["running", "broken"])
def test_a_task_that_a_query_has_stopped_is_opened_again_though_no_batch_comes(
    state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_driver, "_LOOK_S", -1.0)
    figures, opened, looks = [task(6), task(6, state)], list[str](), list[int]()
    driver = driver_of(figures)

    def ensure(_cause: str, *, only: str) -> None:
        opened.append(only)
        figures[1]["state"] = "running"

    def no_batch(*_: Any) -> bool:
        looks.append(len(opened))
        if len(looks) == 3:
            driver.stopping.set()
        return False

    fakes: dict[str, Any] = {
        "error": None,
        "stopping": threading.Event(),
        "_settings": SimpleNamespace(batch_interval_s=0.0),
        "_servers": SimpleNamespace(figures=lambda _query: figures, ensure=ensure),
        "_requests": SimpleNamespace(next=lambda: None),
        "_look_again": lambda: None,
        "_stable_ends": dict,
        "_next_batch": no_batch,
    }
    for name, fake in fakes.items():
        setattr(driver, name, fake)
    driver._follow(None)
    assert driver.error is None
    expected = ["q"] if state == "broken" else []
    assert (expected, [len(expected)] * 3) == (opened, looks)


def period_driver(figures: list[dict[str, Any]], error: Exception | None) -> tuple[QueryDriver, dict[str, list[Any]]]:
    """One whose job of a period fails of this, if of anything; and what it plans, finishes and tells."""
    seen: dict[str, list[Any]] = {"planned": [], "finished": [], "failed": [], "done": []}

    def stage(_query: object, planned: Planned) -> StagedBatch:
        if planned.recompute is not None and error is not None:
            raise error
        return StagedBatch(0, 0, ())

    driver = driver_of(figures)
    fakes: dict[str, Any] = {
        "epoch": 1,
        "_journal": SimpleNamespace(
            require_newest=lambda: None, plan=seen["planned"].append, finish=seen["finished"].append
        ),
        "_pace": SimpleNamespace(bytes_of=lambda _offsets: 1, took=lambda **_: None),
        "_intake": SimpleNamespace(left=lambda _ends: 0, stands=lambda _planned: None),
        "_stager": SimpleNamespace(stage=stage, most=None, is_small=lambda *_: False, compared=None),
        "_requests": SimpleNamespace(
            failed=lambda *told: seen["failed"].append(told), done=lambda *told: seen["done"].append(told)
        ),
        "_commit": lambda *_: None,
        "_report": lambda *_: None,
    }
    for name, fake in fakes.items():
        setattr(driver, name, fake)
    return driver, seen


PERIOD = replace(PLANNED, ranges=(Range("s", "id", 0, 10, 10),), recompute=Recompute("r", 0, 1, PLANNED.ranges))
NOTHING = replace(PERIOD, recompute=None)
NONE_COMMITTED = [task(6), {**task(6), "task": "q-1"}]
HELD = Unrecoverable("archive does not hold the records", partition=0)


@pytest.mark.parametrize("error", [HELD, DataCorrupted("archive has a file that does not fit")])
def test_a_period_that_the_archive_does_not_hold_any_more_is_given_up_and_the_stream_goes_on(error: Exception) -> None:
    driver, seen = period_driver(NONE_COMMITTED, error)
    driver._recompute(QUERY, PERIOD)
    assert {"planned": [NOTHING], "finished": [NOTHING], "failed": [("r", str(error))], "done": []} == seen


@pytest.mark.parametrize("figures", [[task(7), {**task(6), "task": "q-1"}], [task(6)]])
def test_a_period_that_may_be_committed_in_part_is_not_given_up(figures: list[dict[str, Any]]) -> None:
    driver, seen = period_driver(figures, HELD)
    with pytest.raises(Unrecoverable):
        driver._recompute(QUERY, PERIOD)
    assert {"planned": [], "finished": [], "failed": [], "done": []} == seen


def finish_planned(driver: QueryDriver, restarts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let it find the period that so many drivers have begun again."""
    planned = restarted(restarts)
    whole = SimpleNamespace(begins=dict, stable_ends=dict, deleted=lambda *_: (), cut_off=lambda *_: ())
    fakes: dict[str, Any] = {
        "_past": SimpleNamespace(planned=planned, done=planned.batch - 1, plans={planned.plan: "{}"}),
        "_source": whole,
    }
    for name, fake in fakes.items():
        setattr(driver, name, fake)
    monkeypatch.setattr(query_driver, "query_from_json", lambda _plan: QUERY)
    driver.finish_planned()


def restarted(times: int) -> Planned:
    return replace(PERIOD, restarts=times)


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_planned_period_is_counted_before_it_is_begun_again(restarts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    driver, seen = period_driver(NONE_COMMITTED, None)
    finish_planned(driver, restarts, monkeypatch)
    again = [restarted(restarts + 1)]
    assert {"planned": again, "finished": again, "failed": [], "done": [("r", 7, None)]} == seen


def test_a_planned_period_that_drivers_end_of_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, seen = period_driver(NONE_COMMITTED, AssertionError("the period is begun again"))
    finish_planned(driver, 2, monkeypatch)
    told = "2 drivers have begun with it and ended before it was computed; try a shorter period"
    assert {"planned": [NOTHING], "finished": [NOTHING], "failed": [("r", told)], "done": []} == seen


@pytest.mark.parametrize("figures", [[task(7), {**task(6), "task": "q-1"}], [task(6)]])
def test_a_planned_period_that_may_be_committed_in_part_is_begun_as_often_as_it_takes(
    figures: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, seen = period_driver(figures, None)
    finish_planned(driver, 2, monkeypatch)
    assert {"planned": [restarted(3)], "finished": [restarted(3)], "failed": [], "done": [("r", 7, None)]} == seen


def test_a_driver_that_stops_in_order_does_not_count_among_those_that_ended_of_a_planned_period(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver, seen = period_driver(NONE_COMMITTED, None)
    driver._aborted.set()
    finish_planned(driver, 1, monkeypatch)
    assert [restarted(2), restarted(1)] == seen["planned"]
    driver, seen = period_driver(NONE_COMMITTED, SparkNotStarted("the driver ends"))
    with pytest.raises(SparkNotStarted):
        finish_planned(driver, 1, monkeypatch)
    assert [restarted(2), restarted(1)] == seen["planned"]


def test_a_staged_batch_does_not_fail_of_what_the_next_one_asks() -> None:
    def gone(_ends: object) -> None:
        raise Unavailable("partition has no leader")

    begun: list[object] = []
    driver: Any = driver_of([task(6)])
    driver._intake = SimpleNamespace(next_whole=gone)
    driver._ahead = SimpleNamespace(begin=lambda *what: begun.append(what))
    del driver._begin_next
    driver._begin_next(PLANNED, StagedBatch(10, 0, ()), {0: 20})
    assert begun == []
