"""A KEY column read at once is what its keys are one by one; where they might not be, it is none."""

from __future__ import annotations

import csv
import json
import struct

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.engine.arrowtypes import arrow_type
from pipelines.engine.keycolumns import key_column
from pipelines.engine.values import key_reader
from pipelines.plan import Column, Source

TYPES = ("string", "int", "bigint", "double", "bytes", "boolean")
GOOD = {
    "string": st.text(max_size=4).map(str.encode),
    "int": st.integers(-(2**31), 2**31 - 1).map(lambda number: struct.pack(">i", number)),
    "bigint": st.integers(-(2**63), 2**63 - 1).map(lambda number: struct.pack(">q", number)),
    "double": st.floats(allow_nan=False).map(lambda number: struct.pack(">d", number)),
    "bytes": st.binary(max_size=9),
    "boolean": st.just(b"true"),
}
NUMBERS = st.one_of(st.integers(-12, 12), st.integers(-(2**70), 2**70), st.sampled_from([2**31, -(2**31), 2**63]))
JSON = st.one_of(
    st.text(max_size=3), NUMBERS, st.none(), st.booleans(), st.floats(allow_nan=False, allow_infinity=False)
)
ODD = st.sampled_from(
    [b"", b'"', b'""', b"-0", b"007", b'" "', b' "a"', b'"a"\n', b"\xff", b'"\xc3"', b"1 ", b"null", b"+1"]
)


def one_by_one(keys: list[bytes | None], form: str, kind: str) -> list[object] | None:
    """What the keys are; None if one is bad."""
    column = Column("K", "k", kind, key=True)
    read = key_reader(Source("S", "s", "json", (column,), key_format=form), (column,))
    try:
        return [None if key is None else read(key)[0] for key in keys]
    except (ValueError, ArithmeticError, csv.Error):
        return None


def require_same(keys: list[bytes | None], form: str, kind: str, cut: int) -> bool:
    """Whether the column was read at once, also where it begins in the middle of an array."""
    found = key_column(pa.array(keys, pa.binary()).slice(cut), form, kind)
    if found is None:
        return False
    assert arrow_type(kind) == found.type
    assert one_by_one(keys[cut:], form, kind) == found.to_pylist()
    return True


@pytest.mark.parametrize("kind", TYPES)
@settings(deadline=None)
@given(data=st.data(), cut=st.integers(0, 2))
def test_kafkas_own_serializers(kind: str, data: st.DataObject, cut: int) -> None:
    good = data.draw(st.lists(st.one_of(st.none(), GOOD[kind]), min_size=2))
    assert (kind != "boolean") == require_same(good, "kafka", kind, cut)
    mixed = data.draw(st.lists(st.one_of(st.none(), GOOD[kind], ODD, st.binary(max_size=9)), min_size=2))
    require_same(mixed, "kafka", kind, cut)


@pytest.mark.parametrize("kind", TYPES)
@settings(deadline=None)
@given(data=st.data(), cut=st.integers(0, 2))
def test_one_bare_json_value(kind: str, data: st.DataObject, cut: int) -> None:
    texts = JSON.map(lambda value: json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"))
    require_same(data.draw(st.lists(st.one_of(st.none(), texts), min_size=2)), "json", kind, cut)
    require_same(data.draw(st.lists(st.one_of(st.none(), texts, ODD), min_size=2)), "json", kind, cut)


def test_plain_json_is_read_at_once() -> None:
    assert require_same([b'"a"', None, b'"\xc3\x9c b"', b'""'], "json", "string", 1)
    assert require_same([b"1", None, b"-12", b"0", b"999999999999999999"], "json", "bigint", 1)
    assert not require_same([b"1", b"2147483648"], "json", "int", 0)
    assert not require_same([b'"a"', b'"\\u0041"'], "json", "string", 0)


def test_no_keys_are_a_column() -> None:
    for kind in ("string", "int", "double"):
        assert require_same([], "kafka", kind, 0)
        assert require_same([None, None], "kafka", kind, 0)


def test_other_formats_are_read_one_by_one() -> None:
    assert key_column(pa.array([b"a"]), "delimited", "string") is None
