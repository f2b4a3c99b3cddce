"""A transaction that begins in memory and goes on on disk loses no write, however it ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from statestore.config import RocksConfig
from statestore.errors import Unavailable
from statestore.rocks.database import Database
from statestore.spaces.base import Changes
from statestore.store import Isolation
from statestore.transactions.auto import AutoTransaction
from statestore.transactions.secondary_store import SecondaryStoreTransaction
from tests.statestore.test_secondary_store import AFTER, BEFORE, dies, write_before

COMMITTED = Isolation.READ_COMMITTED


def opened(folder: Path, bytes_max: int) -> AutoTransaction:
    base = Database(folder / "committed", ["checkpoint"], RocksConfig())
    secondary = SecondaryStoreTransaction("s", base, folder, RocksConfig(), copy_bytes_max=100)
    return AutoTransaction(secondary, uncommitted_bytes_max=bytes_max)


def write_after(transaction: AutoTransaction) -> None:
    """One by one, so that the spill comes somewhere between."""
    transaction.drop("s.old")
    transaction.put("s", b"k031", b"deleted by the range")
    transaction.delete_range("s", b"k030", b"k050")
    for number in range(0, 100, 2):
        transaction.put("s", b"k%03d" % number, b"new%03d" % number)
    transaction.put("s", b"k000", None)


@pytest.fixture(params=[1, 2_000, 5_000, 10_000_000])
def transaction(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AutoTransaction]:
    transaction = opened(tmp_path, request.param)
    write_before(transaction)  # type: ignore[arg-type]
    write_after(transaction)
    assert (request.param < 10_000_000) == transaction.spilled
    yield transaction
    transaction.close()
    transaction.base.close()


def test_reads_are_the_same_wherever_the_changes_are(transaction: AutoTransaction) -> None:
    assert sorted(AFTER.items()) == list(transaction.scan("s"))
    assert BEFORE == dict(transaction.scan("s", isolation=COMMITTED))
    assert (["s"], ["s", "s.old"]) == (transaction.spaces(), transaction.spaces(COMMITTED))
    assert [None, b"new002", b"old"] == transaction.get_many("s", [b"k000", b"k002", b"k003"])


def test_commit_begins_a_transaction_in_memory_again(transaction: AutoTransaction) -> None:
    transaction.commit("checkpoint", [(b"version", b"2")])
    assert (False, 0) == (transaction.spilled, transaction.uncommitted_bytes)
    assert AFTER == dict(transaction.scan("s", isolation=COMMITTED))
    assert b"2" == transaction.base.get("checkpoint", b"version")


def test_rollback_forgets_what_was_spilled(transaction: AutoTransaction) -> None:
    transaction.rollback()
    assert (False, 0) == (transaction.spilled, transaction.uncommitted_bytes)
    assert BEFORE == dict(transaction.scan("s"))
    write_after(transaction)
    assert AFTER == dict(transaction.scan("s"))


def test_a_scan_begun_before_the_spill_keeps_its_view(tmp_path: Path) -> None:
    transaction = opened(tmp_path, 5_000)
    transaction.put("s", b"a", b"1")
    scan = transaction.scan("s")
    transaction.put_all("s", [(b"b%d" % number, b"x" * 100) for number in range(100)])
    assert transaction.spilled
    assert [(b"a", b"1")] == list(scan)
    assert 101 == len(list(transaction.scan("s")))
    transaction.close()
    transaction.base.close()


def disk_full(*_: object) -> None:
    raise Unavailable("disk is full")


@pytest.mark.parametrize("end", ["rollback", "recover"])
def test_a_spill_that_fails_leaves_nothing_for_later_transactions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    transaction = opened(tmp_path, 5_000)
    write_before(transaction)  # type: ignore[arg-type]
    copied: list[str] = []

    def put_all(space: str, changes: Changes) -> None:
        if copied:
            disk_full()
        copied.append(space)
        SecondaryStoreTransaction.put_all(transaction._large, space, changes)

    transaction.drop("s.old")
    transaction.delete_range("s", b"k000", b"k010")
    transaction.put("s", b"stale", b"1")
    with monkeypatch.context() as broken, pytest.raises(Unavailable, match="disk is full"):
        broken.setattr(transaction._large, "put_all", put_all)
        transaction.put_all("s.other", [(b"o%d" % number, b"x" * 100) for number in range(100)])
    assert copied
    with pytest.raises(Unavailable, match="a write of the transaction has failed"):
        transaction.commit("checkpoint", [(b"version", b"2")])
    getattr(transaction, end)()
    assert not transaction.failed
    assert BEFORE == dict(transaction.scan("s"))
    transaction.put("s", b"small", b"2")
    transaction.commit("checkpoint", [(b"version", b"3")])
    large: list[tuple[bytes, bytes | None]] = [(b"large%03d" % number, b"x" * 100) for number in range(100)]
    transaction.put_all("s", large)
    assert transaction.spilled
    transaction.commit("checkpoint", [(b"version", b"4")])
    assert BEFORE | {b"small": b"2"} | dict(large) == dict(transaction.scan("s"))
    assert ["s", "s.old"] == transaction.spaces()
    transaction.close()
    transaction.base.close()


def test_where_a_failed_spill_cannot_be_undone_the_store_does_not_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transaction = opened(tmp_path, 1)
    with monkeypatch.context() as broken:
        broken.setattr(transaction._large, "put_all", disk_full)
        broken.setattr(transaction._large, "rollback", disk_full)
        for act in (lambda: transaction.put("s", b"k", b"v"), transaction.rollback):
            with pytest.raises(Unavailable, match="disk is full"):
                act()
    with pytest.raises(Unavailable, match="a write of the transaction has failed"):
        transaction.commit("checkpoint", [(b"version", b"2")])
    transaction.close()
    transaction.base.close()


def test_one_huge_call_holds_little_in_memory(tmp_path: Path) -> None:
    transaction = opened(tmp_path, 1_000_000)
    most = 0

    def changes() -> Iterator[tuple[bytes, bytes | None]]:
        nonlocal most
        for number in range(50_000):
            most = max(most, transaction._small.memory_bytes)
            yield b"%06d" % number, b"x" * 100

    transaction.put_all("s", changes())
    assert transaction.spilled
    assert 50_000 * 106 == transaction.uncommitted_bytes
    assert most <= 4_000_000
    transaction.close()
    transaction.base.close()


def commit_in(folder: Path) -> None:
    transaction = opened(folder, 5_000)
    transaction.recover()
    write_after(transaction)
    transaction.commit("checkpoint", [(b"version", b"2")])


def commit_small_in(folder: Path) -> None:
    transaction = opened(folder, 10_000_000)
    write_after(transaction)
    transaction.commit("checkpoint", [(b"version", b"2")])


@pytest.mark.parametrize(
    ("point", "act", "expected"),
    [
        ("spill.begun", "commit_in", BEFORE),
        ("spill.in", "commit_in", BEFORE),
        ("spill.done", "commit_in", BEFORE),
        ("secondary.synced", "commit_in", BEFORE),
        ("secondary.in-copy", "commit_in", AFTER),
        ("indexed.before-write", "commit_small_in", BEFORE),
        ("indexed.written", "commit_small_in", AFTER),
        ("indexed.dropped", "commit_small_in", AFTER),
    ],
)
def test_a_process_killed_anywhere_leaves_the_old_or_the_new_version(
    tmp_path: Path, point: str, act: str, expected: dict[bytes, bytes]
) -> None:
    transaction = opened(tmp_path, 5_000)
    write_before(transaction)  # type: ignore[arg-type]
    transaction.base.close()
    dies(tmp_path, point, act, module=__name__)
    again = opened(tmp_path, 5_000)
    again.recover()
    version = b"2" if expected is AFTER else b"1"
    assert (expected, version) == (dict(again.scan("s")), again.base.get("checkpoint", b"version"))
    assert (expected is BEFORE) == (again.get("s.old", b"x") is not None)
    again.close()
    again.base.close()
