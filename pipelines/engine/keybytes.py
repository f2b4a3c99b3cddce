"""Serialised keys over Arrow columns: what `encode.key_fields_bytes` says in SQL, for groups none of whose parts is null."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from pipelines.engine.jsontext import json_objects, json_texts
from pipelines.plan import Query

# From the columns of the group's parts, in their order.
KeyBytes = Callable[[Sequence[pa.Array]], pa.BinaryArray]


def key_bytes_of(query: Query) -> KeyBytes | None:
    """How the plan's keys are written; None where only Spark knows."""
    names = [key.name for key in query.group_by]
    if query.key_format == "json":
        if len(names) == 1:
            return lambda columns: json_texts(columns[0]).cast(pa.binary())
        return lambda columns: json_objects(list(zip(names, columns, strict=True)))
    if query.key_format == "kafka" and len(names) == 1:
        return lambda columns: _kafka(columns[0])
    return None


def _kafka(column: pa.Array) -> pa.BinaryArray:
    """Text as it is, whole numbers big-endian."""
    if not pa.types.is_integer(column.type):
        return column.cast(pa.binary())
    width = column.type.bit_width // 8
    swapped = column.to_numpy().astype(f">i{width}").tobytes()
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(column), [None, pa.py_buffer(swapped)]).cast(
        pa.binary()
    )
