"""Which records of a block only `values.py` can read, since Arrow's reader may find another value in them, or accept more.

twice     fields whose names are one column's in upper case: which of them counts must not depend on what is known
strange   a name with an escape, or with letters whose upper case is ASCII: it may be a column's, which bytes do not tell
deep      more than `DEPTH_MAX` levels

A record may be taken for a strange one that is none: it is then read as well in one way as in the other.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.engine.values import usual_spellings

Rows = npt.NDArray[np.int64]

# The letters that are not ASCII themselves, in upper case are: ß is SS.
_BECOME_ASCII = re.compile("|".join(char for char in map(chr, range(128, 0x10000)) if char.upper().isascii()).encode())


class Names:
    """The fields of columns, whose names differ in upper case."""

    def __init__(self, fields: Sequence[str]) -> None:
        # What differs from one of these in the case of ASCII letters is that column's.
        self._columns = {
            name.encode().lower(): number for number, field in enumerate(fields) for name in usual_spellings(field)
        }
        self._ascii = "".join(fields).isascii()

    def odd(self, values: pa.BinaryArray) -> Rows:
        """The rows of such values, of which none is null or empty."""
        # Imports Numba, which records of plain names do not need.
        from pipelines.engine.jsonscan import odd_rows

        _, raw_ends, raw = values.buffers()
        ends = np.frombuffer(raw_ends, np.int32)[values.offset : values.offset + len(values) + 1]
        data = np.frombuffer(raw, np.uint8)
        rows = odd_rows(data, ends, self._columns, strict=True)
        if len(rows) and self._ascii:
            # Only with such a letter may a name that is not ASCII be a column's that is.
            text = data[ends[0] : ends[-1]].tobytes()
            if not text.isascii() and not _BECOME_ASCII.search(text):
                return odd_rows(data, ends, self._columns, strict=False)
        return rows
