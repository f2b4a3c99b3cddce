"""Bytes of typed keys and values are those of Kafka's serializers."""

from __future__ import annotations

from typing import Any

import pytest

from statestore.errors import InvalidInput
from statestore.typed.serdes import BYTES, DOUBLE, INTEGER, JSON, LONG, STRING, Serde, ValueAndTimestamp, timestamped


@pytest.mark.parametrize(
    ("serde", "value", "raw"),
    [
        (INTEGER, 1, "00000001"),
        (INTEGER, -1, "ffffffff"),
        (LONG, 2**40, "0000010000000000"),
        (LONG, -2, "fffffffffffffffe"),
        (DOUBLE, 1.5, "3ff8000000000000"),
        (STRING, "é", "c3a9"),
        (STRING, "", ""),
        (BYTES, b"\x00\x01", "0001"),
        (JSON, {"a": [1, None]}, "7b2261223a5b312c6e756c6c5d7d"),
        (timestamped(STRING), ValueAndTimestamp("x", 97), "000000000000006178"),
        (timestamped(STRING), ValueAndTimestamp("x", -1), "ffffffffffffffff78"),
    ],
)
def test_values_become_bytes_and_come_back(serde: Serde[Any], value: object, raw: str) -> None:
    assert bytes.fromhex(raw) == serde.serialize(value)
    assert value == serde.deserialize(bytes.fromhex(raw))


def test_none_stays_none() -> None:
    assert (None, None) == (INTEGER.serialize(None), INTEGER.deserialize(None))


@pytest.mark.parametrize(("serde", "value"), [(INTEGER, "1"), (INTEGER, True), (STRING, 1), (BYTES, "x"), (LONG, 1.0)])
def test_another_type_is_refused(serde: Serde[Any], value: object) -> None:
    with pytest.raises(TypeError, match="expected"):
        serde.serialize(value)


def test_a_number_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="out of range"):
        INTEGER.serialize(2**31)


@pytest.mark.parametrize(("serde", "raw"), [(INTEGER, b"123"), (STRING, b"\xff"), (JSON, b"{"), (LONG, b"")])
def test_bytes_of_another_format_are_an_error(serde: Serde[Any], raw: bytes) -> None:
    with pytest.raises(InvalidInput, match=serde.name):
        serde.deserialize(raw)
