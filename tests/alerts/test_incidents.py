"""An alert is one incident for as long as it is the same trouble, whatever Alertmanager forgets, repeats or delays."""

from __future__ import annotations

import threading
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster import DagsterRun

from ops.alerts.alert import Alert, from_api, from_webhook
from ops.alerts.incidents import QUIET_S, Incidents
from ops.alerts.routes import RECOVER, ROUTES, Route
from ops.dagster.alerts import alerts
from pipelines.database import open_database
from statestore.errors import InvalidInput

STALLED = Alert(
    "f1", {"alertname": "RollforwardCommitStalled", "pipeline": "sales"}, {"summary": "stalled"}, starts_at=1000.0
)


@pytest.fixture
def incidents(tmp_path: Path) -> Incidents:
    return Incidents(open_database(f"sqlite:///{tmp_path / 'metastore.db'}"), ROUTES)


def told(incidents: Incidents) -> list[tuple[str, bool]]:
    """Every incident, oldest first: its job, and whether it is open."""
    return [(row["job"], row["closed_at"] is None) for row in reversed(incidents.newest())]


def test_an_alert_that_fires_for_long_is_one_incident(incidents: Incidents) -> None:
    for now in range(1010, 2000, 5):
        incidents.take_in([STALLED], complete=True, now=now)
    assert [(RECOVER, True)] == told(incidents)
    [row] = incidents.waiting()
    assert ("sales", 1010.0, 1995.0) == (row["pipeline"], row["opened_at"], row["seen_at"])


def test_a_changed_start_is_the_same_incident(incidents: Incidents) -> None:
    incidents.take_in([STALLED], complete=True, now=1010)
    incidents.take_in([replace(STALLED, starts_at=1050.0)], complete=True, now=1060)
    assert [(RECOVER, True)] == told(incidents)


def test_an_empty_answer_of_a_restarted_alertmanager_ends_nothing(incidents: Incidents) -> None:
    incidents.take_in([STALLED], complete=True, now=1010)
    for now in range(1015, 1075, 5):
        incidents.take_in([], complete=True, now=now)
    incidents.take_in([replace(STALLED, starts_at=1070.0)], complete=True, now=1075)
    assert [(RECOVER, True)] == told(incidents)


def test_what_is_not_heard_of_for_long_is_over_and_the_next_is_another(incidents: Incidents) -> None:
    incidents.take_in([STALLED], complete=True, now=1010)
    incidents.take_in([], complete=True, now=1010 + QUIET_S)
    assert [(RECOVER, True)] == told(incidents)
    incidents.take_in([], complete=True, now=1011 + QUIET_S)
    assert [(RECOVER, False)] == told(incidents)
    incidents.take_in([replace(STALLED, starts_at=2000.0)], complete=True, now=2005)
    assert [(RECOVER, False), (RECOVER, True)] == told(incidents)


def test_an_alert_that_never_stopped_is_opened_again_and_asks_for_no_second_run(incidents: Incidents) -> None:
    incidents.take_in([STALLED], complete=True, now=1010)
    [row] = incidents.waiting()
    incidents.link(row["id"], run_id="r1", url="/runs/r1")
    incidents.take_in([], complete=True, now=1011 + QUIET_S)
    incidents.take_in([STALLED], complete=True, now=1300)
    assert ([(RECOVER, True)], []) == (told(incidents), incidents.waiting())


def test_a_resolved_webhook_ends_it_and_a_late_one_does_not(incidents: Incidents) -> None:
    incidents.take_in([STALLED], complete=False, now=1010)
    incidents.take_in([replace(STALLED, ended_at=1020.0)], complete=False, now=1021)
    assert [(RECOVER, False)] == told(incidents)
    again = replace(STALLED, starts_at=1100.0)
    incidents.take_in([again], complete=False, now=1101)
    incidents.take_in([replace(STALLED, ended_at=1020.0)], complete=False, now=1102)
    assert [(RECOVER, False), (RECOVER, True)] == told(incidents)


def test_a_late_delivery_of_an_ended_alert_starts_nothing(incidents: Incidents) -> None:
    incidents.take_in([STALLED], complete=False, now=1010)
    [row] = incidents.waiting()
    incidents.link(row["id"], run_id="r1", url="")
    incidents.take_in([replace(STALLED, ended_at=1020.0)], complete=False, now=1021)
    incidents.take_in([STALLED], complete=False, now=1022)
    assert [] == incidents.waiting()
    assert 1 == len(incidents.newest())


