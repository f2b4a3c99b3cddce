"""`doctor` finds what stands in the way, names the fix, and says by its exit status whether something is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from ops.cli.main import app
from ops.doctor.examine import examine
from ops.doctor.finding import Level
from pipelines import names
from pipelines.metastore.embedded import deploy
from pipelines.registry import Registry
from pipelines.settings import Settings
from statestore.kafka.admin import Admin
from tests.backfill.archiving import archive
from tests.support.batches import batch_row
from tests.support.feed import SQL, Feed, create_topic


def levels(settings: Settings) -> dict[str, tuple[Level, str]]:
    """Level and text of every finding, by what was looked at."""
    found = list(examine(settings))
    assert all(finding.fix for finding in found if finding.level is not Level.OK)
    return {finding.what: (finding.level, finding.text) for finding in found}


@pytest.fixture
def deployed(settings: Settings, unique: str) -> Settings:
    """A pipeline that was deployed and never started."""
    create_topic(settings.bootstrap_servers, unique)
    registry = Registry(settings.metastore)
    deploy(SQL.format(topic=unique), unique, settings, registry)
    registry.close()
    return settings


def test_a_deployed_pipeline_is_examined_and_what_is_wrong_is_found(deployed: Settings, unique: str) -> None:
    admin, changelog = Admin(deployed.kafka_config()), names.changelog_topic(unique, "totals")
    found = levels(deployed)
    assert {"java", "memory", "open files", "disk of the stores", "kafka", "metastore", "clock"} <= set(found)
    assert Level.ERROR not in {level for level, _ in found.values()}, found
    assert Level.OK == found[f"rights of {unique}.totals"][0]
    assert Level.OK == found[f"changelog {changelog}"][0]
    assert (Level.OK, f"{unique} keeps records for ever") == found[f"source of {unique}.totals"]
    assert any(what.startswith("snapshots at") or what == "snapshots" for what in found)

    admin.configure(unique, {"retention.ms": "600000"})
    admin.configure(changelog, {"delete.retention.ms": "60000"})
    found = levels(deployed)
    assert (Level.WARNING, f"records of {unique} are kept for 10 min only") == found[f"source of {unique}.totals"]
    assert Level.WARNING == found[f"changelog {changelog}"][0]

    admin.configure(changelog, {"cleanup.policy": "delete"})
    admin.delete([names.dead_letter_topic(unique)])
    admin.await_gone(names.dead_letter_topic(unique))
    found = levels(deployed)
    assert (Level.ERROR, "cleanup.policy is delete") == found[f"changelog {changelog}"]
    assert names.dead_letter_topic(unique) in found[f"topics of {unique}.totals"][1]


def test_records_that_are_in_the_archive_are_not_lost(deployed: Settings, tmp_path: Path, unique: str) -> None:
    feed = Feed(deployed.bootstrap_servers, unique, seed=1)
    feed.send(100)
    with_archive = deployed.model_copy(update={"archive_url": f"file://{tmp_path / 'archive'}"})
    archive(with_archive, unique)
    deleted = feed.delete_all()
    begun = batch_row(unique, "totals", 0, offsets={str(partition): [0, 1] for partition in deleted})
    registry = Registry(deployed.metastore)
    registry.add_batch(begun)
    registry.close()
    lost = (Level.ERROR, f"{100 - len(deleted)} records of {unique} were deleted unread")
    assert lost == levels(deployed)[f"source of {unique}.totals"]
    assert Level.OK == levels(with_archive)[f"source of {unique}.totals"][0]
    # What came behind it is in neither.
    feed.send(100)
    feed.delete_all()
    assert Level.ERROR == levels(with_archive)[f"source of {unique}.totals"][0]


def test_without_kafka_the_rest_is_examined_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROLLFORWARD_BOOTSTRAP_SERVERS", "127.0.0.1:9")
    monkeypatch.setenv("ROLLFORWARD_REQUEST_TIMEOUT_S", "1")
    monkeypatch.setenv("ROLLFORWARD_HOME", str(tmp_path / "home"))
    done = CliRunner().invoke(app, ["doctor"])
    assert 1 == done.exit_code
    assert "kafka does not answer" in done.stdout and "fix: check that the broker runs" in done.stdout
    assert "disk of the stores" in done.stdout and "pipelines that are deployed: 0" in done.stdout
