"""Blocks of records that are written alike: what is read is what any reader of JSON reads, and all else is refused."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.engine import jsonfields, jsonshape
from pipelines.engine.decode import decoder
from pipelines.engine.jsonfields import ROWS_MIN
from pipelines.engine.jsonshape import columns_of, shape_of
from pipelines.engine.records import GivenRecords
from pipelines.sql import parse_pipeline
from tests.support.present import present

TYPES = {"n": pa.int64(), "small": pa.int32(), "text": pa.string(), "": pa.int64(), "a:b, {": pa.string()}
RANGES = {pa.int32(): (-(2**31), 2**31 - 1), pa.int64(): (-(10**18) + 1, 10**18 - 1)}
TEXTS = st.text(st.characters(min_codepoint=32, exclude_characters='"\\', exclude_categories=["Cs"]), max_size=20)


def values_of(name: str) -> st.SearchStrategy[Any]:
    return TEXTS if TYPES[name] == pa.string() else st.none() | st.integers(*RANGES[TYPES[name]])


@st.composite
def blocks(draw: st.DrawFn) -> list[bytes]:
    """Records of the same fields, written by one writer."""
    names = draw(st.lists(st.sampled_from(list(TYPES)), min_size=1, unique=True))
    rows = draw(st.lists(st.tuples(*map(values_of, names)), min_size=1, max_size=30))
    separators = draw(st.sampled_from([(",", ":"), (", ", ": "), (" , ", " :")]))
    written: dict[str, Any] = {"separators": separators, "ensure_ascii": False}
    return [json.dumps(dict(zip(names, row, strict=True)), **written).encode() for row in rows]


def read(values: list[bytes]) -> tuple[dict[str, list[Any]], list[int]] | None:
    """The columns, and the rows that are not among them."""
    shape = shape_of(values[0], TYPES)
    # A block is a slice of something larger, as Arrow's arrays may be.
    sliced = pa.array([b'{"n":9}', *values, b'{"n":"x"}'], pa.binary()).slice(1, len(values))
    found = None if shape is None else columns_of(sliced, shape)
    if found is None:
        return None
    assert all(column.type == TYPES[name] for name, column in found.columns.items())
    return {name: column.to_pylist() for name, column in found.columns.items()}, found.others.tolist()


@settings(deadline=None)
@given(blocks())
def test_records_of_one_shape_are_read_as_json_reads_them(values: list[bytes]) -> None:
    rows = [json.loads(value) for value in values]
    assert read(values) == ({name: [row[name] for row in rows] for name in rows[0]}, [])


def is_one(value: bytes, first: bytes) -> bool:
    """Whether it is an object of the first one's fields, with the columns' types and ranges."""
    try:
        pairs = json.loads(value, object_pairs_hook=list)
    except ValueError:
        return False
    if not isinstance(pairs, list) or [pair[0] for pair in pairs] != list(json.loads(first)):
        return False
    return all(
        isinstance(found, str)
        if TYPES[name] == pa.string()
        else found is None or (type(found) is int and RANGES[TYPES[name]][0] <= found <= RANGES[TYPES[name]][1])
        for name, found in pairs
    )


@settings(max_examples=2_000, deadline=None)
@given(blocks(), st.data())
def test_a_record_that_is_damaged_anywhere_is_never_read_as_something_else(
    values: list[bytes], data: st.DataObject
) -> None:
    row = data.draw(st.integers(0, len(values) - 1))
    value = values[row]
    at = data.draw(st.integers(0, len(value)))
    cut = data.draw(st.integers(0, 3))
    put = data.draw(st.binary(max_size=3) | st.sampled_from([b'"', b"\\", b",", b"-", b"0", b"1e3", b".5", b"}", b"{"]))
    damaged = [*values]
    damaged[row] = value[:at] + put + value[at + cut :]
    found = read(damaged)
    if found is None:
        # A shape is one of most records.
        assert row == 0 or len(values) == 1 or not is_utf8(damaged[row])
        return
    columns, others = found
    read_here = [value for number, value in enumerate(damaged) if number not in others]
    assert set(others) <= {row} if row else 2 * len(others) <= len(values)
    assert all(is_one(value, read_here[0]) for value in read_here)
    assert columns == {name: [json.loads(value)[name] for value in read_here] for name in columns}


def is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"{}",
        b"[1]",
        b' {"n":1}',
        b'{"n":1} ',
        b'{"n":1,}',
        b'{"n":1.0}',
        b'{"text":null}',
        b'{"n":nul}',
        b'{"n":"1"}',
        b'{"text":1}',
        b'{"text":"\\n"}',
        b'{"n":1,"n":2}',
        b'{"other":1}',
        b'{"n":{"n":1}}',
        b'{"n":1}{"n":1}',
        b'{"\\u006e":1}',
        b'{\x0b"n":1}',
        b'{"n"\x0c:1}',
        b'{"n":1\x0b}',
    ],
)
def test_what_has_no_shape(value: bytes) -> None:
    assert shape_of(value, TYPES) is None


@pytest.mark.parametrize(
    "value",
    [
        b'{"n":01}',
        b'{"n":-}',
        b'{"n":}',
        b'{"n":1000000000000000000}',
        b'{"n":1 }',
        b'{"n": 1}',
        b'{"N":1}',
        b'{"n":1]',
        b'{"n":+1}',
        b'{"n":1"}',
        b'"n":1}',
        b"",
        b'{"n":12345678\x00}',
        b'{"n":1234567/}',
        b'{"n":1234567:}',
        b'{"n":\xb1}',
    ],
)
def test_a_record_of_another_shape_is_left_to_others(value: bytes) -> None:
    for values, odd in (([b'{"n":1}', value, b'{"n":3}'], 1), ([b'{"n":1}', b'{"n":3}', value], 2)):
        assert read(values) == ({"n": [1, 3]}, [odd])
    assert read([b'{"n":1}', value, value]) is None


@pytest.mark.parametrize("value", [b'{"n":null}', b'{"n":-0}', b'{"n":0}'])
def test_what_is_no_number_of_digits_alone(value: bytes) -> None:
    assert read([b'{"n":1}', value]) == ({"n": [1, json.loads(value)["n"]]}, [])


def test_numbers_of_every_length_and_both_signs() -> None:
    numbers = [sign * int("9876543210987654321"[:digits]) for digits in range(1, 19) for sign in (1, -1)]
    numbers += [0, 10**17, -(10**17), 2**31 - 1, -(2**31)]
    assert read([b'{"n":%d}' % number for number in numbers]) == ({"n": numbers}, [])


SOURCE = "CREATE STREAM s (n BIGINT, t STRING, late INT) WITH (kafka_topic='s', value_format='json');"
SELECT = "CREATE STREAM r AS SELECT n, t, late FROM s EMIT CHANGES;"


@pytest.mark.parametrize(
    "bad", [None, b'{"n":1,"t":2}', b"no", b"", b'{"n":1}', b'{"n":1,"t":null}', b'{"N":5,"t":"x"}']
)
def test_decoded_rows_are_those_of_arrow(bad: bytes | None, monkeypatch: pytest.MonkeyPatch) -> None:
    (query,) = parse_pipeline(SOURCE + SELECT, pipeline="p", default_tasks=2).queries
    good = [b'{"n":%d,"t":"%d, and"}' % (n, n) for n in range(3 * ROWS_MIN)]
    other = [*good[: 2 * ROWS_MIN], *([] if bad is None else [bad]), *good]
    blocks = [given_records(good), given_records(other)]
    shaped = []
    real = columns_of
    monkeypatch.setattr(jsonshape, "columns_of", lambda *a: shaped.append(real(*a)) or shaped[-1])
    found = list(decoder(query.source, (), lambda *_: None)(blocks))
    assert [present(one).others.tolist() for one in shaped[:1]] == [[]]
    if bad is not None:
        with_it = next(one for one in shaped[1:] if one is not None)
        assert with_it.others.tolist() == [2 * ROWS_MIN]
    monkeypatch.setattr(jsonfields, "ROWS_MIN", len(other) + 1)
    assert list(decoder(query.source, (), lambda *_: None)(blocks)) == found


def given_records(values: list[bytes]) -> GivenRecords:
    keys, numbers = pa.nulls(len(values), pa.binary()), pa.array(range(len(values)), pa.int64())
    return GivenRecords(0, keys, pa.array(values, pa.binary()), numbers, numbers)
