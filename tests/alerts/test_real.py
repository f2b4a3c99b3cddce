"""A figure, a real Prometheus, a real Alertmanager, our webhook and our sensor: one trouble is one run."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest
import requests
from prometheus_client import CollectorRegistry, Gauge

from infra import jars, process
from infra.monitoring import ALERTMANAGER, PROMETHEUS, Monitored, Monitoring
from ops.alerts.alert import Alert
from ops.alerts.incidents import Incidents
from ops.alerts.routes import ROUTES
from ops.dagster.alerts import ALERT_TAG, alerts
from ops.dagster.jobs import recover_pipeline
from ops.environment import settings_now
from pipelines.metrics.endpoint import Endpoint, targets_folder
from pipelines.registry import RUNNING
from tests.ops.dagster_world import World
from tests.support.present import present
from tests.support.waiting import await_

TOKEN = "a-token-for-tests-only"
RULES = """
groups:
  - name: test
    rules:
      - alert: RollforwardCommitStalled
        expr: rollforward_waiting_records > 100
        for: 1s
        annotations: {summary: "{{ $labels.pipeline }} is stalled", runbook_url: docs/runbooks/RollforwardCommitStalled.md}
"""


@pytest.fixture
def webhook(world: World) -> Iterator[str]:
    """`rollforward serve`; Kafka does not answer, which alerts do not need."""
    env = {
        **os.environ,
        "ROLLFORWARD_API_TOKEN": TOKEN,
        "ROLLFORWARD_BOOTSTRAP_SERVERS": "127.0.0.1:9",
        "ROLLFORWARD_REQUEST_TIMEOUT_S": "2",
    }
    command = [sys.executable, "-m", "ops.cli.main", "serve", "--port", "0"]
    server = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert server.stdout is not None
    found = re.search(r"(http://\S+)", server.stdout.readline())
    assert found
    yield f"{found[1]}/alerts"
    server.kill()
    server.communicate()


@pytest.fixture
def monitoring(tmp_path: Path, fetched: None) -> Iterator[Monitoring]:
    found = Monitoring(tmp_path / "monitoring", tmp_path / "logs", tmp_path / "run", jars.default_cache())
    yield found
    found.stop()


def tick(instance: dg.DagsterInstance) -> dg.SensorResult:
    result = alerts(dg.build_sensor_context(instance=instance))
    assert isinstance(result, dg.SensorResult)
    return result


def silence(url: str, pipeline: str) -> None:
    now = datetime.now(UTC)
    body = {
        "matchers": [{"name": "pipeline", "value": pipeline, "isRegex": False, "isEqual": True}],
        "startsAt": now.isoformat(),
        "endsAt": (now + timedelta(hours=1)).isoformat(),
        "createdBy": "test",
        "comment": "planned work",
    }
    request = urllib.request.Request(
        f"{url}/api/v2/silences", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        assert response.status == 200


def test_one_trouble_is_one_run_whatever_restarts(
    world: World,
    instance: dg.DagsterInstance,
    monitoring: Monitoring,
    webhook: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for pipeline in ("sales", "muted"):
        world.deploy(pipeline, desired=RUNNING)
    settings, registry = settings_now(), CollectorRegistry()
    waiting = Gauge("rollforward_waiting_records", "records that wait", ["pipeline"], registry=registry)
    waiting.labels("sales").set(0)
    endpoint = Endpoint("sales", settings, registry)
    assert endpoint.open()
    rules, token = tmp_path / "rules.yml", tmp_path / "token"
    rules.write_text(RULES)
    token.write_text(TOKEN)
    watched = Monitored(targets_folder(settings.home), rules, webhook, token, interval_s=1)
    assert [ALERTMANAGER, PROMETHEUS] == monitoring.start(watched)
    assert [] == monitoring.start(watched)
    url = monitoring.url(ALERTMANAGER) or ""
    monkeypatch.setenv("ROLLFORWARD_ALERTMANAGER_URL", url)
    incidents = Incidents(world.registry.engine, ROUTES)
    assert "0 alerts fire" in str(tick(instance).skip_reason)

    # Trouble begins: webhook and poll tell it, one run is asked for, again under the same key until it is there.
    began = time.monotonic()
    waiting.labels("sales").set(500)
    [told] = await_("the webhook's incident", incidents.newest)
    print(f"alert to incident by webhook: {time.monotonic() - began:.1f} s")
    [first], [again] = tick(instance).run_requests or [], tick(instance).run_requests or []
    assert first.run_key == again.run_key
    assert ("recover_pipeline", "sales") == (first.job_name, first.tags["rollforward/pipeline"])
    config = first.run_config["ops"]["recover"]["config"]
    assert "sales is stalled (runbook: docs/runbooks/RollforwardCommitStalled.md)" in config["reason"]
    assert config["restart_if_older_than"] == told["starts_at"]
    run = instance.create_run_for_job(recover_pipeline, run_config=first.run_config, tags=first.tags)
    assert not tick(instance).run_requests
    [linked] = incidents.newest()
    assert run.run_id == linked["run_id"] and linked["run_url"].endswith(f"/runs/{run.run_id}")
    assert instance.get_runs(dg.RunsFilter(tags={ALERT_TAG: present(first.run_key)}))
    instance.report_run_failed(run)

    # Alertmanager dies, forgets everything and is told anew.
    record = process.read_record(monitoring.record(ALERTMANAGER))
    assert record is not None
    os.kill(record.pid, signal.SIGKILL)
    await_("its end", lambda: not process.is_alive(record))
    assert [ALERTMANAGER] == monitoring.start(watched)
    assert not tick(instance).run_requests
    await_("the alert after the restart", lambda: requests.get(f"{url}/api/v2/alerts", timeout=30).json())
    assert not tick(instance).run_requests
    [same] = incidents.newest()
    assert (linked["id"], None) == (same["id"], same["closed_at"])
    assert same["outcome"].startswith("run failed after")

    # A silenced alert starts nothing.
    silence(url, "muted")
    waiting.labels("muted").set(500)
    await_("the silenced alert", lambda: len(requests.get(f"{url}/api/v2/alerts", timeout=30).json()) == 2)
    assert not tick(instance).run_requests
    assert 1 == len(incidents.newest())

    # The end, as the webhook tells it; then the next trouble is another incident and another run.
    waiting.labels("sales").set(0)
    await_("the end", lambda: incidents.newest()[0]["closed_at"])
    waiting.labels("sales").set(500)
    await_("the next incident", lambda: len(incidents.newest()) == 2)
    [second] = tick(instance).run_requests or []
    assert second.run_key != first.run_key
    endpoint.close(forget=True)


def test_several_alerts_of_one_trouble_are_one_run_at_a_time(world: World, instance: dg.DagsterInstance) -> None:
    world.deploy("sales", desired=RUNNING)
    Incidents(world.registry.engine, ROUTES).take_in([task_down(number) for number in range(2)], complete=False)
    [first] = tick(instance).run_requests or []
    run = instance.create_run_for_job(recover_pipeline, run_config=first.run_config, tags=first.tags)
    assert not tick(instance).run_requests
    instance.report_run_failed(run)
    [second] = tick(instance).run_requests or []
    assert first.run_key != second.run_key


def test_what_is_over_starts_no_run_and_keeps_one_that_began(world: World, instance: dg.DagsterInstance) -> None:
    world.deploy("sales", desired=RUNNING)
    incidents = Incidents(world.registry.engine, ROUTES)
    began, late = task_down(0), task_down(1)
    incidents.take_in([began], complete=False)
    [request] = tick(instance).run_requests or []
    run = instance.create_run_for_job(recover_pipeline, run_config=request.run_config, tags=request.tags)
    incidents.take_in([late], complete=False)
    incidents.take_in([replace(alert, ended_at=time.time()) for alert in (began, late)], complete=False)
    assert not tick(instance).run_requests
    told = {row["fingerprint"]: (row["run_id"], row["outcome"]) for row in incidents.newest()}
    assert {"f0": (run.run_id, ""), "f1": ("", "was over before a run could begin")} == told


def task_down(number: int) -> Alert:
    labels = {"alertname": "RollforwardTaskDown", "pipeline": "sales", "task": f"cities-{number}"}
    return Alert(f"f{number}", labels, {}, starts_at=time.time())


def test_the_webhook_wants_the_token_and_alerts(world: World, webhook: str) -> None:
    assert 401 == requests.post(webhook, json={"alerts": []}, timeout=20).status_code
    wrong = {"Authorization": "Bearer another-token-of-somebody"}
    assert 401 == requests.post(webhook, json={"alerts": []}, headers=wrong, timeout=20).status_code
    right = {"Authorization": f"Bearer {TOKEN}"}
    assert 400 == requests.post(webhook, json={"version": "4"}, headers=right, timeout=20).status_code
    assert {"alerts": 0} == requests.post(webhook, json={"alerts": []}, headers=right, timeout=20).json()


def test_an_alertmanager_that_is_away_is_said_and_ends_nothing(
    world: World, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.deploy("sales")
    assert "no Alertmanager" in str(tick(instance).skip_reason)
    monkeypatch.setenv("ROLLFORWARD_ALERTMANAGER_URL", "http://127.0.0.1:9")
    assert "Alertmanager does not answer" in str(tick(instance).skip_reason)