def test_what_is_over_before_a_run_could_begin_waits_for_none_until_it_is_opened_again(incidents: Incidents) -> None:
    incidents.take_in([STALLED], complete=True, now=1010)
    assert [] == incidents.over()
    incidents.take_in([], complete=True, now=1011 + QUIET_S)
    assert [] == incidents.waiting()
    [row] = incidents.over()
    incidents.pass_over(row["id"])
    assert [] == incidents.over()
    assert "was over before a run could begin" == incidents.newest()[0]["outcome"]
    incidents.take_in([STALLED], complete=True, now=1300)
    [again] = incidents.waiting()
    assert (row["id"], "") == (again["id"], again["outcome"])
    # Whoever looked before it was opened again.
    incidents.pass_over(row["id"])
    assert [again] == incidents.waiting()


def test_an_incident_opened_again_keeps_how_its_run_went(incidents: Incidents) -> None:
    incidents.take_in([STALLED], complete=True, now=1010)
    [row] = incidents.waiting()
    incidents.link(row["id"], run_id="r1", url="")
    incidents.finish(row["id"], "run succeeded after 2.0 s")
    incidents.take_in([], complete=True, now=1011 + QUIET_S)
    assert [] == incidents.over()
    incidents.take_in([STALLED], complete=True, now=1300)
    assert [] == incidents.waiting()
    assert "run succeeded after 2.0 s" == incidents.newest()[0]["outcome"]


def test_a_silenced_alert_opens_nothing_and_keeps_what_is_open(incidents: Incidents) -> None:
    silenced = replace(STALLED, muted=True)
    incidents.take_in([silenced], complete=True, now=1010)
    assert [] == told(incidents)
    incidents.take_in([STALLED], complete=True, now=1015)
    incidents.take_in([silenced], complete=True, now=1020 + QUIET_S)
    assert [(RECOVER, True)] == told(incidents)


def test_an_alert_without_a_route_is_written_down_and_starts_nothing(incidents: Incidents) -> None:
    incidents.take_in([replace(STALLED, labels={"alertname": "Other"})], complete=True, now=1010)
    assert ([("", True)], []) == (told(incidents), incidents.waiting())
    assert "no route names this alert" == incidents.newest()[0]["outcome"]


def test_the_first_route_that_matches_counts(tmp_path: Path) -> None:
    routes = [Route({"alertname": "A", "severity": "page"}, RECOVER, "night"), Route({"alertname": "A"}, "none")]
    incidents = Incidents(open_database(f"sqlite:///{tmp_path / 'metastore.db'}"), routes)
    page = Alert("p", {"alertname": "A", "severity": "page"}, {}, starts_at=1.0)
    incidents.take_in([page, Alert("t", {"alertname": "A"}, {}, starts_at=1.0)], complete=True, now=2)
    assert [(RECOVER, "night"), ("", "")] == [(r["job"], r["pipeline"]) for r in reversed(incidents.newest())]


def test_poll_and_webhook_at_the_same_moment_make_one_incident(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'metastore.db'}"
    open_database(url).dispose()
    together = threading.Barrier(8)
    failed: list[Exception] = []

    def tell(complete: bool) -> None:
        mine = Incidents(open_database(url), ROUTES)
        together.wait()
        try:
            mine.take_in([STALLED], complete=complete)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=tell, args=[number % 2 == 0]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [] == failed
    assert 1 == len(Incidents(open_database(url), ROUTES).newest())


def test_what_is_not_from_alertmanager_is_refused() -> None:
    refused: list[Any] = [{}, [1], [{"labels": {}}], [{"fingerprint": "f", "labels": {}, "startsAt": "soon"}]]
    for wrong in refused:
        with pytest.raises(InvalidInput):
            from_api(wrong)
    with pytest.raises(InvalidInput):
        from_webhook({"version": "4"})


def test_a_run_that_failed_before_its_process_began_took_as_long_as_it_existed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROLLFORWARD_HOME", str(tmp_path))
    incidents = Incidents(open_database(f"sqlite:///{tmp_path / 'metastore.db'}"), ROUTES)
    incidents.take_in([STALLED], complete=True)
    run = DagsterRun(RECOVER, run_id=str(uuid.uuid4()))
    with dg.instance_for_test() as instance:
        instance.add_run(run)
        instance.report_run_failed(run)
        incidents.link(incidents.newest()[0]["id"], run_id=run.run_id, url="")
        alerts(dg.build_sensor_context(instance=instance))
    outcome = incidents.newest()[0]["outcome"]
    assert outcome.startswith("run failed after ")
    assert float(outcome.split()[3]) < 3600
