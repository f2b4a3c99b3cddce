"""Random lives of a store: writes, reads at both isolations, commits, deaths at every point; each equals its model.

The run prints its seed; ROLLFORWARD_SEED replays it, ROLLFORWARD_SEED=random takes a new one. A failure is shown as it
was found, and as the smallest such life with ROLLFORWARD_SHRINK=1.
"""

from __future__ import annotations

import os
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, consumes, precondition, rule, run_state_machine_as_test

from statestore.context import ChangelogRecord
from statestore.kinds.key_value import KeyValue
from statestore.store import Isolation
from tests.statestore.conftest import SETUPS, Setup
from tests.statestore.historical_machines import SessionMachine, VersionedMachine, WindowMachine
from tests.statestore.machine import SHORT_KEYS, Bounds, StoreMachine, bounds, short_keys, values

# AUTO keeps a few writes in memory and spills on more.
BYTES_MAX = 1000
Model = dict[bytes, bytes]


class KeyValueMachine(StoreMachine):
    """Puts, deletions, range deletions; reads by key, by range, in both directions; scans held over commits."""

    store: KeyValue
    scans = Bundle("scans")

    def made(self) -> KeyValue:
        return KeyValue("s", **self.setup.options)

    def nothing(self) -> Model:
        return {}

    def expected(self, model: Model) -> list[Any]:
        return [*sorted(model.items()), *(model.get(key) for key in SHORT_KEYS)]

    def found(self, isolation: Isolation) -> list[Any]:
        return [*self.store.all(isolation), *(self.store.get(key, isolation) for key in SHORT_KEYS)]

    def _after(self, model: Model, key: bytes, value: bytes | None) -> Model:
        rest = {known: kept for known, kept in model.items() if known != key}
        return rest if value is None else {**rest, key: value}

    operations = st.one_of(
        st.tuples(st.just("put"), short_keys, values),
        st.tuples(st.just("put_all"), st.lists(st.tuples(short_keys, values), min_size=1, max_size=8)),
        st.tuples(st.just("delete"), short_keys),
        st.tuples(st.just("delete_range"), bounds),
    )

    def put(self, key: bytes, value: bytes | None) -> None:
        self.next_input()
        self.store.put(key, value)
        self.wrote([self._after(self.models[-1], key, value)])

    def delete(self, key: bytes) -> None:
        self.next_input()
        assert self.models[-1].get(key) == self.store.delete(key)
        self.wrote([self._after(self.models[-1], key, None)])

    def put_all(self, entries: list[tuple[bytes, bytes | None]]) -> None:
        self.next_input()
        self.store.put_all(entries)
        models = [self.models[-1]]
        for key, value in entries:
            models.append(self._after(models[-1], key, value))
        self.wrote(models[1:])

    def delete_range(self, bounds: Bounds) -> None:
        """The changelog has no deletion by range: it gets a tombstone for every key."""
        lower, upper = bounds
        self.store.transaction.delete_range("s", lower, upper)
        models = [self.models[-1]]
        for key in sorted(self.models[-1]):
            if (lower is None or lower <= key) and (upper is None or key <= upper):
                self.logged.append(ChangelogRecord("s", key, None, 0))
                models.append(self._after(models[-1], key, None))
        self.wrote(models[1:], taken=False)

    @rule(
        keys=st.lists(short_keys, max_size=5),
        bounds=bounds,
        inclusive=st.booleans(),
        reverse=st.booleans(),
        isolation=st.sampled_from(Isolation),
    )
    def read(self, keys: list[bytes], bounds: Bounds, inclusive: bool, reverse: bool, isolation: Isolation) -> None:
        model = self.models[self.visible(isolation)]
        assert [model.get(key) for key in keys] == self.store.transaction.get_many("s", keys, isolation)
        assert [model.get(key) for key in keys] == [self.store.get(key, isolation) for key in keys]
        lower, upper = bounds
        expected = [
            (key, value)
            for key, value in sorted(model.items(), reverse=reverse)
            if (lower is None or lower <= key) and (upper is None or key < upper or (inclusive and key == upper))
        ]
        chosen = self.store.scan(
            lower=lower, upper=upper, upper_inclusive=inclusive, reverse=reverse, isolation=isolation
        )
        assert expected == list(chosen)

    @precondition(lambda self: self.transactional or self.setup.persistent)
    @rule(target=scans, isolation=st.sampled_from(Isolation))
    def begin_scan(self, isolation: Isolation) -> Any:
        return self.store, self.store.all(isolation), sorted(self.models[self.visible(isolation)].items())

    @rule(scan=consumes(scans))
    def finish_scan(self, scan: Any) -> None:
        """A scan shows what was there when it began, if its store is still open."""
        store, entries, expected = scan
        if store is self.store:
            assert expected == list(entries)


MACHINES: list[type[StoreMachine]] = [KeyValueMachine, WindowMachine, SessionMachine, VersionedMachine]


def chosen_seed() -> int:
    """From ROLLFORWARD_SEED; printed, so that a failure can be replayed."""
    given = os.environ.get("ROLLFORWARD_SEED", "20261121")
    number = random.randrange(2**32) if given == "random" else int(given)
    print(f"seed {number}; replay with ROLLFORWARD_SEED={number}")
    return number


def live(machine: type[StoreMachine], setup: Setup, *, lives: int, length: int) -> int:
    """Run a machine so many times, for about so many steps each; returns how many steps there were."""
    under_test = type(machine.__name__, (machine,), {"setup": replace(setup, uncommitted_bytes_max=BYTES_MAX)})
    before = StoreMachine.steps
    run_state_machine_as_test(
        seed(chosen_seed())(under_test),
        settings=settings(
            max_examples=lives,
            stateful_step_count=length,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            # Shrinking takes many minutes, for every step may open a database: ask for it when there is something to
            # shrink.
            phases=(Phase.generate, Phase.shrink) if os.environ.get("ROLLFORWARD_SHRINK") else (Phase.generate,),
        ),
    )
    return StoreMachine.steps - before


@pytest.mark.parametrize("setup", SETUPS, ids=str)
@pytest.mark.parametrize("machine", MACHINES)
def test_every_life_of_a_store_equals_its_model(machine: type[StoreMachine], setup: Setup) -> None:
    live(machine, setup, lives=6, length=30)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ten_thousand_steps_equal_the_model() -> None:
    steps = sum(live(machine, setup, lives=15, length=50) for machine in MACHINES for setup in SETUPS)
    print(f"{steps} steps")
    assert steps >= 10_000
