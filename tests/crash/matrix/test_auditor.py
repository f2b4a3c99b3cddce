"""The auditor's rule: it must be able to find something."""

from __future__ import annotations

from pipelines.consistent import View
from pipelines.query import Row
from tests.crash.matrix.auditor import finding


def view(*balances: tuple[int, int]) -> View:
    rows = (Row({"ACCOUNT": n}, {"N": legs, "BALANCE": money}, 0) for n, (legs, money) in enumerate(balances))
    return View(7, tuple(rows))


def test_whole_transfers_add_up() -> None:
    assert finding(view()) is None
    assert finding(view((2, -30), (1, 10), (1, 20))) is None


def test_a_missing_leg_a_doubled_leg_and_money_from_nowhere_are_found() -> None:
    assert finding(view((1, -30))) is not None
    assert finding(view((1, -30), (2, 60))) is not None
    assert (
        finding(
            view(
                (1, 0),
            )
        )
        is not None
    )
