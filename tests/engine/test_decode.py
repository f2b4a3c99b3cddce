"""Decoding: every record becomes its row or its reason, whatever its neighbours are."""

from __future__ import annotations

import json
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.engine.decode import decoder
from pipelines.engine.records import record_batch
from pipelines.plan import Column, Source

SOURCE = Source(
    "S",
    "s",
    "json",
    (
        Column("ID", "id", "bigint", key=True),
        Column("A", "a", "bigint"),
        Column("NAME", "theName", "string"),
        Column("X", "x", "double"),
        Column("OK", "ok", "boolean"),
    ),
)


def records(values: list[bytes | None], keys: list[bytes | None] | None = None) -> pa.RecordBatch:
    count = len(values)
    return record_batch(
        pa.array(keys or [None] * count, pa.binary()),
        pa.array(values, pa.binary()),
        partitions=pa.array([3] * count, pa.int32()),
        offsets=pa.array(range(count), pa.int64()),
        times=pa.array([5] * count, pa.int64()),
    )


def decode(
    values: list[bytes | None], keys: list[bytes | None] | None = None, raw_if_null: tuple[str, ...] | None = ()
) -> list[dict]:
    counted: list[tuple[int, ...]] = []
    (rows,) = decoder(SOURCE, raw_if_null, lambda *counts: counted.append(counts))([records(values, keys)])
    found = rows.to_pylist()
    assert [(len(values), sum(row["__error"] is not None for row in found))] == [counts[:2] for counts in counted]
    return found


def test_fields_become_columns_and_missing_ones_null() -> None:
    (row,) = decode([b'{"a":1,"theName":"n","x":1.5,"ok":true,"other":[1]}'])
    assert (1, "n", 1.5, True, 5, None) == (row["A"], row["NAME"], row["X"], row["OK"], row["ROWTIME"], row["__error"])
    (row,) = decode([b"{}"])
    assert (None, None, None, None) == (row["A"], row["NAME"], row["X"], row["OK"])


@pytest.mark.parametrize("name", ["theName", "thename", "THENAME"])
def test_a_field_is_found_as_written_in_lower_and_in_upper_case(name: str) -> None:
    rows = decode([json.dumps({name: "n"}).encode(), b'{"theName":"other"}'])
    assert ["n", "other"] == [row["NAME"] for row in rows]


BAD = [
    None,
    b"",
    b"  ",
    b"nonsense",
    b"[1]",
    b"1",
    b'"text"',
    b"\xff\xfe",
    b'{"a":"text"}',
    b'{"a":1.5}',
    b'{"a":1}{"a":2}',
    b'{"a":1} {"a":2}',
    b'{"a":{}',
    b'{"a":1',
    b'{"theName":"open',
    b'"a":1}}',
    b'{"a":1,"a":2}',
    b'{"a":99999999999999999999}',
]


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_record_is_told_from_its_neighbours(bad: bytes | None) -> None:
    rows = decode([b'{"a":1}', bad, b'{"a":3}'])
    assert [1, None, 3] == [row["A"] for row in rows]
    assert [False, True, False] == [row["__error"] is not None for row in rows]
    assert {"topic": "s", "partition": 3, "offset": 1, "timestamp_ms": 5, "key": None, "value": bad} == rows[1]["__raw"]
    assert rows[0]["__raw"] is None


@pytest.mark.parametrize("text", [b'{"a":\n1}', b' {"a":1}\n', b'{\r\n"a":1\r\n}', b'{"a":1}\t'])
def test_white_space_of_json_is_allowed(text: bytes) -> None:
    rows = decode([text, b'{"a":2}'])
    assert [(1, None), (2, None)] == [(row["A"], row["__error"]) for row in rows]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(st.integers(-(2**40), 2**40), st.sampled_from(BAD)), max_size=40))
