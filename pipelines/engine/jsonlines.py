"""JSON objects as the lines of one text, each exactly one line: what Arrow's reader takes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_WHITE = " \t\n\r"
# JSON forbids line breaks inside of texts.
_NO_TEXT_OF_LINES = r'^(?:[^"]|"(?:[^"\\\x00-\x1f]|\\[^\x00-\x1f])*")*$'
_OPEN, _CLOSE, _NOT_ON_A_LINE = ord("{"), ord("}"), (b"\n", b"\r", b"\0")


def joined(values: pa.BinaryArray) -> bytes | None:
    """The values as lines; None if some value cannot be one object on one line."""
    if not _one_object_each(values):
        if not _is_utf8(lines(values)):
            return None
        texts = values.cast(pa.string())
        if not pc.all(pc.match_substring_regex(texts, _NO_TEXT_OF_LINES)).as_py():
            return None
        # Outside of texts a line break is white space.
        texts = pc.utf8_trim(pc.replace_substring_regex(texts, r"[\n\r]", " "), _WHITE)
        values = texts.cast(pa.binary())
        if not _one_object_each(values):
            return None
    text = lines(values)
    return text if text.isascii() or _is_utf8(text) else None


def lines(values: pa.BinaryArray) -> bytes:
    """The values as they are, with line breaks between them."""
    whole = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
    return pc.binary_join(whole, b"\n")[0].as_py()  # type: ignore[no-any-return]


def _one_object_each(values: pa.BinaryArray) -> bool:
    """Whether every value goes from `{` to `}` without a line break: then a line is a value."""
    _, raw_ends, data = values.buffers()
    ends = np.frombuffer(raw_ends, np.int32)[values.offset : values.offset + len(values) + 1]
    if np.diff(ends).min(initial=1) < 1:
        return False
    text = np.frombuffer(data, np.uint8)
    if not ((text[ends[:-1]] == _OPEN).all() and (text[ends[1:] - 1] == _CLOSE).all()):
        return False
    whole = text[ends[0] : ends[-1]].tobytes()
    return not any(mark in whole for mark in _NOT_ON_A_LINE)


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
