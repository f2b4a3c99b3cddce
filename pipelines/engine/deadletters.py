"""Dead letters over Arrow columns: what `merge.DEAD` says in SQL, but without line breaks in base64."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.engine.jsontext import base64_texts, json_texts
from pipelines.engine.merge import NO_KEY

_PLACE = ("topic", "partition", "offset", "timestamp_ms")
_BYTES = ("key", "value")


def dead_letters(reasons: pa.StringArray, records: pa.StructArray) -> pa.StringArray:
    """One text a record, of type `decode.RAW`. A reason that is null is that there is no key."""
    pieces: list[pa.Array | str] = ['{"reason":', json_texts(reasons.fill_null(NO_KEY))]
    for name in _PLACE:
        pieces += [f',"{name}":', json_texts(records.field(name))]
    pieces += [_optional(name, records.field(name)) for name in _BYTES]
    return pc.binary_join_element_wise(*pieces, "}", "")


def _optional(name: str, column: pa.BinaryArray) -> pa.StringArray:
    """The field of bytes as it is written; nothing for null."""
    return pc.binary_join_element_wise(f',"{name}":"', base64_texts(column), '"', "").fill_null("")