def test_any_mixture_decodes_record_by_record(mixture: list) -> None:
    values = [b'{"a":%d}' % item if isinstance(item, int) else item for item in mixture]
    if not values:
        return
    rows = decode(values)
    expected = [(item, False) if isinstance(item, int) else (None, True) for item in mixture]
    assert expected == [(row["A"], row["__error"] is not None) for row in rows]


def test_key_columns_are_big_endian_and_wrong_ones_are_errors() -> None:
    keys = [(7).to_bytes(8, "big"), None, b"abc", (-1).to_bytes(8, "big", signed=True)]
    rows = decode([b"{}"] * 4, keys)
    assert [7, None, None, -1] == [row["ID"] for row in rows]
    assert [False, False, True, False] == [row["__error"] is not None for row in rows]


def test_raw_is_kept_where_a_group_key_may_be_null() -> None:
    rows = decode([b'{"a":1}', b'{"x":1}'], raw_if_null=("A",))
    assert [False, True] == [row["__raw"] is not None for row in rows]
    assert all(row["__raw"] is not None for row in decode([b'{"a":1}'], raw_if_null=None))


MONEY = Source(
    "M",
    "m",
    "json",
    (
        Column("PRICE", "price", "decimal(12,2)"),
        Column("N", "n", "int"),
        Column("X", "x", "double"),
        Column("OK", "ok", "boolean"),
        Column("T", "t", "string"),
    ),
)


def money(values: list[bytes]) -> list[dict]:
    (rows,) = decoder(MONEY, (), lambda *_: None)([records(list(values))])
    return rows.to_pylist()


@pytest.mark.parametrize("price", ["12.34", "12", "-0.1", '"12.34"', "9999999999.99", "1e3"])
def test_decimals_keep_every_digit(price: str) -> None:
    (row,) = money([b'{"price":%s,"n":1,"x":2,"ok":true,"t":"a"}' % price.encode()])
    assert row["__error"] is None
    assert Decimal(price.strip('"')) == row["PRICE"]
    assert (1, 2.0, True, "a") == (row["N"], row["X"], row["OK"], row["T"])


@pytest.mark.parametrize(
    "bad",
    [
        b'{"price":1.234}',
        b'{"price":99999999999}',
        b'{"price":true}',
        b'{"price":"x"}',
        b'{"price":NaN}',
        b'{"price":1,"n":1.5}',
        b'{"price":1,"n":99999999999}',
        b'{"price":1,"n":true}',
        b'{"price":1,"t":1}',
        b'{"price":1,"ok":1}',
        b'{"price":1,"price":2}',
        b'{"price":1}{"price":2}',
    ],
)
def test_records_that_do_not_fit_beside_decimals_are_errors(bad: bytes) -> None:
    rows = money([b'{"price":1.5}', bad, b'{"price":2.5}'])
    assert [Decimal("1.50"), None, Decimal("2.50")] == [row["PRICE"] for row in rows]
    assert [False, True, False] == [row["__error"] is not None for row in rows]


def test_a_refused_record_is_bad_for_its_reason_and_hidden_from_every_expression() -> None:
    values = [b'{"a":1}', b'{"a":2}', b'{"a":3}']
    decoded = decoder(SOURCE, (), lambda *_: None, {(3, 1): "division by zero", (0, 2): "of another partition"})
    (rows,) = decoded([records(values, [b"\0" * 8] * 3)])
    first, refused, third = rows.to_pylist()
    assert (1, None, 3, None) == (first["A"], first["__error"], third["A"], third["__error"])
    assert (None, None, "division by zero") == (refused["A"], refused["ID"], refused["__error"])
    assert (1, b'{"a":2}', b"\0" * 8) == (
        refused["__raw"]["offset"],
        refused["__raw"]["value"],
        refused["__raw"]["key"],
    )


def test_a_value_nested_too_deeply_is_bad_and_no_more() -> None:
    deep = b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    (rows,) = decoder(MONEY, (), lambda *_: None)([records([deep, b"{}"])])
    assert [True, False] == [row["__error"] is not None for row in rows.to_pylist()]
