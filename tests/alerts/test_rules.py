"""Each rule fires on the figures that it is about, as Prometheus itself evaluates it, and not on those of a good day."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra import jars, tools
from ops import observability
from ops.alerts.routes import ROUTES
from ops.dagster.health import CHECKS
from ops.runbooks import page_of
from pipelines.metrics.catalogue import METRICS, document
from statestore import errors

ROOT = Path(__file__).parents[2]
FOLDER = Path(observability.__file__).parent
RULES = FOLDER / "rules.yml"
LABELS = 'pipeline="sales",query="cities"'
# Values: one a minute.
CALM = {
    f'rollforward_source_lag_records{{{LABELS},partition="0"}}': "10x60",
    f"rollforward_last_commit_timestamp_seconds{{{LABELS}}}": "0+60x60",
    'rollforward_driver_started_timestamp_seconds{pipeline="sales"}': "0x60",
    'rollforward_driver_state{pipeline="sales",state="running"}': "1x60",
    'rollforward_driver_state{pipeline="sales",state="recovering"}': "0x60",
    f'rollforward_task_running{{{LABELS},task="cities-0"}}': "1x60",
    f'rollforward_snapshot_age_seconds{{{LABELS},task="cities-0"}}': "600x60",
    f"rollforward_dead_letter_records_total{{{LABELS}}}": "3x60",
    'rollforward_state_disk_free_bytes{pipeline="sales"}': "50x60",
    'rollforward_state_disk_size_bytes{pipeline="sales"}': "100x60",
    'rollforward_gathered_timestamp_seconds{pipeline="sales"}': "0+60x60",
    'up{job="rollforward",pipeline="sales"}': "1x60",
}
TROUBLE = {
    "RollforwardDriverDown": {'up{job="rollforward",pipeline="sales"}': "0x60"},
    "RollforwardCommitStalled": {f"rollforward_last_commit_timestamp_seconds{{{LABELS}}}": "0x60"},
    "RollforwardRecomputeSlow": {f"rollforward_recompute_running{{{LABELS}}}": "1x60"},
    "RollforwardLagHigh": {f'rollforward_source_lag_records{{{LABELS},partition="0"}}': "2000000x60"},
    "RollforwardTaskDown": {f'rollforward_task_running{{{LABELS},task="cities-0"}}': "0x60"},
    "RollforwardRecoverySlow": {'rollforward_driver_state{pipeline="sales",state="recovering"}': "1x60"},
    "RollforwardSnapshotOld": {f'rollforward_snapshot_age_seconds{{{LABELS},task="cities-0"}}': "4000x60"},
    "RollforwardDeadLetters": {f"rollforward_dead_letter_records_total{{{LABELS}}}": "3+1x60"},
    "RollforwardStateDiskFull": {'rollforward_state_disk_free_bytes{pipeline="sales"}': "5x60"},
    "RollforwardMetricsStale": {'rollforward_gathered_timestamp_seconds{pipeline="sales"}': "0x60"},
}


def rules() -> dict[str, dict[str, Any]]:
    """Every alert by its name."""
    [group] = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for rule in group["rules"]}


def firing_after(minutes: int, series: dict[str, str], expected: set[str]) -> subprocess.CompletedProcess[str]:
    """Whether exactly the expected alerts fire, by promtool."""
    count = {f'ALERTS{{alertname="{name}",alertstate="firing"}}': name in expected for name in rules()}
    tests = [
        {
            "expr": f"sum({selector}) or vector(0)",
            "eval_time": f"{minutes}m",
            "exp_samples": [{"labels": "{}", "value": 1 if fires else 0}],
        }
        for selector, fires in count.items()
    ]
    content = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "30s",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "promql_expr_test": tests,
            }
        ],
    }
    promtool = tools.require(tools.PROMTOOL, jars.default_cache())
    command = [str(promtool), "test", "rules", "/dev/stdin"]
    return subprocess.run(command, input=json.dumps(content), capture_output=True, text=True, check=False)


def test_a_good_day_wakes_nobody(fetched: None) -> None:
    done = firing_after(30, CALM, set())
    assert 0 == done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("alert", sorted(TROUBLE))
def test_the_rule_fires_on_its_trouble_alone(fetched: None, alert: str) -> None:
    done = firing_after(60, CALM | TROUBLE[alert], {alert})
    assert 0 == done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("recomputing", "expected"),
    [("1x60", set()), ("1x19 0x40", set()), ("1x10 0x49", {"RollforwardCommitStalled"})],
    ids=["under way", "just done", "done"],
)
def test_a_stream_that_waits_for_a_period_computed_again_is_no_stall(
    fetched: None, recomputing: str, expected: set[str]
) -> None:
    computing = {f"rollforward_recompute_running{{{LABELS}}}": recomputing}
    done = firing_after(20, CALM | TROUBLE["RollforwardCommitStalled"] | computing, expected)
    assert 0 == done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("computing", ["0x9 1x50", "1x29 0 1x29", "_x29 1x30"], ids=["begun", "another", "restarted"])
def test_a_period_that_is_computed_for_less_than_an_hour_is_not_slow(fetched: None, computing: str) -> None:
    done = firing_after(60, CALM | {f"rollforward_recompute_running{{{LABELS}}}": computing}, set())
    assert 0 == done.returncode, done.stdout + done.stderr


def test_every_alert_is_tried_routed_and_has_its_page() -> None:
    assert set(TROUBLE) == set(rules()) == {route.match["alertname"] for route in ROUTES}
    for name, rule in rules().items():
        assert f"docs/runbooks/{name}.md" == rule["annotations"]["runbook_url"]
        assert rule["labels"]["severity"] in ("page", "ticket")


def test_rules_and_dashboards_name_only_figures_that_exist() -> None:
    known = {metric.name for metric in METRICS}
    known |= {f"{m.name}_{part}" for m in METRICS if m.kind == "histogram" for part in ("bucket", "sum", "count")}
    texts = {path: path.read_text() for path in [RULES, *(FOLDER / "dashboards").glob("*.json")]}
    assert len(texts) >= 2
    for path, text in texts.items():
        used = set(re.findall(r"rollforward_[a-z_]+", text))
        assert used and used <= known, (path, used - known)


def test_the_document_of_the_figures_is_made_from_the_code() -> None:
    assert document() == (ROOT / "docs" / "metrics.md").read_text()


def test_every_error_class_alert_and_check_has_its_page() -> None:
    kinds = {name for name, kind in vars(errors).items() if isinstance(kind, type)} - {"RollforwardError"}
    wanted = kinds | set(rules()) | {page for _, page in CHECKS.values()} | {"GivenUp"}
    pages = {path.stem: path.read_text() for path in (ROOT / "docs" / "runbooks").glob("*.md")}
    assert wanted == set(pages) - {"README"}
    for name in wanted:
        text = pages[name]
        assert text.startswith(f"# {name}\n"), name
        assert all(f"\n## {part}\n" in text for part in ("What it means", "What happens by itself", "What to do")), name
        assert f"({name}.md)" in pages["README"], name


def test_an_error_names_the_page_of_its_class_or_of_the_nearest_above() -> None:
    assert "docs/runbooks/Fenced.md" == page_of(errors.Fenced("gone"))
    below = type("Below", (errors.Unavailable,), {})
    assert "docs/runbooks/Unavailable.md" == page_of(below("again"))
    assert "" == page_of(errors.RollforwardError("some"))
