"""Requests to compute a period again: who takes them how often, who withdraws them, and what is seen meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ops import backfill
from pipelines.database import open_database
from pipelines.deploy import DeployedQuery, deployed_queries
from pipelines.engine.query_driver import QueryDriver, _BatchAborted
from pipelines.engine.recomputing import Requests
from pipelines.engine.servers import StoreServers
from pipelines.engine.spark import SparkNotStarted, SparkStart
from pipelines.metastore.command import put
from pipelines.metastore.validate import PIPELINE
from pipelines.metrics.catalogue import RECOMPUTE_RUNNING
from pipelines.metrics.driver import DriverMetrics
from pipelines.recomputes import ASKED, FAILED, RUNNING, WITHDRAWN, RecomputeRow, Recomputes
from pipelines.registry import Registry
from pipelines.settings import Settings
from pipelines.sql import parse_pipeline
from tests.ops.dagster_world import SQL, World, world
from tests.support.present import present

__all__ = ["world"]


@pytest.fixture
def rows(tmp_path: Path) -> Iterator[Recomputes]:
    engine = open_database(f"sqlite:///{tmp_path / 'metastore.db'}")
    yield Recomputes(engine)
    engine.dispose()


def ask(rows: Recomputes, *, dry_run: bool = True) -> str:
    return rows.ask("sales", "cities", from_ms=0, to_ms=3_600_000, dry_run=dry_run)


def requests_of(rows: Recomputes) -> Requests:
    return Requests(rows, "sales", "cities", lambda: True)


def state(rows: Recomputes, request: str) -> str:
    return present(rows.get(request)).state


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_request_that_two_drivers_ended_with_fails_and_leaves_the_stream_to_the_third(
    rows: Recomputes, dry_run: bool
) -> None:
    request, behind = ask(rows, dry_run=dry_run), ask(rows)
    for _driver in range(2):
        assert request == present(requests_of(rows).next()).id
        assert RUNNING == state(rows, request)
    assert requests_of(rows).next() is None
    given_up = present(rows.get(request))
    assert (FAILED, True) == (given_up.state, given_up.error.startswith("2 drivers have begun with it"))
    assert behind == present(requests_of(rows).next()).id


def test_what_was_asked_of_an_earlier_pipeline_of_the_name_is_refused(rows: Recomputes) -> None:
    request, begun = ask(rows, dry_run=False), ask(rows, dry_run=False)
    row = present(requests_of(rows).next())
    assert request == row.id
    anew = Requests(rows, "sales", "cities", lambda: True, since=time.time() + 1)
    for _each in (request, begun):
        assert anew.next() is None
    for each in (request, begun):
        refused = present(rows.get(each))
        assert (FAILED, True) == (refused.state, "earlier pipeline of this name" in refused.error)


def test_what_is_asked_where_the_clock_is_behind_that_of_the_deployment_is_taken(rows: Recomputes) -> None:
    deployed_at = time.time() + 120
    asked = rows.ask("sales", "cities", from_ms=0, to_ms=3_600_000, dry_run=True, deployed_at=deployed_at)
    requests = Requests(rows, "sales", "cities", lambda: True, since=deployed_at)
    assert asked == present(requests.next()).id


def test_a_backfill_is_asked_of_the_deployment_of_now(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.deploy("sales")
    row = world.registry.pipeline("sales")
    deployed_at = time.time() + 120
    body = {"sql": row.sql, "sources": row.sources, "queries": row.queries, "deployed_at": deployed_at}
    world.log.change(put(PIPELINE, "sales", body))
    asked: list[float] = []

    def answer(_: Registry, rows: Recomputes, request: str, *__: object) -> RecomputeRow:
        asked.append(present(rows.get(request)).asked_at)
        rows.done(request, batch=None, report={})
        return present(rows.get(request))

    monkeypatch.setattr(backfill, "_require_running", lambda *_: None)
    monkeypatch.setattr(backfill, "require_whole", lambda *_: None)
    monkeypatch.setattr(backfill, "_wait", answer)
    [query] = [deployed.query for deployed in deployed_queries(world.registry.pipeline("sales"))]
    backfill.backfill(world.registry, "sales", query, from_ms=0, to_ms=3_600_000, dry_run=True)
    assert [deployed_at] == asked


def test_a_dry_run_can_be_withdrawn_at_any_time_and_a_correction_before_it_begins(rows: Recomputes) -> None:
    dry, correction, waiting = ask(rows), ask(rows, dry_run=False), ask(rows, dry_run=False)
    for request in (dry, correction):
        assert rows.take(present(rows.get(request)))
    assert [True, False, True] == [rows.withdraw(request) for request in (dry, correction, waiting)]
    assert [WITHDRAWN, RUNNING, WITHDRAWN] == [state(rows, request) for request in (dry, correction, waiting)]
    assert not rows.take(present(rows.get(dry)))
    assert ASKED == state(rows, ask(rows))


def driver_of(rows: Recomputes, tmp_path: Path) -> tuple[QueryDriver, DriverMetrics]:
    """A driver that is not started, and its figures."""
    settings = Settings(home=tmp_path, bootstrap_servers="127.0.0.1:1", metrics=False)
    [query] = parse_pipeline(SQL.format(topic="events", table="cities"), pipeline="sales").queries
    kafka, log_file = settings.kafka_config(), tmp_path / "servers.log"
    servers = StoreServers("sales", 1, tmp_path, kafka, transactions=settings.transactions, log_file=log_file)
    driver = QueryDriver(
        DeployedQuery("sales", query, "b", "c"),
        settings,
        servers,
        SparkStart(lambda: pytest.fail("nothing needs Spark")),
        lambda _done: None,
        requests_of(rows),
    )
    return driver, DriverMetrics("sales", settings, servers, [driver], lambda: "running")


@pytest.mark.parametrize("stopped", [_BatchAborted(), SparkNotStarted("the driver ends")])
def test_drivers_that_stop_in_order_do_not_count_among_those_that_ended_with_a_request(
    rows: Recomputes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped: Exception
) -> None:
    request, answered = ask(rows), []

    def answer(asked: RecomputeRow) -> None:
        answered.append(asked.id)
        raise stopped

    for _stop in range(3):
        driver, _ = driver_of(rows, tmp_path)
        monkeypatch.setattr(driver, "_answer", answer)
        driver._follow({})
        assert (RUNNING, 0) == (state(rows, request), present(rows.get(request)).taken)
    assert [request] * 3 == answered
    # One that crashed is still one.
    assert request == present(requests_of(rows).next()).id
    driver, _ = driver_of(rows, tmp_path)
    monkeypatch.setattr(driver, "_answer", answer)
    driver._follow({})
    assert 1 == present(rows.get(request)).taken


def test_what_was_withdrawn_is_not_put_back(rows: Recomputes) -> None:
    request, requests = ask(rows), requests_of(rows)
    taken = present(requests.next())
    assert rows.withdraw(request)
    requests.put_back(taken)
    assert (WITHDRAWN, 1) == (state(rows, request), present(rows.get(request)).taken)


def test_a_driver_shows_that_it_computes_a_period_again(
    rows: Recomputes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, metrics = driver_of(rows, tmp_path)
    seen: list[float | None] = []

    def look() -> None:
        metrics._query(driver)
        labels = {"pipeline": "sales", "query": "cities"}
        seen.append(metrics.registry.get_sample_value(RECOMPUTE_RUNNING.name, labels))

    def answer(_asked: RecomputeRow) -> None:
        look()
        driver.stopping.set()

    ask(rows)
    monkeypatch.setattr(driver, "_answer", answer)
    driver._follow({})
    look()
    assert [1.0, 0.0] == seen
