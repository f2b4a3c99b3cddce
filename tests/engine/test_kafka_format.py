"""One value in the KAFKA format: the bytes of Kafka's serializers, and nothing that does not fit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines import kafka_format
from pipelines.kafka_format import Plain

GOLDEN: list[tuple[Plain, str, str]] = [
    (1, "int", "00000001"),
    (-2, "int", "fffffffe"),
    ("7", "bigint", "0000000000000007"),
    (1.5, "double", "3ff8000000000000"),
    ("é", "string", "c3a9"),
    (b"\x00\xff", "bytes", "00ff"),
]
VALUES = st.one_of(
    st.tuples(st.integers(-(2**31), 2**31 - 1), st.just("int")),
    st.tuples(st.integers(-(2**63), 2**63 - 1), st.just("bigint")),
    st.tuples(st.floats(allow_nan=False), st.just("double")),
    st.tuples(st.text(), st.just("string")),
    st.tuples(st.binary(), st.just("bytes")),
)


@pytest.mark.parametrize(("value", "type_", "written"), GOLDEN)
def test_the_bytes_are_those_of_kafkas_serializers(value: Plain, type_: str, written: str) -> None:
    assert written == kafka_format.encode(value, type_).hex()


@given(VALUES)
def test_what_is_written_is_read_as_it_was(pair: tuple[Plain, str]) -> None:
    value, type_ = pair
    assert value == kafka_format.decode(kafka_format.encode(value, type_), type_)


@pytest.mark.parametrize(
    ("value", "type_"), [(2**31, "int"), ("x", "bigint"), ("", "double"), (-(2**63) - 1, "bigint")]
)
def test_a_value_that_does_not_fit_is_refused(value: Plain, type_: str) -> None:
    with pytest.raises(ValueError):
        kafka_format.encode(value, type_)


@pytest.mark.parametrize(
    ("raw", "type_"), [(b"\x00" * 8, "int"), (b"", "bigint"), (b"\x00" * 4, "double"), (b"\xff", "string")]
)
def test_bytes_of_another_length_are_refused(raw: bytes, type_: str) -> None:
    with pytest.raises(ValueError):
        kafka_format.decode(raw, type_)
