"""A KEY column of a whole block of records at once, where its format is a plain one. `values.py` reads what is left."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

# The KAFKA format's numbers as numpy reads them: see `kafka_format.py`.
_NUMBERS: dict[str, np.dtype[Any]] = {"int": np.dtype(">i4"), "bigint": np.dtype(">i8"), "double": np.dtype(">f8")}
_WHOLE = {"int": pa.int32(), "bigint": pa.int64()}
# JSON texts that say what they mean: no escapes, and so few digits that they fit.
_JSON_TEXT = r'^"[^"\\\x00-\x1f]*"$'
_JSON_WHOLE = r"^(0|-?[1-9][0-9]{0,17})$"


def key_column(keys: pa.BinaryArray, form: str, type_: str) -> pa.Array | None:
    """The column of the plan's `type_` that these keys are; null for null.

    None where a key of them may be bad, or is written in another way: then each is to be read for itself.
    """
    try:
        if form == "kafka":
            return _kafka(keys, type_)
        return _json(keys.cast(pa.string()), type_) if form == "json" else None
    except pa.ArrowInvalid:
        return None


def _kafka(keys: pa.BinaryArray, type_: str) -> pa.Array | None:
    if type_ in ("string", "bytes"):
        return keys.cast(pa.string()) if type_ == "string" else keys
    number = _NUMBERS.get(type_)
    if number is None or not _all(pc.equal(pc.binary_length(keys), number.itemsize)):
        return None
    filled = keys.fill_null(bytes(number.itemsize))
    # Nothing lies between the bytes of one value and the next.
    (_, ends, data), start = filled.buffers(), filled.offset
    first = np.frombuffer(ends, np.int32)[start] if len(keys) else 0
    values = np.frombuffer(data or b"", number, count=len(keys), offset=first)
    return pa.array(values.astype(number.newbyteorder("=")), mask=keys.is_null().to_numpy(zero_copy_only=False))


def _json(keys: pa.StringArray, type_: str) -> pa.Array | None:
    if type_ == "string" and _all(pc.match_substring_regex(keys, _JSON_TEXT)):
        return pc.utf8_slice_codeunits(keys, 1, -1)
    if type_ in _WHOLE and _all(pc.match_substring_regex(keys, _JSON_WHOLE)):
        return keys.cast(pa.int64()).cast(_WHOLE[type_])
    return None


def _all(flags: pa.BooleanArray) -> bool:
    """Whether each that is not null is true."""
    return bool(flags.true_count + flags.null_count == len(flags))
