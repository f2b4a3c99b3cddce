"""The batches that a task remembers until a snapshot has them."""

from __future__ import annotations

import json
import tracemalloc

import pytest

from statestore.batches import Order, Position
from statestore.snapshots import copy
from statestore.snapshots.copy import Steps
from statestore.snapshots.manifest import Step
from statestore.version import ChangelogPosition, Checkpoint


def position(batch: int, *, order: Order | None = None) -> Position:
    # Its texts are its own: those of a record of the batches topic are read anew each time.
    ends = json.loads(json.dumps({str(partition): batch * 1000 for partition in range(4)}))
    return Position(batch, 1, "plan", {f"s{batch}"[:1]: ChangelogPosition("topic", batch * 10)}, ends, order)


def added(*batches: int) -> Steps:
    steps = Steps()
    for batch in batches:
        steps.add(position(batch))
    return steps


def batches(steps: Steps) -> list[int]:
    return [step.batch for step in steps.since_last()]


def test_a_step_is_found_as_it_was_added() -> None:
    steps = Steps()
    steps.begin(position(3), Checkpoint(3, {}, plan="plan", tasks=4, written_at_ms=77))
    steps.add(position(4, order=Order(5, 1)))
    first, second = steps.since_last()
    assert Step(3, {"s": 30}, 77, {str(partition): 3000 for partition in range(4)}) == first
    assert Step(4, {"s": 40}, second.at_ms, {str(partition): 4000 for partition in range(4)}, Order(5, 1)) == second


def test_what_a_snapshot_has_is_forgotten_but_for_the_step_that_the_next_ones_begin_with() -> None:
    steps = added(1, 2, 3, 4)
    steps.forget(3)
    assert [3, 4] == batches(steps)
    steps.forget(9)
    assert [4] == batches(steps)


def test_a_task_that_was_opened_elsewhere_meanwhile_begins_anew() -> None:
    steps = added(1, 2)
    steps.begin(position(2), Checkpoint(2, {}, plan="plan", tasks=4))
    assert [1, 2] == batches(steps)
    steps.begin(position(5), Checkpoint(5, {}, plan="plan", tasks=4))
    assert [5] == batches(steps)
    steps.begin(None, None)
    assert [] == batches(steps)


def test_the_oldest_are_dropped_where_no_snapshot_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    # A step has a number for the changelog, and one for each of four partitions.
    monkeypatch.setattr(copy, "_NUMBERS_MAX", 3 * 5)
    steps = added(1, 2, 3, 4, 5)
    assert [3, 4, 5] == batches(steps)
    steps.forget(4)
    steps.add(position(6))
    assert [4, 5, 6] == batches(steps)


def test_a_step_takes_little_memory() -> None:
    """At a batch a second thousands of them wait for the next snapshot. As objects each took 1.2 KB."""
    steps, many = Steps(), 1000
    tracemalloc.start()
    try:
        for batch in range(many):
            steps.add(position(1_000_000 + batch))
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert many == len(batches(steps))
    assert used / many < 400
