"""Snapshots of a real task: taken beside its work, incremental, restored on an empty disk, refused where they lie."""

from __future__ import annotations

import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from statestore.errors import DataCorrupted, Unavailable
from statestore.planning.plan import Way
from statestore.snapshots.leases import put_lease
from tests.support.task import TaskWorld, config_of


def value(number: int) -> bytes:
    return os.urandom(60) + b"%d" % number


def some(count: int, *, start: int = 0) -> dict[bytes, bytes]:
    return {b"key-%06d" % number: value(number) for number in range(start, start + count)}


def lose_disk(world: TaskWorld) -> None:
    world.close()
    shutil.rmtree(world.spec.folder)


def test_an_empty_disk_comes_back_from_snapshot_and_tail(world: TaskWorld) -> None:
    world.open()
    model = some(2_000)
    world.commit(model)
    taken = world.snapshot()
    assert taken["written"] and taken["uploaded_bytes"] == taken["referenced_bytes"]
    model |= (newer := some(500, start=1_800))
    world.commit(newer)
    lose_disk(world)
    opened = world.open()
    assert Way.SNAPSHOT is opened.plan.way
    assert 500 == opened.records
    assert model == world.entries()
    # The version is current: a restart now needs nothing.
    assert Way.NOTHING is world.open().plan.way
    assert model == world.entries()


def test_a_snapshot_holds_exactly_the_batch_that_it_names(world: TaskWorld, tmp_path: Path) -> None:
    world.open()
    models: list[dict[bytes, bytes]] = [{}]
    for number in range(4):
        changes = some(300, start=number * 200)
        world.commit(changes)
        models.append(models[-1] | changes)
        world.snapshot()
    assert [0, 1, 2, 3] == world.repository.batches()
    for batch in range(4):
        assert models[batch + 1] == world.restored(batch, tmp_path / f"restored-{batch}")


def test_the_task_goes_on_while_its_copy_is_uploaded(world: TaskWorld, tmp_path: Path) -> None:
    world.open()
    model = some(1_000)
    world.commit(model)
    uploading, go_on = threading.Event(), threading.Event()
    objects = world.repository.objects
    upload_all = objects.upload_all

    def slow(*arguments: object) -> None:
        uploading.set()
        assert go_on.wait(30)
        upload_all(*arguments)  # type: ignore[arg-type]

    objects.upload_all = slow  # type: ignore[method-assign,assignment]
    taking = threading.Thread(target=world.snapshot)
    taking.start()
    assert uploading.wait(30)
    world.commit(some(1_000, start=500))
    go_on.set()
    taking.join()
    assert [0] == world.repository.batches()
    assert model == world.restored(0, tmp_path / "restored")


def test_two_that_ask_at_once_do_not_take_each_others_copy_away(world: TaskWorld, tmp_path: Path) -> None:
    """As a person and the watching thread do, when nothing is known of the task yet."""
    world.open()
    model = some(2_000)
    world.commit(model)
    repository = world.repository
    both, batches, upload_all = threading.Barrier(2), repository.batches, repository.objects.upload_all

    def met() -> None:
        # Whoever is alone here goes on: the other one waits for it.
        with suppress(threading.BrokenBarrierError):
            both.wait(0.5)

    def slow_batches() -> list[int]:
        found = batches()
        met()
        return found

    def slow_upload(*arguments: object) -> None:
        met()
        upload_all(*arguments)  # type: ignore[arg-type]

    world.running.repository = repository
    repository.batches = slow_batches  # type: ignore[method-assign]
    repository.objects.upload_all = slow_upload  # type: ignore[method-assign,assignment]
    with ThreadPoolExecutor(max_workers=2) as asking:
        taken = [asked.result() for asked in [asking.submit(world.snapshot) for _ in range(2)]]
    assert [False, True] == sorted(bool(one["written"]) for one in taken)
    assert model == world.restored(0, tmp_path / "restored")


def test_the_second_snapshot_uploads_what_changed(world: TaskWorld) -> None:
    world.open()
    world.commit(some(50_000))
    first = world.snapshot()
    world.commit(some(500))
    second = world.snapshot()
    assert int(second["uploaded_bytes"]) <= int(first["uploaded_bytes"]) // 10  # type: ignore[call-overload]
    assert int(second["referenced_bytes"]) >= int(first["uploaded_bytes"])  # type: ignore[call-overload]


def test_a_batch_is_snapshotted_once(world: TaskWorld) -> None:
    world.open()
    world.commit(some(10))
    assert world.snapshot()["written"]
    assert not world.snapshot()["written"]
    world.open()
    assert not world.snapshot()["written"]


def test_nothing_is_taken_of_a_task_without_commit(world: TaskWorld) -> None:
    world.open()
    with pytest.raises(Unavailable, match="no committed version"):
        world.snapshot()


def test_the_copy_is_gone_afterwards(world: TaskWorld) -> None:
    world.open()
    world.commit(some(10))
    world.snapshot()
    assert {"0", "0.owner"} <= {p.name for p in world.spec.folder.parent.iterdir()} <= {"0", "0.owner", "rates.json"}


