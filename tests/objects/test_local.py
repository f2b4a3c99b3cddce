"""The local folder alone: what a killed writer leaves, the bandwidth limit, the disk."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import Any

import pytest

from statestore.config import ObjectsConfig
from statestore.errors import InvalidConfig, Unavailable
from statestore.objects.local import LocalObjects
from statestore.objects.open import open_objects
from statestore.objects.throttle import Throttle


def test_the_folder_is_for_its_user_alone_unless_it_was_there(tmp_path: Path) -> None:
    LocalObjects(tmp_path / "new").put("a/b", b"")
    (tmp_path / "there").mkdir()
    (tmp_path / "there").chmod(0o750)
    LocalObjects(tmp_path / "there").put("a/b", b"")
    assert ["0o700", "0o750"] == [oct((tmp_path / name).stat().st_mode & 0o777) for name in ("new", "there")]


def test_what_a_killed_writer_left_is_not_listed_and_swept_after_a_day(tmp_path: Path) -> None:
    LocalObjects(tmp_path).put("a", b"")
    left = tmp_path / ".tmp" / "left"
    left.write_bytes(b"half")
    store = LocalObjects(tmp_path)
    assert ["a"] == [o.key for o in store.list("")]
    assert left.exists()
    os.utime(left, (time.time() - 90_000,) * 2)
    LocalObjects(tmp_path)
    assert not left.exists()


def test_what_a_writer_places_while_its_files_are_looked_at_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    LocalObjects(tmp_path).put("a", b"")
    monkeypatch.setattr(Path, "glob", lambda folder, _: iter([folder / "placed"]))
    assert b"" == LocalObjects(tmp_path).get("a")


def test_the_throttle_lets_through_at_its_rate() -> None:
    now = [100.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    throttle = Throttle(1_000, now=lambda: now[0], sleep=sleep)
    for _ in range(5):
        throttle.take(500)
    assert pytest.approx(102.0) == now[0]
    now[0] += 10
    throttle.take(500)
    assert pytest.approx(112.0) == now[0]


def test_a_throttled_copy_is_whole(tmp_path: Path) -> None:
    body = os.urandom(3_000_000)
    (tmp_path / "in").write_bytes(body)
    store = LocalObjects(tmp_path / "store", bandwidth_bytes_per_s=30_000_000)
    started = time.monotonic()
    store.upload(tmp_path / "in", "a")
    store.download("a", tmp_path / "out")
    assert time.monotonic() - started > 0.1
    assert body == (tmp_path / "out").read_bytes()


@pytest.mark.parametrize("url", ["", "/tmp/x", "file://host/x", "file:x", "http://x/y", "s3:///x"])
def test_another_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidConfig, match="snapshot url"):
        open_objects(ObjectsConfig(url))


def test_a_file_in_the_way_is_told(tmp_path: Path) -> None:
    store = LocalObjects(tmp_path)
    store.put("a", b"")
    with pytest.raises(Unavailable, match="object folder failed"):
        store.put("a/b", b"")


@pytest.mark.parametrize(("code", "told"), [(errno.EIO, Unavailable), (errno.EACCES, InvalidConfig)])
def test_a_folder_that_cannot_be_read_is_not_an_empty_one(
    tmp_path: Path, code: int, told: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalObjects(tmp_path)
    store.put("p/manifests/1", b"")
    store.put("p/files/a", b"")
    unreadable(tmp_path / "p" / "manifests", code, monkeypatch)
    for prefix in ("p/manifests/", "p/", ""):
        with pytest.raises(told):
            list(store.list(prefix))
    assert ["p/files/a"] == [o.key for o in store.list("p/files/")]


def test_a_folder_that_goes_while_it_is_listed_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalObjects(tmp_path)
    store.put("p/a/1", b"")
    store.put("p/b", b"")
    unreadable(tmp_path / "p" / "a", errno.ENOENT, monkeypatch)
    assert ["p/b"] == [o.key for o in store.list("p/")]
    assert [] == list(store.list("never/there/"))


def unreadable(folder: Path, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on opening this folder fails so."""
    scandir = os.scandir

    def failing(path: Any = ".") -> Any:
        if Path(path) == folder:
            raise OSError(code, os.strerror(code), str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", failing)
