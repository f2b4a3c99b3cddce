"""What every object store promises, local folder and S3 servers alike."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from statestore.errors import InvalidInput, Unavailable
from statestore.objects.base import ObjectMissing, ObjectStore
from tests.support.small_disk import SmallDisk

LARGE = 40 * 1024 * 1024


def test_a_body_comes_back_as_it_was_put(objects: ObjectStore) -> None:
    for body in (b"", b"small", os.urandom(100_000)):
        objects.put("a/b.json", body)
        assert body == objects.get("a/b.json")


def test_a_missing_object_is_missing(objects: ObjectStore, tmp_path: Path) -> None:
    assert objects.head("a") is None
    with pytest.raises(ObjectMissing):
        objects.get("a")
    with pytest.raises(ObjectMissing):
        objects.download("a", tmp_path / "a")


def test_put_replaces_and_put_if_absent_does_not(objects: ObjectStore) -> None:
    assert objects.put_if_absent("a", b"first")
    assert not objects.put_if_absent("a", b"second")
    assert b"first" == objects.get("a")
    objects.put("a", b"third")
    assert b"third" == objects.get("a")


def test_an_equal_body_found_after_a_conditional_put_is_ours(objects: ObjectStore) -> None:
    assert objects.put_if_absent("a", b"id 1")
    assert objects.put_if_absent("a", b"id 1")


def test_of_many_conditional_puts_one_wins(objects: ObjectStore) -> None:
    with ThreadPoolExecutor(8) as writers:
        for round_ in range(5):
            key = f"race/{round_}"
            won = list(writers.map(lambda n, key=key: objects.put_if_absent(key, b"writer %d" % n), range(8)))
            assert 1 == sum(won)
            assert b"writer %d" % won.index(True) == objects.get(key)


def test_a_listing_has_keys_in_order_sizes_and_times(objects: ObjectStore) -> None:
    for key in ("t-1/files/b", "t-1/files/a", "t-1/manifests/0", "t-10/files/c"):
        objects.put(key, key.encode())
    found = list(objects.list("t-1/files/"))
    assert [("t-1/files/a", 11), ("t-1/files/b", 11)] == [(o.key, o.bytes) for o in found]
    assert 3 == len(list(objects.list("t-1/")))
    assert [] == list(objects.list("t-2/"))
    assert all(abs(o.modified_at_s - time.time()) < 60 for o in found)
    head = objects.head("t-1/files/a")
    assert head is not None and (head.key, head.bytes) == ("t-1/files/a", 11)


def test_a_listing_goes_over_pages(objects: ObjectStore) -> None:
    keys = [f"many/{number:04}" for number in range(1_005)]
    with ThreadPoolExecutor(8) as writers:
        list(writers.map(lambda key: objects.put(key, b""), keys))
    assert keys == [o.key for o in objects.list("many/")]
    objects.delete(keys)
    assert [] == list(objects.list("many/"))


def test_deleting_twice_is_harmless(objects: ObjectStore) -> None:
    objects.put("a/b", b"")
    objects.delete(["a/b", "a/c"])
    objects.delete(["a/b"])
    assert objects.head("a/b") is None


def test_a_refreshed_object_is_young_and_the_same(objects: ObjectStore) -> None:
    assert not objects.refresh("a")
    objects.put("a", b"body")
    before = objects.head("a")
    time.sleep(1.1)
    assert objects.refresh("a")
    after = objects.head("a")
    assert before is not None and after is not None
    assert after.modified_at_s > before.modified_at_s
    assert (b"body", 4) == (objects.get("a"), after.bytes)


def test_large_files_travel_in_parts_and_at_once(objects: ObjectStore, tmp_path: Path) -> None:
    bodies = {"files/large": os.urandom(LARGE), "files/small": b"x", "files/empty": b""}
    for key, body in bodies.items():
        (tmp_path / key.replace("/", "-")).write_bytes(body)
    arrived: list[str] = []
    objects.upload_all([(tmp_path / k.replace("/", "-"), k) for k in bodies], lambda _, key: arrived.append(key))
    assert sorted(bodies) == sorted(arrived)
    assert {k: len(v) for k, v in bodies.items()} == {o.key: o.bytes for o in objects.list("files/")}
    back = tmp_path / "back"
    back.mkdir()
    objects.download_all([(back / k.replace("/", "-"), k, len(v)) for k, v in bodies.items()], lambda _path, _key: None)
    assert bodies == {k: (back / k.replace("/", "-")).read_bytes() for k in bodies}


def test_one_failed_transfer_fails_all(objects: ObjectStore, tmp_path: Path) -> None:
    objects.put("a", b"x")
    with pytest.raises(ObjectMissing):
        objects.download_all([(tmp_path / "a", "a", 1), (tmp_path / "b", "b", 1)], lambda _path, _key: None)


@pytest.mark.parametrize("size", [1_000, LARGE], ids=["small", "large"])
def test_a_disk_that_is_full_is_told(objects: ObjectStore, tmp_path: Path, size: int) -> None:
    objects.put("a", os.urandom(size))
    disk = SmallDisk.mounted(tmp_path / "disk", "1m")
    try:
        with disk.full(), pytest.raises(Unavailable, match="No space left"):
            objects.download("a", disk.path / "a", size)
    finally:
        disk.close()


@pytest.mark.parametrize("key", ["", "/a", "a/", "../a", "a/../b", ".tmp/a", "a//b", "a b", "ä"])
def test_a_key_never_leaves_its_root(objects: ObjectStore, key: str) -> None:
    with pytest.raises(InvalidInput):
        objects.put(key, b"")
