"""Every aggregate has parts that merge to the same result, however the input is cut into batches."""

from __future__ import annotations

import pytest

from pipelines.engine.merge import state_parts
from pipelines.plan import Aggregate
from statestore.errors import InvalidConfig


@pytest.mark.parametrize(
    ("function", "parts"),
    [
        ("count_all", [("A0", "bigint", "count(1)")]),
        ("count", [("A0", "bigint", "count(`X`)")]),
        ("sum", [("A0", "bigint", "sum(`X`)")]),
        ("min", [("A0", "bigint", "min(`X`)")]),
        ("max", [("A0", "bigint", "max(`X`)")]),
        ("avg", [("A0_sum", "bigint", "sum(`X`)"), ("A0_count", "bigint", "count(`X`)")]),
    ],
)
def test_parts_of_an_aggregate(function: str, parts: list[tuple[str, str, str]]) -> None:
    aggregate = Aggregate("A0", function, None if function == "count_all" else "`X`", "bigint")
    assert parts == [(part.name, part.type, part.partial) for part in state_parts(aggregate)]


def test_an_unknown_aggregate_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="unknown aggregate"):
        state_parts(Aggregate("A0", "median", "`X`", "bigint"))
