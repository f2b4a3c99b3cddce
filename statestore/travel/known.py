"""What is known of the batches that one task has committed: where its store stood after each, and which came next.

Two sources, both of chains in which no batch is left out: the steps in manifests, and the positions that compaction has
left in the batches topic, where it is certain that nothing was committed between two of them (`BatchesLog.positions`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from statestore.batches import Order, Recorded
from statestore.snapshots.manifest import Step

# The version before the first batch: an empty store, which stands at the changelog's beginning.
BEGIN = -1


class Known:
    """The committed batches of one task, as far as they are known. `newest` is the last committed one, -1 for none."""

    def __init__(self, newest: int) -> None:
        self.newest = newest
        self.steps: dict[int, Step] = {}
        self._next: dict[int, int] = {}

    def add(self, chain: Sequence[Step]) -> None:
        """Steps one after another, none left out. Of two times of one batch the earlier is nearer to its commit.

        An order that one of two steps has was recorded, whatever the other one is from.
        """
        for step in chain:
            known = self.steps.get(step.batch, step)
            nearer, other = (step, known) if step.at_ms < known.at_ms else (known, step)
            self.steps[step.batch] = replace(nearer, order=other.order) if nearer.order is None else nearer
        for before, after in pairwise(chain):
            self._next[before.batch] = after.batch

    def at(self, batch: int) -> Step | None:
        """The step whose version the task had at a batch, which need not be one of its own; None if not certain."""
        before = max((b for b in self.steps if b <= batch), default=None)
        if before is None:
            return None
        is_last_before = before == batch or before == self.newest or self._next.get(before, batch) > batch
        return self.steps[before] if is_last_before else None

    def last_certain(self, batch: int) -> int:
        """Up to which batch the task's version is that of its step `batch`, as far as is known."""
        if batch == self.newest:
            return 1 << 62
        return self._next[batch] - 1 if batch in self._next else batch

    def chain(self, first: int, last: int) -> list[Step] | None:
        """All steps from one batch to another, both included; None if one may be missing."""
        if first not in self.steps:
            return None
        found = [self.steps[first]]
        while found[-1].batch < last:
            after = self._next.get(found[-1].batch)
            if after is None:
                return None
            found.append(self.steps[after])
        return found if found[-1].batch == last else None

    def after(self, batch: int) -> list[Step]:
        """The steps that follow one another after a batch, as far as they are known."""
        found = []
        while (following := self._next.get(batch)) is not None:
            found.append(self.steps[following])
            batch = following
        return found


def known_of(recorded: Sequence[Recorded], store: str, chains: Iterable[Sequence[Step]]) -> Known:
    """From the batches topic and from manifests. `store` names the one whose beginning is known without a record."""
    known = Known(recorded[-1].position.batch if recorded else BEGIN)
    if not recorded:
        known.add([_beginning(store)])
    for chain in (*_chains(recorded, store), *chains):
        known.add(chain)
    return known


def _chains(recorded: Sequence[Recorded], store: str) -> Iterable[list[Step]]:
    chain: list[Step] = []
    for number, one in enumerate(recorded):
        if number == 0 and one.follows:
            chain = [_beginning(store)]
        elif not one.follows:
            yield chain
            chain = []
        chain.append(_step(one))
    yield chain


def _beginning(store: str) -> Step:
    return Step(BEGIN, {store: 0}, 0, order=Order())


def _step(one: Recorded) -> Step:
    offsets = {name: at.offset for name, at in one.position.stores.items()}
    return Step(one.position.batch, offsets, one.at_ms, one.position.ends, one.position.order)