def test_a_damaged_file_is_refused_and_the_next_older_snapshot_taken(world: TaskWorld) -> None:
    world.open()
    model = some(500)
    world.commit(model)
    world.snapshot()
    model |= (newer := some(500, start=400))
    world.commit(newer)
    world.snapshot()
    older = {file.sha256 for file in world.repository.read(0).files}
    only_new = [file for file in world.repository.read(1).files if file.sha256 not in older and file.bytes > 5_000]
    objects, layout = world.repository.objects, world.repository.layout
    body = bytearray(objects.get(layout.file(only_new[0].sha256)))
    body[len(body) // 2] ^= 1
    objects.put(layout.file(only_new[0].sha256), bytes(body))
    lose_disk(world)
    opened = world.open()
    assert (Way.SNAPSHOT, layout.manifest(0)) == (opened.plan.way, opened.plan.snapshot)
    refusals = [option.refused for option in opened.plan.ways if option.snapshot == layout.manifest(1)]
    assert "another content" in refusals[0]
    assert model == world.entries()


@pytest.mark.parametrize("damage", ["manifest cut short", "file missing", "file cut short", "all files missing"])
def test_whatever_is_broken_in_storage_the_changelog_gives_the_store(world: TaskWorld, damage: str) -> None:
    world.open()
    model = some(500)
    world.commit(model)
    world.snapshot()
    objects, layout = world.repository.objects, world.repository.layout
    files = [o.key for o in objects.list(layout.files)]
    if damage == "manifest cut short":
        objects.put(layout.manifest(0), objects.get(layout.manifest(0))[:-10])
    elif damage == "file missing":
        objects.delete(files[:1])
    elif damage == "file cut short":
        objects.put(files[0], objects.get(files[0])[:-1])
    else:
        objects.delete(files)
    lose_disk(world)
    opened = world.open()
    assert Way.FULL_REPLAY is opened.plan.way
    assert model == world.entries()


def test_storage_that_is_away_costs_the_snapshot_way_only(world: TaskWorld, tmp_path: Path) -> None:
    world.open()
    model = some(100)
    world.commit(model)
    world.snapshot()
    lose_disk(world)
    shutil.rmtree(tmp_path / "objects")
    (tmp_path / "objects").write_text("a file where the folder was")
    opened = world.open()
    assert Way.FULL_REPLAY is opened.plan.way
    assert "snapshots cannot be read" in next(o.refused for o in opened.plan.ways if o.way is Way.SNAPSHOT)
    assert model == world.entries()


def test_a_local_store_stays_until_its_replacement_is_whole(world: TaskWorld, tmp_path: Path) -> None:
    world.open()
    model = some(500)
    world.commit(model)
    world.close()
    shutil.copytree(world.spec.folder, tmp_path / "old disk")
    world.open()
    model |= (newer := some(500, start=300))
    world.commit(newer)
    world.snapshot()
    model |= (newest := some(500, start=600))
    world.commit_elsewhere(newest)
    lose_disk(world)
    shutil.copytree(tmp_path / "old disk", world.spec.folder)
    objects, layout = world.repository.objects, world.repository.layout
    objects.delete([o.key for o in objects.list(layout.files)][:1])
    # However slow the tail seems, a snapshot that cannot be restored leaves the local store in use.
    (world.spec.folder.parent / "rates.json").write_text(
        '{"replay_records_per_s": 1.0, "restore_bytes_per_s": {"file": 1e12}}'
    )
    opened = world.open()
    assert Way.ROLL_FORWARD is opened.plan.way
    assert any("could not be restored" in option.refused for option in opened.plan.ways)
    assert model == world.entries()


def test_a_snapshot_ahead_of_kafka_is_refused_and_removed(world: TaskWorld) -> None:
    world.open()
    model = some(100)
    world.commit(model)
    world.snapshot()
    repository = world.repository
    manifest = repository.read(0)
    stands = {name: replace(at, offset=at.offset + 10) for name, at in manifest.stores.items()}
    ahead = replace(manifest, batch=7, stores=stands)
    repository.objects.put(repository.layout.manifest(7), ahead.encode())
    lose_disk(world)
    opened = world.open()
    assert repository.layout.manifest(0) == opened.plan.snapshot
    assert [0] == repository.batches()
    assert model == world.entries()


def test_no_snapshot_begins_while_files_are_collected(world: TaskWorld) -> None:
    world.open()
    world.commit(some(10))
    repository = world.repository
    mark = put_lease(repository.objects, repository.layout.marks, "collection", (), 3600)
    with pytest.raises(Unavailable, match="being collected"):
        world.snapshot()
    assert [] == repository.batches()
    repository.objects.delete([mark.key])
    assert world.snapshot()["written"]


def test_a_snapshot_that_takes_longer_than_its_pin_is_given_up(kafka: str, unique: str, tmp_path: Path) -> None:
    world = TaskWorld(
        kafka, unique, tmp_path / "state", config_of(tmp_path / "objects", pin_life_s=0.0, minimum_age_s=1)
    )
    world.open()
    world.commit(some(10))
    with pytest.raises(Unavailable, match="took longer than it may"):
        world.snapshot()
    assert [] == world.repository.batches()
    world.close()


def test_a_manifest_cannot_name_a_file_elsewhere(world: TaskWorld) -> None:
    world.open()
    world.commit(some(10))
    world.snapshot()
    repository = world.repository
    body = repository.objects.get(repository.layout.manifest(0)).replace(b'"CURRENT"', b'"../CURRENT"')
    repository.objects.put(repository.layout.manifest(0), body)
    with pytest.raises(DataCorrupted, match="unreadable"):
        repository.read(0)
