"""Arrays, maps and structs as bytes of a state, and back: JSON without names or loss.

array     [item, …]
map       [[key, value], …]
struct    [field, …] in the type's order
decimal   its text      double   as `repr` has it, NaN and Infinity too      bytes   in base64
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa

Convert = Callable[[Any], Any]


def to_bytes(array: pa.Array) -> pa.BinaryArray:
    """Each value's bytes, null for null."""
    convert = _plain(array.type)
    texts = [None if value is None else json.dumps(convert(value)).encode() for value in array.to_pylist()]
    return pa.array(texts, pa.binary())


def from_bytes(array: pa.BinaryArray, kind: pa.DataType) -> pa.Array:
    """Inverse of `to_bytes`; null and no bytes are null."""
    convert = _value(kind)
    return pa.array([convert(json.loads(text)) if text else None for text in array.to_pylist()], kind)


def _plain(kind: pa.DataType) -> Convert:
    """A value of this type to what JSON has."""
    if pa.types.is_list(kind):
        item = _known(_plain(kind.value_type))
        return lambda values: [item(value) for value in values]
    if pa.types.is_map(kind):
        key, item = _plain(kind.key_type), _known(_plain(kind.item_type))
        return lambda pairs: [[key(name), item(value)] for name, value in pairs]
    if pa.types.is_struct(kind):
        fields = [(field.name, _known(_plain(field.type))) for field in kind]
        return lambda value: [convert(value[name]) for name, convert in fields]
    if pa.types.is_decimal(kind):
        return str
    return (lambda value: b64encode(value).decode()) if pa.types.is_binary(kind) else lambda value: value


def _value(kind: pa.DataType) -> Convert:
    """What JSON has to a value of this type."""
    if pa.types.is_list(kind):
        item = _known(_value(kind.value_type))
        return lambda values: [item(value) for value in values]
    if pa.types.is_map(kind):
        key, item = _value(kind.key_type), _known(_value(kind.item_type))
        return lambda pairs: [(key(name), item(value)) for name, value in pairs]
    if pa.types.is_struct(kind):
        fields = [(field.name, _known(_value(field.type))) for field in kind]
        return lambda values: {name: convert(value) for (name, convert), value in zip(fields, values, strict=True)}
    if pa.types.is_decimal(kind):
        return Decimal
    return b64decode if pa.types.is_binary(kind) else lambda value: value


def _known(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)
