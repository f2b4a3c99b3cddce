"""A store against its changelog: equal, or named key by key."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.digest import EMPTY, changed, digest_of, entry_hashes
from statestore.verification import Verified, is_sampled, verify, verify_against, verify_digest
from statestore.version import TaskDatabase
from tests.support.present import present
from tests.support.task import ROCKS, TaskWorld


def verified(world: TaskWorld, tmp_path: Path, percent: float = 100.0) -> Verified:
    database = TaskDatabase(world.spec.folder, ["s"], ROCKS, read_only=True)
    try:
        return verify(world.spec, world.reader, database, tmp_path / "work", percent=percent)
    finally:
        database.close()


def by_digest(world: TaskWorld) -> Verified | None:
    database = TaskDatabase(world.spec.folder, ["s"], ROCKS, read_only=True)
    try:
        return verify_digest(world.spec, world.log, database)
    finally:
        database.close()


def with_error(world: TaskWorld, change: tuple[bytes, bytes | None]) -> None:
    """Commit a hundred keys, then change the closed store as a defect would."""
    world.open()
    world.commit(some(100))
    world.close()
    database = TaskDatabase(world.spec.folder, ["s"], ROCKS)
    database.database.write({"s": [change]})
    database.close()


def some(count: int) -> dict[bytes, bytes]:
    return {b"key-%04d" % number: b"%d" % number for number in range(count)}


def test_an_equal_store_is_equal_beside_its_running_task(world: TaskWorld, tmp_path: Path) -> None:
    world.open()
    world.commit(some(500))
    world.commit({b"key-0001": b"again", b"new": b""})
    found = verified(world, tmp_path)
    assert (1, 501, 0, 0) == (found.batch, found.keys, found.changed_since, found.mismatch_count)
    assert found.store_digest == found.other_digest
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize(
    ("kind", "change"),
    [("another value", (b"key-0007", b"wrong")), ("missing", (b"key-0007", None)), ("unexpected", (b"nobody", b"x"))],
)
def test_a_difference_is_named(world: TaskWorld, kind: str, change: tuple[bytes, bytes | None], tmp_path: Path) -> None:
    with_error(world, change)
    found = verified(world, tmp_path)
    assert [(change[0].hex(), kind)] == [(m.key, m.kind) for m in found.mismatches]
    assert found.store_digest != found.other_digest


def test_keys_that_were_changed_since_are_left_out(world: TaskWorld, tmp_path: Path) -> None:
    world.open()
    world.commit(some(100))
    world.commit_elsewhere({b"key-0001": b"newer", b"key-0002": None, b"new": b"1"})
    found = verified(world, tmp_path)
    assert (0, 98, 3, 0) == (found.batch, found.keys, found.changed_since, found.mismatch_count)


def test_a_sample_takes_about_so_many_keys_and_the_same_each_time(world: TaskWorld, tmp_path: Path) -> None:
    world.open()
    world.commit(some(1_000))
    found = verified(world, tmp_path, percent=10)
    assert found.keys == sum(is_sampled(key, 10) for key in some(1_000))
    assert 60 < found.keys < 140
    assert found == Verified(**{**vars(verified(world, tmp_path, percent=10)), "seconds": found.seconds})


def test_a_snapshot_that_would_give_another_store_is_told(world: TaskWorld, tmp_path: Path) -> None:
    world.open()
    world.commit(some(100))
    world.snapshot()
    world.commit({b"key-0001": b"again"})
    world.finish(1)

    def against() -> Verified:
        database = TaskDatabase(world.spec.folder, ["s"], ROCKS, read_only=True)
        try:
            return verify_against(world.spec, database, world.look_back().tasks[0], tmp_path / "work", pin_life_s=600)
        finally:
            database.close()

    found = against()
    assert ("snapshot 0", 1, 100, 0) == (found.against, found.batch, found.keys, found.mismatch_count)
    assert found.store_digest == found.other_digest
    world.close()
    database = TaskDatabase(world.spec.folder, ["s"], ROCKS)
    database.database.write({"s": [(b"key-0002", None)]})
    database.close()
    assert [(b"key-0002".hex(), "missing")] == [(m.key, m.kind) for m in against().mismatches]
    assert not (tmp_path / "work").exists()


class Compared:
    """Compares the store with its newest snapshot; `downloads` counts files that were fetched for it."""

    def __init__(self, world: TaskWorld, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._world, self._work = world, work
        self.downloads = 0
        kind = type(world.repository.objects)
        download = kind.download

        def counted(*about: Any) -> None:
            self.downloads += 1
            download(*about)

        monkeypatch.setattr(kind, "download", counted)

    def __call__(self, *, full: bool = False, percent: float = 100.0) -> Verified:
        self.downloads = 0
        world, past = self._world, self._world.look_back(any_timeline=True).tasks[0]
        database = TaskDatabase(world.spec.folder, ["s"], ROCKS, read_only=True)
        try:
            return verify_against(world.spec, database, past, self._work, pin_life_s=600, percent=percent, full=full)
        finally:
            database.close()
            assert not self._work.exists()

    def rewrite(self, **changed: object) -> None:
        """Change the manifest of batch 0; None takes a field away."""
        objects, key = self._world.repository.objects, self._world.repository.layout.manifest(0)
        fields = {**json.loads(objects.get(key)), **changed}
        objects.put(key, json.dumps({name: value for name, value in fields.items() if value is not None}).encode())


@pytest.fixture
def compared(world: TaskWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compared:
    """Of a store of a hundred keys that stands at its snapshot."""
    world.open()
    world.commit(some(100))
    world.snapshot()
    world.finish(0)
    return Compared(world, tmp_path / "work", monkeypatch)


def test_a_snapshot_of_the_store_s_batch_is_compared_by_digest(world: TaskWorld, compared: Compared) -> None:
    assert world.running.digest == world.repository.read(0).digest
    found = compared()
    assert ("snapshot 0", 0, 100, False) == (found.against, found.batch, found.keys, found.differs)
    assert world.running.digest == found.store_digest == found.other_digest
    assert 0 == compared.downloads
    for asked in ({"full": True}, {"percent": 50.0}):
        found = compared(**asked)
        assert not found.differs
        assert compared.downloads > 0


def test_a_digest_that_differs_from_the_snapshot_s_names_keys(world: TaskWorld, compared: Compared) -> None:
    world.close()
    database = TaskDatabase(world.spec.folder, ["s"], ROCKS)
    database.database.write({"s": [(b"key-0007", b"12345678wrong")]})
    database.close()
    found = compared()
    assert [(b"key-0007".hex(), "another value")] == [(m.key, m.kind) for m in found.mismatches]
    assert found.digest_differs
    assert compared.downloads > 0


def test_a_snapshot_whose_digest_no_key_explains_is_told(compared: Compared) -> None:
    compared.rewrite(digest=EMPTY)
    found = compared()
    assert (0, True) == (found.mismatch_count, found.differs)


def test_a_manifest_from_before_digests_is_compared_key_by_key(world: TaskWorld, compared: Compared) -> None:
    compared.rewrite(format=1, digest=None)
    assert (1, None) == (world.repository.read(0).format, world.repository.read(0).digest)
    found = compared()
    assert ("snapshot 0", 100, False) == (found.against, found.keys, found.differs)
    assert compared.downloads > 0


def test_a_snapshot_that_is_not_whole_is_not_equal_by_its_digest(world: TaskWorld, compared: Compared) -> None:
    repository = world.repository
    repository.objects.delete([repository.layout.file(repository.read(0).files[0].sha256)])
    # The changelog's beginning leads to the batch as well.
    assert "changelog" == compared().against


def test_every_commit_has_its_store_s_digest(world: TaskWorld) -> None:
    world.open()
    for changes in (some(500), {b"key-0001": b"again", b"new": b""}, {b"key-0001": b"1"}):
        batch = world.commit(changes)
        found = present(by_digest(world))
        assert (batch, False, "digest") == (found.batch, found.differs, found.against)
        assert found.store_digest == world.running.digest
    assert 501 == found.keys


def test_a_digest_outlives_owners_disks_and_rewrites(world: TaskWorld, tmp_path: Path) -> None:
    world.open()
    world.commit(some(100))
    world.snapshot()
    first = world.running.digest
    world.commit({b"key-0001": b"again", b"new": b"1"})
    newest = world.running.digest
    assert first != newest
    world.close()
    shutil.rmtree(world.spec.folder)
    world.open()
    world.commit({})
    assert newest == world.running.digest
    world.finish(2)
    world.rewrite(0, tmp_path / "past")
    world.open()
    assert first == world.running.digest
    found = by_digest(world)
    assert found is not None
    assert not found.differs


@pytest.mark.parametrize("change", [(b"key-0007", b"wrong"), (b"key-0007", None), (b"nobody", b"x")])
def test_a_digest_tells_any_difference(world: TaskWorld, change: tuple[bytes, bytes | None]) -> None:
    with_error(world, change)
    found = by_digest(world)
    assert found is not None
    assert found.differs


def test_a_version_of_an_owner_that_kept_no_digest_has_none(world: TaskWorld) -> None:
    world.open()
    world.commit(some(10))
    world.commit_elsewhere({b"key-0001": b"newer"})
    world.open()
    world.commit({b"key-0002": b"newest"})
    assert world.running.digest is None
    assert by_digest(world) is None


@given(st.lists(st.tuples(st.binary(max_size=2), st.one_of(st.none(), st.binary(max_size=2))), max_size=40))
def test_a_digest_is_that_of_the_entries_however_they_came(changes: list[tuple[bytes, bytes | None]]) -> None:
    entries: dict[bytes, bytes] = {}
    digest = EMPTY
    for key, value in changes:
        taken, added = entry_hashes([key, key], [entries.get(key), value])
        digest = changed(digest, added=[added], taken=[taken])
        if value is None:
            entries.pop(key, None)
        else:
            entries[key] = value
    assert (digest, len(entries)) == digest_of(reversed(entries.items()))


def test_a_byte_that_passes_from_a_key_to_its_value_changes_the_digest() -> None:
    assert digest_of([(b"ab", b"c")]) != digest_of([(b"a", b"bc")])
