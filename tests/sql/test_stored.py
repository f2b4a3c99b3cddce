"""The value of an aggregate from its stored parts. That it is what the result topic says is in `test_spark.py`."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pytest

from pipelines.jsonvalue import dump
from pipelines.plan import Aggregate
from pipelines.stored import value_of
from statestore.errors import InvalidConfig


@pytest.mark.parametrize(
    ("function", "type_", "parts", "expected"),
    [
        ("attr", "int", ['{"5":2}'], 5),
        ("attr", "int", ['{"5":2,"null":1}'], None),
        ("attr", "int", ['{"null":1}'], None),
        ("attr", "string", ['{"\\"a\\"":2}'], "a"),
        ("collect_map", "map<string,int>", ['{"a":"1","b":"null"}'], {"a": 1, "b": None}),
        ("collect_list", "decimal(38,2)", ['["12345678901234567890.12","null"]'], [Decimal("12345678901234567890.12"), None]),
        ("topk", "double", ['["\\"Infinity\\"","1.0E10","0.1"]'], [math.inf, 1e10, 0.1]),
        ("latest_n", "bytes", ['["\\"AP8=\\""]'], [b"\x00\xff"]),
        ("collect_set", "map<string,int>", ['["{\\"a\\":1}"]'], [{"a": 1}]),
        ("latest_by_offset", "map<string,array<map<string,int>>>", [[("a", [[("b", 1)]])]], {"a": [{"b": 1}]}),
        ("histogram", "string", ['{"a":2}'], {"a": 2}),
        ("count_distinct", "int", ['["1","2"]'], 2),
        ("count_distinct", "int", [None], 0),
        ("collect_list", "int", [None], None),
        ("sum", "bigint", [None], 0),
        ("sum", "double", [None], 0.0),
        ("sum", "decimal(12,2)", [None], Decimal("0.00")),
        ("avg", "bigint", [None, 0], 0.0),
        # Spark adds exactly, and rounds to a double before it divides.
        ("avg", "bigint", [2**62 + 2**9 + 1, 3], float(2**62 + 2**9 + 1) / 3),
        ("stddev_sample", "double", [6.0, 3, 2.0], 1.0),
        ("stddev_samp", "double", [6.0, 3, 2.0], 1.0),
        ("stddev_sample", "double", [6.0, 1, 0.0], 0.0),
    ],
)  # fmt: skip
def test_a_value_is_made_of_its_parts(function: str, type_: str, parts: list[Any], expected: Any) -> None:
    found = value_of(Aggregate("A0", function, "`X`", type_))(*parts)
    assert (expected, type(expected), dump(expected)) == (found, type(found), dump(found))


def test_rounding_that_leaves_less_than_nothing_has_no_deviation() -> None:
    assert math.isnan(value_of(Aggregate("A0", "stddev_sample", "`X`", "double"))(0.0, 2, -1e-20))


def test_an_unknown_aggregate_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="unknown aggregate"):
        value_of(Aggregate("A0", "median", "`X`", "bigint"))
