"""Every aggregate has parts that merge to the same result, however the input is cut into batches."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pyarrow as pa
import pytest

from pipelines.engine.arrowtypes import arrow_type
from pipelines.engine.exchange import ArrowFunction
from pipelines.engine.merge import MergeSql, state_parts
from pipelines.plan import Aggregate
from statestore.errors import InvalidConfig
from tests.engine.test_record_order import QUERY


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


@pytest.mark.parametrize(
    ("kind", "halves"),
    [
        ("decimal(37,18)", ["sum(`X`)"]),
        (
            "decimal(38,18)",
            [
                "sum(CAST(`X` AS DECIMAL(38, 18)) % CAST('100' AS DECIMAL(3, 0)))",
                "sum(CAST(CAST(`X` AS DECIMAL(38, 18)) div CAST('100' AS DECIMAL(3, 0)) AS DECIMAL(18, 0)))",
            ],
        ),
    ],
)
def test_a_sum_of_all_38_digits_is_added_up_in_halves(kind: str, halves: list[str]) -> None:
    (part,) = state_parts(Aggregate("A0", "sum", "`X`", kind))
    assert (kind, halves) == (part.type, [half for half in (part.partial, part.upper) if half])


def test_of_other_sums_read_does_nothing_more() -> None:
    sql = MergeSql(replace(QUERY, aggregates=(Aggregate("A0", "sum", "`X`", "bigint"),)))
    read: ArrowFunction = iter
    assert sql.adding(read) is read


@pytest.mark.parametrize("kind", ["decimal(37,18)", "decimal(38,18)"])
def test_read_adds_decimals_to_the_last_digit(kind: str) -> None:
    sql = MergeSql(replace(QUERY, aggregates=(Aggregate("A0", "sum", "`X`", kind),)))
    few, type_ = Decimal("4e-18"), arrow_type(kind)
    rows = {"__s_A0": pa.array([few, None, few, None], type_), "__p_A0": pa.array([few, few, None, None], type_)}
    if kind == "decimal(38,18)":
        rows["__u_A0"] = pa.array([1, 1, None, None], pa.int64()).cast(pa.decimal128(28, 0))
    more = 100 * ("__u_A0" in rows)
    (found,) = sql.adding(iter)([pa.RecordBatch.from_pydict(rows)])
    assert [more + 2 * few, more + few, few, None] == found.column("__p_A0").to_pylist()
    assert [few, None, few, None] == found.column("__s_A0").to_pylist()


def test_an_unknown_aggregate_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="unknown aggregate"):
        state_parts(Aggregate("A0", "median", "`X`", "bigint"))
