"""A transaction in a temporary store: committed by its commit file, copied in pieces, finished however often it died."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from statestore.commitfile import CommitFile, Metadata
from statestore.config import RocksConfig
from statestore.errors import TaskCorrupted
from statestore.failpoints import arm
from statestore.rocks.database import Database
from statestore.store import Isolation
from statestore.transactions.secondary_store import SecondaryStoreTransaction

COMMITTED = Isolation.READ_COMMITTED
BEFORE = {b"k%03d" % number: b"old" for number in range(0, 90, 3)}
AFTER = {key: value for key, value in BEFORE.items() if not b"k030" <= key <= b"k050"} | {
    b"k%03d" % number: b"new%03d" % number for number in range(0, 100, 2)
}
del AFTER[b"k000"]
METADATA: list[tuple[bytes, bytes | None]] = [(b"version", b"2")]


def opened(folder: Path) -> SecondaryStoreTransaction:
    base = Database(folder / "committed", ["checkpoint"], RocksConfig())
    return SecondaryStoreTransaction("s", base, folder, RocksConfig(), copy_bytes_max=100)


def write_before(transaction: SecondaryStoreTransaction) -> None:
    transaction.base.write({"s": BEFORE.items(), "s.old": [(b"x", b"y")], "checkpoint": [(b"version", b"1")]})


def write_after(transaction: SecondaryStoreTransaction) -> None:
    transaction.put("s", b"k031", b"deleted by the range")
    transaction.delete_range("s", b"k030", b"k050")
    transaction.put_all("s", [(b"k%03d" % number, b"new%03d" % number) for number in range(0, 100, 2)])
    transaction.put("s", b"k000", None)
    transaction.drop("s.old")


@pytest.fixture
def transaction(tmp_path: Path) -> Iterator[SecondaryStoreTransaction]:
    transaction = opened(tmp_path)
    write_before(transaction)
    yield transaction
    transaction.close()
    transaction.base.close()


def test_uncommitted_reads_see_changes_and_committed_ones_do_not(transaction: SecondaryStoreTransaction) -> None:
    write_after(transaction)
    assert AFTER == dict(transaction.scan("s"))
    assert sorted(AFTER.items(), reverse=True) == list(transaction.scan("s", reverse=True))
    assert BEFORE == dict(transaction.scan("s", isolation=COMMITTED))
    assert [b"new002", None, None] == transaction.get_many("s", [b"k002", b"k033", b"k000"])
    assert (["s"], ["s", "s.old"]) == (transaction.spaces(), transaction.spaces(COMMITTED))


def test_commit_copies_everything_with_its_metadata(transaction: SecondaryStoreTransaction) -> None:
    write_after(transaction)
    transaction.commit("checkpoint", METADATA)
    assert AFTER == dict(transaction.scan("s", isolation=COMMITTED))
    assert b"2" == transaction.base.get("checkpoint", b"version")
    assert ["checkpoint", "s"] == transaction.base.spaces()
    assert 0 == transaction.uncommitted_bytes
    transaction.put("s", b"k000", b"again")
    assert b"again" == transaction.get("s", b"k000")


def test_committed_reads_keep_to_the_old_version_while_the_base_is_being_changed(
    transaction: SecondaryStoreTransaction, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_after(transaction)
    seen: list[tuple[bool, dict[bytes, bytes], dict[bytes, bytes], bytes | None, list[str]]] = []

    def look(point: str) -> None:
        if point in ("secondary.in-copy", "secondary.before-last-write"):
            torn = dict(transaction.base.scan("s")) not in (BEFORE, AFTER)
            committed = dict(transaction.scan("s", isolation=COMMITTED))
            value = transaction.get("s", b"k003", COMMITTED)
            seen.append((torn, committed, dict(transaction.scan("s")), value, transaction.spaces(COMMITTED)))

    monkeypatch.setattr("statestore.transactions.secondary_store.reach", look)
    transaction.commit("checkpoint", METADATA)
    assert len(seen) > 3
    assert [(True, BEFORE, AFTER, b"old", ["s", "s.old"])] * len(seen) == seen


def test_a_failing_copy_leaves_readers_the_old_version_and_is_finished_later(
    transaction: SecondaryStoreTransaction, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(point: str) -> None:
        if point == "secondary.before-last-write":
            raise OSError("disk is gone")

    write_after(transaction)
    with monkeypatch.context() as patch:
        patch.setattr("statestore.transactions.secondary_store.reach", fail)
        with pytest.raises(OSError):
            transaction.commit("checkpoint", METADATA)
    assert BEFORE == dict(transaction.scan("s", isolation=COMMITTED))
    transaction.rollback()
    assert AFTER == dict(transaction.scan("s", isolation=COMMITTED))
    assert b"2" == transaction.base.get("checkpoint", b"version")


def test_leftovers_without_commit_file_are_deleted(tmp_path: Path) -> None:
    transaction = opened(tmp_path)
    write_before(transaction)
    write_after(transaction)
    transaction._opened().close()  # As a killed process leaves it.
    transaction.base.close()
    again = opened(tmp_path)
    again.recover()
    assert BEFORE == dict(again.scan("s"))
    assert not (tmp_path / "s.uncommitted").exists()
    again.base.close()


def test_a_commit_file_without_its_store_or_damaged_is_corruption(tmp_path: Path) -> None:
    file = CommitFile(tmp_path / "s.commit")
    file.write(Metadata("checkpoint", METADATA))
    transaction = opened(tmp_path)
    with pytest.raises(TaskCorrupted, match="without its temporary store"):
        transaction.recover()
    raw = file.path.read_bytes()
    for damaged in (raw[:-4], raw[:20] + b"?" + raw[21:], b""):
        file.path.write_bytes(damaged)
        with pytest.raises(TaskCorrupted, match="damaged"):
            transaction.recover()
    transaction.base.close()


# What is committed when a process dies at a point: the old version before the commit file has its name.
POINTS = {
    "secondary.synced": BEFORE,
    "secondary.commit-file-unnamed": BEFORE,
    "secondary.commit-file-written": AFTER,
    "secondary.in-copy": AFTER,
    "secondary.before-last-write": AFTER,
    "secondary.copied": AFTER,
    "secondary.dropped": AFTER,
    "secondary.commit-file-deleted": AFTER,
    "secondary.emptied": AFTER,
}
AGAIN = ("secondary.roll-forward", "secondary.in-copy", "secondary.before-last-write", "secondary.copied")


def dies(folder: Path, point: str, act: str, module: str = __name__) -> None:
    """`act` runs in a process of its own until the armed point kills it."""
    points = folder / "points"
    points.mkdir(exist_ok=True)
    arm(points, point)
    environment = {**os.environ, "ROLLFORWARD_FAILPOINTS": str(points), "PYTHONPATH": os.pathsep.join(sys.path)}
    program = f"from pathlib import Path\nfrom {module} import {act}\n{act}(Path({str(folder)!r}))"
    died = subprocess.run([sys.executable, "-c", program], env=environment, timeout=60, check=False)
    assert -signal.SIGKILL == died.returncode


def commit_in(folder: Path) -> None:
    transaction = opened(folder)
    transaction.recover()
    write_after(transaction)
    transaction.commit("checkpoint", METADATA)


def recover_in(folder: Path) -> None:
    opened(folder).recover()


def state_of(folder: Path) -> tuple[dict[bytes, bytes], bytes | None, list[str], bool]:
    transaction = opened(folder)
    transaction.recover()
    spaces = transaction.spaces()
    state = dict(transaction.scan("s", isolation=COMMITTED)), transaction.base.get("checkpoint", b"version"), spaces
    transaction.base.close()
    return *state, (folder / "s.commit").exists()


@pytest.mark.parametrize("point", POINTS)
def test_a_process_killed_in_a_commit_leaves_the_old_or_the_new_version(tmp_path: Path, point: str) -> None:
    transaction = opened(tmp_path)
    write_before(transaction)
    transaction.base.close()
    dies(tmp_path, point, "commit_in")
    if POINTS[point] is BEFORE:
        assert (BEFORE, b"1", ["s", "s.old"], False) == state_of(tmp_path)
    else:
        assert (AFTER, b"2", ["s"], False) == state_of(tmp_path)


@pytest.mark.parametrize("point", AGAIN)
def test_a_process_killed_while_rolling_forward_changes_nothing(tmp_path: Path, point: str) -> None:
    transaction = opened(tmp_path)
    write_before(transaction)
    transaction.base.close()
    dies(tmp_path, "secondary.in-copy", "commit_in")
    dies(tmp_path, point, "recover_in")
    dies(tmp_path, point, "recover_in")
    assert (AFTER, b"2", ["s"], False) == state_of(tmp_path)
