"""The state machine finds what it is there to find: each transaction broken on purpose is caught."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from statestore.commitfile import CommitFile
from statestore.errors import RollforwardError
from statestore.failpoints import reach
from statestore.overlay import Overlay
from statestore.ranges import Ranges
from statestore.spaces.base import Changes
from statestore.store import Isolation, TransactionalMechanism
from statestore.transactions.auto import AutoTransaction
from statestore.transactions.indexed_batch import IndexedBatchTransaction
from statestore.transactions.secondary_store import SecondaryStoreTransaction
from tests.statestore.conftest import Setup
from tests.statestore.test_state_machine import KeyValueMachine, live

INDEXED = TransactionalMechanism.INDEXED_BATCH
SECONDARY = TransactionalMechanism.SECONDARY_STORE
AUTO = TransactionalMechanism.AUTO


def offset_goes_in_before_the_data(patch: pytest.MonkeyPatch) -> None:
    whole = IndexedBatchTransaction.commit

    def torn(self: IndexedBatchTransaction, space: str, metadata: Changes) -> None:
        self.base.write({space: metadata})
        reach("indexed.written")
        whole(self, space, metadata)

    patch.setattr(IndexedBatchTransaction, "commit", torn)


def rollback_forgets_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(IndexedBatchTransaction, "rollback", lambda self: None)


def committed_reads_see_the_overlay(patch: pytest.MonkeyPatch) -> None:
    honest = IndexedBatchTransaction._find
    patch.setattr(
        IndexedBatchTransaction,
        "_find",
        lambda self, space, key, isolation: honest(self, space, key, Isolation.READ_UNCOMMITTED),
    )


def nothing_is_deleted_by_range_at_commit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Overlay, "deleted", Ranges())


def spilling_loses_what_memory_held(patch: pytest.MonkeyPatch) -> None:
    def lossy(self: AutoTransaction) -> None:
        self._active = self._large
        self._small = IndexedBatchTransaction(self.store, self.base)

    patch.setattr(AutoTransaction, "_spill", lossy)


def no_commit_file_is_written(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CommitFile, "write", lambda self, metadata: None)


def the_next_transaction_begins_with_the_last_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SecondaryStoreTransaction, "_empty", lambda self: None)


CANARIES: list[tuple[Callable[[pytest.MonkeyPatch], None], TransactionalMechanism]] = [
    (offset_goes_in_before_the_data, INDEXED),
    (rollback_forgets_nothing, INDEXED),
    (committed_reads_see_the_overlay, INDEXED),
    (nothing_is_deleted_by_range_at_commit, INDEXED),
    (spilling_loses_what_memory_held, AUTO),
    (no_commit_file_is_written, SECONDARY),
    (the_next_transaction_begins_with_the_last_one, SECONDARY),
]


@pytest.mark.parametrize(("broken", "mechanism"), CANARIES, ids=lambda value: getattr(value, "__name__", ""))
def test_a_broken_transaction_is_caught(
    broken: Callable[[pytest.MonkeyPatch], None], mechanism: TransactionalMechanism, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    with pytest.raises((AssertionError, RollforwardError)):
        live(KeyValueMachine, Setup(mechanism), lives=60, length=40)
