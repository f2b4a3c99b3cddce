"""What a real driver gives Prometheus: every figure of the catalogue, right, until it is stopped."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from ops import control
from ops.cli.top import picture
from ops.health import table_findings
from ops.top import look
from pipelines.deploy import deployed_queries
from pipelines.metrics.catalogue import METRICS, RECOVERY_DONE
from pipelines.metrics.endpoint import targets_folder
from statestore.kafka.admin import Admin
from tests.crash.conftest import DRIVERS, Start, deploy, feed
from tests.support.feed import Feed
from tests.support.pipeline import PipelineUnderTest

__all__ = ["deploy", "feed"]
Figures = dict[str, dict[tuple[str, ...], float]]


def scrape(pipeline: PipelineUnderTest) -> Figures:
    """Values by sample name and labels, those of `pipeline` left out as all have it."""
    status = control.status(pipeline.registry, pipeline.name)
    assert status.metrics_url is not None
    with urllib.request.urlopen(status.metrics_url, timeout=30) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    found: Figures = {}
    for family in families:
        for sample in family.samples:
            assert pipeline.name == sample.labels["pipeline"]
            labels = tuple(value for name, value in sample.labels.items() if name != "pipeline")
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


def checked(pipeline: PipelineUnderTest, *, lag: int = 0) -> dict[str, bool]:
    """Which checks of the table pass, with this bound for its lag."""
    settings = pipeline.settings.model_copy(update={"check_lag_records_max": lag})
    [deployed] = deployed_queries(pipeline.registry.pipeline(pipeline.name))
    admin = Admin(settings.kafka_config())
    found = table_findings(settings, pipeline.registry, admin, pipeline.name, deployed.query)
    return {finding.check: finding.passed for finding in found}


def target(pipeline: PipelineUnderTest) -> Path:
    return targets_folder(pipeline.settings.home) / f"{pipeline.name}.json"


@pytest.mark.timeout(300)
def test_a_driver_is_scraped_as_long_as_it_is_to_run(
    deploy: Start, feed: Feed, record_property: Callable[[str, object], None]
) -> None:
    pipeline = deploy(**DRIVERS, tasks=2, store_servers=2)
    feed.send(2_000)
    pipeline.start()
    pipeline.await_("input processed", pipeline.caught_up(feed.sent))
    found: dict[str, dict[tuple[str, ...], float]] = {}

    def gathered() -> bool:
        """A look of the driver's behind the batch, at which both servers have answered in time."""
        found.clear()
        found.update(scrape(pipeline))
        lags = {partition: lag for (partition, *_), lag in found.get("rollforward_source_lag_records", {}).items()}
        return (
            lags == {"0": 0.0, "1": 0.0, "2": 0.0, "3": 0.0}
            and {1.0} == set(found.get("rollforward_store_server_up", {}).values())
            and len(found.get("rollforward_store_keys", {})) == 2
            and found["rollforward_driver_state"][("running",)] == 1
        )

    pipeline.await_("figures gathered after the batch", gathered)
    missing = {m.name for m in METRICS} - {name.removesuffix("_bucket") for name in found}
    # No snapshot was due, and a recovery of nothing reports no progress.
    assert {name for name in missing if "snapshot" not in name} <= {RECOVERY_DONE.name}
    batches = pipeline.registry.batches(pipeline=pipeline.name)
    query = batches[0].query
    for name, counted in {
        "rollforward_records_total": sum(batch.records for batch in batches),
        "rollforward_dead_letter_records_total": sum(batch.dead_letters for batch in batches),
        "rollforward_changed_keys_total": sum(batch.changed_keys for batch in batches),
        "rollforward_batches_total": len(batches),
        "rollforward_batch_seconds_count": len(batches),
        "rollforward_newest_batch": batches[-1].batch,
    }.items():
        assert {(query,): counted} == found[name], name
    assert 2_000 == found["rollforward_records_total"][(query,)]
    assert {1.0} == set(found["rollforward_task_running"].values())
    assert 2 == sum(found["rollforward_recoveries_total"].values())
    memory = found["rollforward_store_memory_bytes"]
    parts = {"memtables", "block_cache", "table_readers", "entry_cache"}
    assert {(part, "totals", f"totals-{task}") for task in (0, 1) for part in parts} == memory.keys()
    # What a thousand keys take is written, and kept in front of RocksDB.
    assert all(
        memory[part, "totals", f"totals-{task}"] > 10_000 for task in (0, 1) for part in ("memtables", "entry_cache")
    )
    assert found["rollforward_state_disk_free_bytes"][()] > 0 and found["rollforward_driver_memory_bytes"][()] > 1e8

    # What people see of it: `top`, and the checks.
    [line] = look(pipeline.registry, [pipeline.name])
    assert ("running", 2, "") == (line.state, line.servers, line.trouble)
    [shown] = line.queries
    assert ("totals", 0, batches[-1].batch) == (shown.query, shown.lag, shown.batch)
    assert [("totals-0", True), ("totals-1", True)] == [(task.task, task.open) for task in shown.tasks]
    assert sum(task.keys for task in shown.tasks) == sum(found["rollforward_store_keys"].values())
    console = Console(width=200, record=True)
    console.print(picture([line]))
    assert "totals-1" in console.export_text()
    checks = checked(pipeline)
    assert {"fresh", "lag", "driver", "snapshot_age"} == {name for name, passed in checks.items() if passed}
    assert {"dead_letters"} == {name for name, passed in checks.items() if not passed}

    # A driver that dies is missed; its successor is found in the same place; a planned stop is no alarm.
    address = json.loads(target(pipeline).read_text())
    pipeline.kill_driver()
    feed.send(2_000)
    assert {"driver", "dead_letters", "lag"} == {n for n, passed in checked(pipeline, lag=1_999).items() if not passed}
    assert address == json.loads(target(pipeline).read_text())
    pipeline.start()
    pipeline.await_running()
    assert json.loads(target(pipeline).read_text()) != address
    assert 0 == pipeline.stop()
    assert not target(pipeline).exists()
