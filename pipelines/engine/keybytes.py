"""Serialised keys over Arrow columns: what `encode.key_fields_bytes` says in SQL where not all parts are null."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.engine.jsontext import base64_texts, json_objects, json_texts
from pipelines.plan import Query
from statestore.errors import InvalidConfig

# From the columns of the group's parts, in their order.
KeyBytes = Callable[[Sequence[pa.Array]], pa.BinaryArray]


def key_bytes_of(query: Query) -> KeyBytes:
    """How the plan's keys of whole numbers, decimals, booleans, text and bytes are written.

    Raises `InvalidConfig` for a format that is none.
    """
    names = [key.name for key in query.group_by]
    match query.key_format:
        case "json" if len(names) == 1:
            return lambda columns: json_texts(columns[0]).cast(pa.binary())
        case "json":
            return lambda columns: json_objects(list(zip(names, columns, strict=True)))
        case "delimited":
            return lambda columns: _delimited(columns, query.key_delimiter, base64=query.base64_keys)
        case "kafka":
            return lambda columns: _kafka(columns[0])
    raise InvalidConfig("plan has an unknown format", format=query.key_format)


def _delimited(columns: Sequence[pa.Array], delimiter: str, *, base64: bool) -> pa.BinaryArray:
    """Fields with the delimiter between them, as `encode` says which of them are in quotes."""
    # The end of a text is for Java also what stands before a last line break, of whatever kind.
    special = f'[{re.escape(delimiter)}"\n\r]|^[\\x00-#]|[\\x00-\\x20][\u0085\u2028\u2029]?$'
    fields = []
    for at, column in enumerate(columns):
        text = base64_texts(column) if base64 and pa.types.is_binary(column.type) else column.cast(pa.string())
        # Numbers, too: the delimiter may be a digit or their sign.
        odd = pc.match_substring_regex(text, special if at else f"{special}|^[^0-9A-Za-z]|^$")
        quoted = pc.binary_join_element_wise('"', pc.replace_substring(text, '"', '""'), '"', "")
        fields.append(pc.if_else(odd, quoted, text).fill_null(""))
    return pc.binary_join_element_wise(*fields, delimiter).cast(pa.binary())


def _kafka(column: pa.Array) -> pa.BinaryArray:
    """Text as it is, whole numbers big-endian."""
    if not pa.types.is_integer(column.type):
        return column.cast(pa.binary())
    width = column.type.bit_width // 8
    swapped = column.fill_null(0).to_numpy().astype(f">i{width}").tobytes()
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(column), [None, pa.py_buffer(swapped)]).cast(
        pa.binary()
    )
