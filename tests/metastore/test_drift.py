"""Drift: each kind of difference is found, what can be repaired is, and nothing else is touched."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ops.drift import find
from pipelines.metastore.drift import repair
from pipelines.metastore.service import Metastore
from pipelines.metastore.statement import drop_pipeline, start_pipeline
from pipelines.settings import Settings
from tests.metastore.conftest import Open, script


@pytest.fixture
def metastore(opened: Open, unique: str) -> Metastore:
    metastore = opened()
    metastore.execute(script(unique))
    return metastore


def delete(name: str) -> Callable[[Metastore, str], None]:
    def act(metastore: Metastore, unique: str) -> None:
        topic = name.format(unique)
        metastore.log.admin.delete([topic])
        metastore.log.admin.await_gone(topic)

    return act


def make_again(metastore: Metastore, unique: str) -> None:
    delete("{}-totals-changelog")(metastore, unique)
    metastore.log.admin.create(f"{unique}-totals-changelog", partitions=1, settings={"cleanup.policy": "compact"})


def uncompact(metastore: Metastore, unique: str) -> None:
    metastore.log.admin.configure(f"{unique}-totals-changelog", {"cleanup.policy": "delete"})


def refuse_times(metastore: Metastore, unique: str) -> None:
    metastore.log.admin.configure(f"{unique}-totals-changelog", {"message.timestamp.after.max.ms": "3600000"})


def drop_without_cleaning(metastore: Metastore, unique: str) -> None:
    with pytest.MonkeyPatch.context() as killed:
        killed.setattr(metastore, "clean", lambda _: None)
        metastore.execute(drop_pipeline(unique))


@pytest.mark.parametrize(
    ("change", "what", "text", "repairable"),
    [
        (delete("{}"), "topic", "source topic", False),
        (delete("{}-totals-changelog"), "topic", "does not exist", False),
        (delete("{}-totals"), "topic", "does not exist; what it held is lost", True),
        (delete("{}-dead-letters"), "topic", "does not exist; what it held is lost", True),
        (make_again, "topic", "deleted and made again", False),
        (uncompact, "topic", "cleanup.policy=delete", True),
        (refuse_times, "topic", "message.timestamp.after.max.ms=3600000", True),
        (drop_without_cleaning, "leftover", "it is dropped, but there still are", True),
    ],
    ids=["source", "changelog", "result", "dead letters", "again", "policy", "times", "leftover"],
)
def test_a_difference_in_kafka(
    metastore: Metastore,
    service: Settings,
    unique: str,
    change: Callable[[Metastore, str], None],
    what: str,
    text: str,
    repairable: bool,
) -> None:
    assert [] == find(service)
    change(metastore, unique)
    [finding] = find(service)
    assert (unique, what) == (finding.pipeline, finding.what)
    assert text in finding.text
    assert ([finding] if repairable else []) == repair([finding])
    assert ([] if repairable else [finding]) == find(service)
    assert repairable or finding.hint


def test_stores_of_no_pipeline_are_deleted_and_others_left(
    metastore: Metastore, service: Settings, unique: str
) -> None:
    for name in (unique, "gone"):
        (service.states / name / "totals" / "0").mkdir(parents=True)
        (service.states / name / "totals" / "0.owner").touch()
        (service.states / name / "totals" / "rates.json").touch()
    # As a store server has it that serves a driver on another machine.
    (service.states / "elsewhere" / "totals-0").mkdir(parents=True)
    (service.states / "elsewhere" / "totals-0.owner").touch()
    # Of somebody else, beside ours.
    for others in ("photos/2024/01/1.jpg", "database/base/1/112", "lost+found/x/y"):
        (service.states / others).parent.mkdir(parents=True, exist_ok=True)
        (service.states / others).touch()
    (service.states / "database" / "VERSION").touch()
    (service.states / "empty").mkdir()
    findings = find(service)
    assert [("elsewhere", "store"), ("gone", "store")] == [(finding.pipeline, finding.what) for finding in findings]
    repair(findings)
    assert {unique, "empty", "photos", "database", "lost+found"} == {folder.name for folder in service.states.iterdir()}


def test_nothing_is_left_over_of_a_metastore_that_is_not_whole(
    metastore: Metastore, service: Settings, unique: str
) -> None:
    (service.states / "other" / "totals").mkdir(parents=True)
    (service.states / "other" / "totals" / "0.owner").touch()
    metastore.log.admin.delete([metastore.log.topic_name])
    metastore.log.admin.await_gone(metastore.log.topic_name)
    findings = find(service)
    assert ["log"] == [finding.what for finding in findings if finding.what != "job"]
    assert [] == repair(findings)
    assert (service.states / "other").exists()


def test_a_pipeline_that_is_to_run_and_does_not(metastore: Metastore, service: Settings, unique: str) -> None:
    metastore.execute(start_pipeline(unique))
    [finding] = find(service)
    assert (unique, "job", "it is to run, and its driver is never started") == (
        finding.pipeline,
        finding.what,
        finding.text,
    )
