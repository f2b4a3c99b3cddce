"""Keys that a person types: their values, the bytes under which the engine keeps them, and what is no key."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.engine.statecodec import StateCodec
from pipelines.lookup import range_bound, same_key, stored_keys, typed_key
from pipelines.plan import Aggregate, Column, GroupKey, Output, Query, Source
from pipelines.query import decode_key
from statestore.errors import InvalidInput
from statestore.store import Isolation
from tests.support.given_reader import GivenReader

FORMATS = ("json", "delimited")


def grouped(form: str, *types: str, delimiter: str = ",") -> Query:
    """A query that counts rows by keys `K0`, `K1`, … of these types."""
    keys = tuple(GroupKey(f"K{at}", f"`K{at}`", type_) for at, type_ in enumerate(types))
    source = Source("S", "in", "json", tuple(Column(key.name, key.name, key.type) for key in keys))
    count = Aggregate("A0", "count_all", None, "bigint")
    return Query(
        "t", "", source, None, keys, (count,), None, (Output("N", "`A0`"),), form, "out", 1, 1, key_delimiter=delimiter
    )


@pytest.mark.parametrize(
    ("form", "types", "text", "expected"),
    [
        ("kafka", ["string"], "UA", ("UA",)),
        ("kafka", ["string"], '"UA"', ('"UA"',)),
        ("kafka", ["bigint"], "-5", (-5,)),
        ("kafka", ["double"], "1e3", (1000.0,)),
        ("json", ["string"], "UA", ("UA",)),
        ("json", ["string"], "123", ("123",)),
        ("json", ["string"], "true", ("true",)),
        ("json", ["string"], "null", ("null",)),
        ("json", ["string"], '"123"', ("123",)),
        ("json", ["string"], '["[1]"]', ("[1]",)),
        ("json", ["string"], "[1]", ("[1]",)),
        ("json", ["string"], '{"k0": "UA"}', ("UA",)),
        ("json", ["string"], '{"other": "UA"}', ('{"other": "UA"}',)),
        ("json", ["decimal(10,2)"], "1.10", (Decimal("1.10"),)),
        ("json", ["decimal(10,2)"], "1.1", (Decimal("1.10"),)),
        ("json", ["double"], "1", (1.0,)),
        ("json", ["boolean"], "true", (True,)),
        ("json", ["timestamp"], "1000", (1000,)),
        ("json", ["bytes"], "AP8=", (b"\x00\xff",)),
        ("json", ["array<int>"], "[1, 2]", ([1, 2],)),
        ("json", ["string", "int"], '["a", "7"]', ("a", 7)),
        ("json", ["string", "int"], '{"K1": 7, "k0": "a"}', ("a", 7)),
        ("delimited", ["string"], "_x", ("_x",)),
        ("delimited", ["int"], "-5", (-5,)),
    ],
)
def test_a_text_is_a_key_of_the_types_of_group_by(
    form: str, types: list[str], text: str, expected: tuple[Any, ...]
) -> None:
    found = typed_key(grouped(form, *types), text)
    assert expected == found
    assert list(map(type, expected)) == list(map(type, found))
    assert list(map(str, expected)) == list(map(str, found))


@pytest.mark.parametrize(
    ("form", "types", "text", "fragment"),
    [
        ("kafka", ["int"], "UA", "not of its type"),
        ("kafka", ["int"], "2147483648", "too large"),
        ("kafka", ["string"], "\udcff", "not of its type"),
        ("json", ["int"], "1.5", "no whole number"),
        ("json", ["boolean"], "1", "no BOOLEAN"),
        ("json", ["decimal(4,2)"], "1.001", "does not fit"),
        ("json", ["decimal(4,2)"], "9" * 60, "not of its type"),
        ("json", ["int"], "null", "no value"),
        ("json", ["string", "int"], "a", "give a JSON list of K0, K1"),
        ("json", ["string", "int"], '["a"]', "another number of parts"),
        ("json", ["string", "int"], '{"K0": "a"}', "no value"),
        ("json", ["string", "int"], "[1, 7]", "write it as a JSON string"),
    ],
)
def test_what_is_no_key_is_refused(form: str, types: list[str], text: str, fragment: str) -> None:
    with pytest.raises(InvalidInput, match=fragment):
        typed_key(grouped(form, *types), text)


PARTS = {
    "string": st.text(max_size=5) | st.text('a_-#, \n\r"\x1f\x0b\x85\u2028ü;5', max_size=4),
    "int": st.integers(-(2**31), 2**31 - 1),
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "boolean": st.booleans(),
    "decimal(6,2)": st.decimals("-9999.99", "9999.99", places=2),
    "date": st.integers(-(2**31), 2**31 - 1),
}


@given(
    st.data(), st.sampled_from(FORMATS), st.sampled_from(",;5- "), st.lists(st.sampled_from(sorted(PARTS)), min_size=1)
)
def test_the_bytes_of_a_key_are_read_as_its_values(
    data: st.DataObject, form: str, delimiter: str, types: list[str]
) -> None:
    query = grouped(form, *types, delimiter=delimiter)
    keys = [tuple(data.draw(PARTS[type_]) for type_ in types) for _ in range(2)]
    found = stored_keys(query, keys)
    assert found is not None
    assert keys == [tuple(decode_key(query, raw).values()) for raw in found]


def test_numbers_with_several_spellings_have_all_of_their_bytes_or_none() -> None:
    assert [bytes(8), b"\x80" + bytes(7)] == stored_keys(grouped("kafka", "double"), [(0.0,)])
    nan = [b"\x7f\xf8" + bytes(6)]
    assert (nan, nan) == tuple(stored_keys(grouped("kafka", "double"), [(n,)]) for n in (math.nan, -math.nan))
    for form in FORMATS:
        assert stored_keys(grouped(form, "string", "double"), [("a", 0.0)]) is None
    assert stored_keys(grouped("json", "array<int>"), [([1],)]) is None


def test_keys_of_one_group_are_the_same() -> None:
    assert same_key(("a", math.nan, 0.0), ("a", math.nan, -0.0))
    assert not same_key(("a", 1), ("a", 2))


def test_an_end_of_a_range_is_the_bytes_of_a_key() -> None:
    assert b'"-5"' == range_bound(grouped("delimited", "int"), "-5")
    with pytest.raises(InvalidInput, match="no useful order"):
        range_bound(grouped("json", "double"), "1.5")


# Of a key that was seen 7 times.
STATE = StateCodec([pa.int64()]).encode(pa.array([1]), [pa.array([7])])[0].as_py()


@pytest.mark.parametrize(
    ("form", "type_", "text", "stored", "scanned"),
    [
        ("json", "string", "123", b'"123"', False),
        ("json", "decimal(10,2)", "1.1", b"1.10", False),
        ("delimited", "int", "-5", b'"-5"', False),
        ("json", "double", "10000000000", b"1.0E10", True),
        ("json", "double", "NaN", b'"NaN"', True),
        ("json", "array<int>", "[1, 2]", b"[1,2]", True),
        ("kafka", "double", "0", b"\x80" + bytes(7), False),
    ],
)
def test_an_entry_is_found_by_its_keys_values(form: str, type_: str, text: str, stored: bytes, scanned: bool) -> None:
    query = grouped(form, type_)
    reader = GivenReader(query, {stored: STATE})
    assert [{"N": 7}] == [row.value for row in reader.find(typed_key(query, text), Isolation.READ_COMMITTED)]
    assert scanned == ("key" not in reader.asked[0])
