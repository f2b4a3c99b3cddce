"""JSON texts of columns, byte for byte as Spark's `to_json` writes them: of whole numbers, text and booleans."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

# What Jackson escapes, and how.
_ESCAPES = {code: f"\\u{code:04X}" for code in range(0x20)}
_ESCAPES |= {ord(char): f"\\{letter}" for char, letter in zip('"\\\b\f\n\r\t', '"\\bfnrt', strict=True)}
_SPECIAL = r'["\\\x00-\x1f]'


def json_objects(fields: Sequence[tuple[str, pa.Array]]) -> pa.BinaryArray:
    """One object a row, of these fields in this order, at least one. A null is written as `null`."""
    pieces: list[pa.Array | str] = []
    before = "{"
    for name, column in fields:
        pieces += [f'{before}"{name.translate(_ESCAPES)}":', pc.coalesce(json_texts(column), "null")]
        before = ","
    return pc.binary_join_element_wise(*pieces, "}", "").cast(pa.binary())


def json_texts(column: pa.Array) -> pa.StringArray:
    """The text of every value; null for null."""
    if not pa.types.is_string(column.type):
        return column.cast(pa.string())
    special = pc.match_substring_regex(column, _SPECIAL)
    if special.true_count:
        escaped = [text.translate(_ESCAPES) for text in column.filter(special).to_pylist()]
        column = pc.replace_with_mask(column, special.fill_null(False), pa.array(escaped, pa.string()))
    return pc.binary_join_element_wise('"', column, '"', "")
