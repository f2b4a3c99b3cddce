"""The auditor's rules: they must be able to find something."""

from __future__ import annotations

from pipelines.consistent import View
from pipelines.query import Row
from statestore.partitioner import task_of
from tests.crash.matrix.auditor import TaskView, finding, fits
from tests.crash.matrix.workload import Balances, Book, Leg

TASKS = 2
HOMES = {account: task_of(account.to_bytes(8, "big"), TASKS) for account in range(50)}
HERE = next(account for account, task in HOMES.items() if task == 0)
THERE = next(account for account, task in HOMES.items() if task == 1)
# Two transfers in one partition, from a task to the other one; offsets 2 and 5 are the marks of transactions.
BOOK = Book([Leg(0, 0, HERE, -30), Leg(0, 1, THERE, 30), Leg(0, 3, HERE, -5), Leg(0, 4, THERE, 5)])
POSITIONS = [{}, {0: 3}, {0: 6}]


def view(end: int, *accounts: tuple[int, int, int]) -> View:
    return View(
        7, tuple(Row({"ACCOUNT": n}, {"N": legs, "BALANCE": money}, 0) for n, legs, money in accounts), {0: end}
    )


def at(task: int, found: Balances) -> bool:
    return fits(TaskView(task, found), POSITIONS, BOOK, TASKS)


def test_whole_transfers_add_up() -> None:
    assert finding(view(0), BOOK) is None
    assert finding(view(3, (HERE, 1, -30), (THERE, 1, 30)), BOOK) is None
    assert finding(view(6, (HERE, 2, -35), (THERE, 2, 35)), BOOK) is None


def test_a_batch_cut_between_the_legs_is_no_finding() -> None:
    assert finding(view(4, (HERE, 2, -35), (THERE, 1, 30)), BOOK) is None


def test_a_missing_leg_a_doubled_leg_and_money_from_nowhere_are_found() -> None:
    assert finding(view(3, (HERE, 1, -30)), BOOK) is not None
    assert finding(view(3, (HERE, 1, -30), (THERE, 2, 60)), BOOK) is not None
    assert finding(view(3, (HERE, 1, -30), (THERE, 1, 31)), BOOK) is not None
    # These add up, and are not what the position says.
    assert finding(view(3, (HERE, 2, -60), (THERE, 2, 60)), BOOK) is not None


def test_a_task_is_the_model_at_one_of_its_positions_while_the_other_is_at_another() -> None:
    assert at(0, {}) and at(1, {})
    assert at(0, {HERE: (1, -30)}) and at(1, {THERE: (2, 35)})


def test_a_task_at_no_position_of_it_is_found() -> None:
    # A leg lost, one doubled, another task's account, a leg of no whole batch, and one that is not committed.
    assert not at(0, {HERE: (1, -5)})
    assert not at(0, {HERE: (3, -65)})
    assert not at(0, {HERE: (1, -30), THERE: (1, 30)})
    assert not fits(TaskView(1, {THERE: (1, 30)}), [{}, {0: 6}], BOOK, TASKS)
    assert not fits(TaskView(0, {HERE: (2, -35)}), [{}, {0: 3}], BOOK, TASKS)
