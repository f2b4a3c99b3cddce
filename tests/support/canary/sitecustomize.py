"""Bugs on purpose, to show that the crash tests would find them.

Put on PYTHONPATH, this is imported at the start of every Python process; with ROLLFORWARD_CANARY set it breaks the
commit of a store server in the named way, or the decoder of a driver and of its workers. The shipped code has no hook
for it.
"""

from __future__ import annotations

import os
import sys

_CANARY = os.environ.get("ROLLFORWARD_CANARY")


def _position_outside_of_the_transaction() -> None:
    """The position is committed by a transaction of its own before the batch's records are."""
    from statestore.batches import POSITION, Position, encode
    from statestore.failpoints import reach
    from statestore.kafka.producer import TransactionalProducer
    from statestore.task import Task

    original = Task._transaction

    def transaction(self, staged, plan, ends):  # type: ignore[no-untyped-def]
        other = TransactionalProducer(self._kafka, f"{self.spec.transactional_id}-canary")
        other.init()
        other.begin()
        stores = self._position.stores if self._position else {}
        if stores:
            value = encode(Position(staged.batch, self.epoch, plan, stores))
            other.produce(self.spec.batches_topic, key=POSITION, value=value, partition=self.spec.number)
        other.flush()
        other.commit()
        reach("commit.before-begin")
        return original(self, staged, plan, ends)

    Task._transaction = transaction  # type: ignore[method-assign]


def _uncommitted_batch_applied() -> None:
    """The batch goes into the store's files when it is staged, not when it is committed."""
    from statestore.task import Task
    from statestore.version import Checkpoint

    original = Task.close_stage

    def close_stage(self, staged):  # type: ignore[no-untyped-def]
        checkpoint = self._database.checkpoint() or Checkpoint(-1)
        space, entries = self._database.entries(checkpoint)
        changes = zip(staged.keys, staged.states, strict=True)
        self._database.database.write({self.spec.store.name: changes, space: entries})
        original(self, staged)

    Task.close_stage = close_stage  # type: ignore[method-assign]


def _part_of_a_task_committed() -> None:
    """A task commits as soon as its rows end, without waiting for the whole job."""
    from statestore.task import Task

    original = Task.close_stage

    def close_stage(self, staged):  # type: ignore[no-untyped-def]
        original(self, staged)
        self.commit(batch=staged.batch, attempt=staged.attempt, plan="canary")

    Task.close_stage = close_stage  # type: ignore[method-assign]


def _decoder_fails_of_poison() -> None:
    """The decoder raises for every block with a value that has this word in it."""
    import pyarrow.compute as pc

    from pipelines.engine.blockvalues import BlockValues

    original = BlockValues.decode

    def decode(self, values):  # type: ignore[no-untyped-def]
        if pc.any(pc.match_substring(values, "poison")).as_py():
            raise ValueError("poison")
        return original(self, values)

    BlockValues.decode = decode  # type: ignore[method-assign]


_DECODERS = ("decoder_fails_of_poison",)
if _CANARY and ("statestore.server" in sys.orig_argv) != (_CANARY in _DECODERS):
    globals()[f"_{_CANARY}"]()
