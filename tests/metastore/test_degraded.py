"""A damaged or lost log: what was applied is shown, nothing is accepted, the way out is named and works."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from infra.stack import Stack
from ops.past import require_stopped
from pipelines.metastore.backup import Turned
from pipelines.metastore.checkpoint import checkpoint_values
from pipelines.metastore.degraded import MetastoreDegraded, Reason
from pipelines.metastore.embedded import want
from pipelines.metastore.service import Metastore
from pipelines.metastore.statement import start_pipeline, stop_pipeline
from pipelines.registry import RUNNING, STOPPED, Registry
from pipelines.settings import Settings
from statestore.errors import DataCorrupted, InvalidInput, Unavailable
from statestore.kafka.admin import Admin
from tests.metastore.conftest import Open, script
from tests.support.pipeline import settings_for
from tests.support.waiting import await_

Damage = Callable[[Metastore], None]


def delete_topic(metastore: Metastore) -> None:
    metastore.log.admin.delete([metastore.log.topic_name])
    metastore.log.admin.await_gone(metastore.log.topic_name)


def make_again(metastore: Metastore) -> None:
    delete_topic(metastore)
    metastore.log.create()


def make_again_with_others(metastore: Metastore) -> None:
    values = [record.value or b"" for record in metastore.log.read(*metastore.log.bounds())]
    make_again(metastore)
    write(metastore, *(value.replace(b"CREATE", b"create") for value in values))


def cut_head(metastore: Metastore) -> None:
    metastore.log.trim(before=1)


def cut_all(metastore: Metastore) -> None:
    metastore.log.trim(before=metastore.log.bounds()[1])


def write_what_does_not_follow(metastore: Metastore) -> None:
    write(metastore, metastore.log.read(*metastore.log.bounds())[0].value or b"")


def write_of_a_later_program(metastore: Metastore) -> None:
    write(metastore, b'{"version": 9, "reads": 9}')


def write(metastore: Metastore, *values: bytes) -> None:
    producer = metastore.log.producer()
    producer.init()
    producer.begin()
    for value in values:
        metastore.log.produce(producer, value, "k", lambda _: None)
    producer.flush()
    producer.commit()


def known(opened: Open, unique: str) -> Metastore:
    metastore = opened()
    metastore.execute(script(unique))
    metastore.execute(start_pipeline(unique))
    metastore.execute(stop_pipeline(unique))
    return metastore


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (delete_topic, Reason.MISSING),
        (make_again, Reason.SHORTER),
        (make_again_with_others, Reason.BROKEN),
        (cut_head, Reason.TRUNCATED),
        (cut_all, Reason.TRUNCATED),
        (write_what_does_not_follow, Reason.BROKEN),
    ],
)
def test_a_damaged_log_is_refused_until_it_is_restored(
    opened: Open, tmp_path: Path, unique: str, damage: Damage, reason: Reason
) -> None:
    metastore = known(opened, unique)
    before = metastore.projection.rows()
    damage(metastore)
    # What was written by hand is seen a moment behind its commit.
    assert reason == await_("a fault", metastore.refresh).reason
    fault = metastore.refresh()
    assert fault is not None and reason == fault.reason
    with pytest.raises(MetastoreDegraded, match="rollforward metastore restore"):
        metastore.execute(start_pipeline(unique))
    assert before == metastore.projection.rows()
    metastore.restore_from_here()
    assert before.definitions == metastore.projection.rows().definitions
    metastore.execute(start_pipeline(unique))
    later = opened(f"sqlite:///{tmp_path / 'later.db'}")
    assert later.restore() is None
    assert metastore.projection.rows() == later.projection.rows()


def test_a_cut_log_is_no_empty_metastore_for_a_new_server(opened: Open, tmp_path: Path, unique: str) -> None:
    metastore = known(opened, unique)
    cut_all(metastore)
    new = opened(f"sqlite:///{tmp_path / 'new.db'}")
    fault = new.restore()
    assert fault is not None and Reason.TRUNCATED == fault.reason
    with pytest.raises(MetastoreDegraded, match="no checkpoint replaces them"):
        new.execute(script(unique))


def test_a_new_server_shows_the_part_before_a_break(opened: Open, tmp_path: Path, unique: str) -> None:
    metastore = known(opened, unique)
    before = metastore.projection.rows()
    write_what_does_not_follow(metastore)
    new = opened(f"sqlite:///{tmp_path / 'new.db'}")
    fault = await_("a fault", new.restore)
    assert Reason.BROKEN == fault.reason
    assert before == new.projection.rows()


def test_commands_of_a_later_program_allow_reading_only(opened: Open, unique: str) -> None:
    metastore = known(opened, unique)
    write_of_a_later_program(metastore)
    fault = await_("a fault", metastore.refresh)
    assert Reason.NEWER == fault.reason
    with pytest.raises(MetastoreDegraded, match="upgrade this program"):
        metastore.execute(start_pipeline(unique))


def test_junk_is_set_aside_and_the_service_goes_on(opened: Open, tmp_path: Path, unique: str) -> None:
    metastore = known(opened, unique)
    write(metastore, b"by hand", b'{"reads": 1, "sequence": "x"}')
    assert 5 == metastore.execute(start_pipeline(unique)).sequence
    assert ["by hand", '{"reads": 1, "sequence": "x"}'] == [row.value for row in metastore.projection.set_aside()]
    new = opened(f"sqlite:///{tmp_path / 'new.db'}")
    assert new.restore() is None
    assert metastore.projection.rows() == new.projection.rows()


def test_other_servers_follow_a_checkpoint_and_a_restore(opened: Open, tmp_path: Path, unique: str) -> None:
    here = known(opened, unique)
    behind = opened(f"sqlite:///{tmp_path / 'behind.db'}")
    behind.restore()
    here.execute(start_pipeline(unique))
    here.checkpoint()
    assert behind.refresh() is None
    assert here.projection.rows() == behind.projection.rows()
    saved = tmp_path / "saved"
    here.backup(saved)
    here.restore_backup(saved)
    assert behind.refresh() is None
    assert here.projection.rows() == behind.projection.rows()
    assert (here.execute(stop_pipeline(unique)).sequence or 0) > 0
    assert behind.refresh() is None
    assert here.projection.rows() == behind.projection.rows()


def test_a_machine_that_had_applied_more_takes_a_restored_log_when_it_is_told_to(
    opened: Open, tmp_path: Path, unique: str
) -> None:
    here = known(opened, unique)
    saved = tmp_path / "saved"
    here.backup(saved)
    here.execute(start_pipeline(unique))
    ahead = opened(f"sqlite:///{tmp_path / 'ahead.db'}")
    ahead.restore()
    assert Turned({unique: "it is stopped in the backup"}, ()) == here.turned_by(saved)
    here.restore_backup(saved)
    fault = ahead.refresh()
    assert fault is not None and Reason.SHORTER == fault.reason
    assert fault == ahead.rebuild()
    assert "rollforward metastore rebuild --accept-loss" in fault.hint
    assert ahead.rebuild(accept_loss=True) is None
    assert ahead.refresh() is None
    assert here.projection.rows() == ahead.projection.rows()
    assert ahead.execute(start_pipeline(unique)).changed
    assert here.refresh() is None


def test_what_destroys_something_does_not_begin_on_a_damaged_log(opened: Open, service: Settings, unique: str) -> None:
    known(opened, unique)
    registry = Registry(service.metastore)
    assert STOPPED == registry.pipeline(unique).desired
    require_stopped(service, registry, unique)
    delete_topic(opened())
    for refused in (
        lambda: require_stopped(service, registry, unique),
        lambda: want(unique, STOPPED, service, registry),
    ):
        with pytest.raises(MetastoreDegraded, match="the command topic is gone"):
            refused()
    registry.close()


def test_what_runs_goes_on_and_is_started_again_on_a_damaged_log(opened: Open, service: Settings, unique: str) -> None:
    here = known(opened, unique)
    here.execute(start_pipeline(unique))
    registry = Registry(service.metastore)
    delete_topic(opened())
    assert not want(unique, RUNNING, service, registry)
    with pytest.raises(MetastoreDegraded, match="the command topic is gone"):
        want(unique, STOPPED, service, registry)
    registry.close()


def test_a_restored_log_is_taken_by_whoever_saw_it_empty(opened: Open, tmp_path: Path, unique: str) -> None:
    here = known(opened, unique)
    make_again(here)
    new = opened(f"sqlite:///{tmp_path / 'new.db'}")
    assert new.restore() is None
    write(here, *checkpoint_values(here.projection.rows(), here.projection.position().head, "k"))
    await_("it is whole", lambda: new.refresh() is None and new.projection.position().head.hash)
    assert here.projection.rows().definitions == new.projection.rows().definitions


def test_a_database_that_was_lost_is_made_again(opened: Open, tmp_path: Path, unique: str) -> None:
    database = tmp_path / "lost" / "projection.db"
    metastore = opened(f"sqlite:///{database}")
    metastore.execute(script(unique))
    before = metastore.projection.rows()
    shutil.rmtree(database.parent)
    again = opened(f"sqlite:///{database}")
    assert again.restore() is None
    assert before == again.projection.rows()


def test_a_broker_that_is_away_is_named_and_found_again(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Other tests need theirs.
    stack = Stack(tmp_path_factory.mktemp("broker"))
    settings = settings_for(tmp_path, stack.up(components=["kafka"]).bootstrap_servers or "", tasks=1)
    monkeypatch.setenv("TEST_TOPIC", unique)
    Admin(settings.kafka_config()).create(unique, partitions=1, settings={})
    metastore = Metastore(settings)
    try:
        metastore.execute(script(unique))
        stack.down()
        quick = Metastore(settings.model_copy(update={"request_timeout_s": 1}))
        with pytest.raises(Unavailable, match="same idempotency key"):
            quick.execute(start_pipeline(unique), "k")
        stack.up(components=["kafka"])
        assert metastore.outcome("k") is None
        assert not metastore.execute(start_pipeline(unique), "k").repeated
    finally:
        stack.down(wipe=True)


@pytest.mark.parametrize("spoil", [lambda b: b[:-10], lambda b: b.replace(b"offset", b"Offset"), lambda b: b""])
def test_a_damaged_backup_is_refused_and_the_log_left(
    opened: Open, tmp_path: Path, unique: str, spoil: Callable[[bytes], bytes]
) -> None:
    metastore = known(opened, unique)
    saved = tmp_path / "saved"
    metastore.backup(saved)
    saved.write_bytes(spoil(saved.read_bytes()))
    with pytest.raises(DataCorrupted, match="no whole backup"):
        metastore.restore_backup(saved)
    assert metastore.refresh() is None


def test_a_backup_of_another_service_is_refused(opened: Open, tmp_path: Path, unique: str) -> None:
    saved = tmp_path / "saved"
    known(opened, unique).backup(saved)
    other = opened(f"sqlite:///{tmp_path / 'other.db'}", service=f"{unique}_other")
    with pytest.raises(InvalidInput, match="backup is of another service"):
        other.restore_backup(saved)
    assert other.log.topic() is None


def test_settings_that_would_delete_commands_are_found_and_set(opened: Open, service: Settings, unique: str) -> None:
    from pipelines.metastore.drift import find_drift, repair

    metastore = known(opened, unique)
    Admin(service.kafka_config()).configure(metastore.log.topic_name, {"retention.ms": "1000"})
    findings = find_drift(metastore, service)
    assert ["log"] == [finding.what for finding in findings]
    assert findings == repair(findings)
    assert [] == find_drift(metastore, service)
