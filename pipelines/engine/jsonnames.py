"""Which records of a block only `values.py` can read, since Arrow's reader may find another value in them, or accept more.

twice     fields whose names are one column's in upper case: which of them counts must not depend on what is known
strange   a name that is a column's in upper case, and neither one under which Arrow's reader looks for it nor sure to be found
          by a search of the text: one with an escape or with other letters than ASCII, of which bytes do not tell whose it is
deep      more than `DEPTH_MAX` levels

A record may be taken for an odd one that is none: it is then read as well in one way as in the other.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.engine.values import usual_spellings

Rows = npt.NDArray[np.int64]

# Of a name: no column's, or only `values.py` may read its record.
_NO_COLUMN, _STRANGE = -1, -2


class Names:
    """The fields of columns, whose names differ in upper case."""

    def __init__(self, fields: Sequence[str]) -> None:
        # What differs from one of these in the case of ASCII letters is that column's.
        self._columns = {
            name.encode().lower(): number for number, field in enumerate(fields) for name in usual_spellings(field)
        }
        self._by_upper = {field.upper(): number for number, field in enumerate(fields)}

    def odd(self, values: pa.BinaryArray, spellings: Sequence[Sequence[str]]) -> Rows:
        """The rows of such values, of which none is null or empty. `spellings` are those that are read of each column."""
        # Imports Numba, which records of plain names do not need.
        from pipelines.engine.jsonscan import odd_rows

        _, raw_ends, raw = values.buffers()
        ends = np.frombuffer(raw_ends, np.int32)[values.offset : values.offset + len(values) + 1]
        columns_of = functools.partial(self._columns_of, spellings=spellings)
        return odd_rows(np.frombuffer(raw, np.uint8), ends, self._columns, columns_of)

    def _columns_of(self, written: list[bytes], *, spellings: Sequence[Sequence[str]]) -> list[int]:
        """The numbers of the columns whose names these are by the rule of `values.py`, or what else they are."""
        try:
            names = json.loads(b'["' + b'","'.join(written) + b'"]')
        except ValueError:
            return [_STRANGE] * len(written)
        numbers = [self._by_upper.get(name.upper(), _NO_COLUMN) for name in names]
        return [
            number if number == _NO_COLUMN or name in spellings[number] else _STRANGE
            for number, name in zip(numbers, names, strict=True)
        ]
