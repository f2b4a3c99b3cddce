"""A transaction that begins in memory and goes on on disk loses no write, however it ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from statestore.config import RocksConfig
from statestore.rocks.database import Database
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
