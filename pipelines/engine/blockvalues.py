"""The values of a block of records as columns, each value that is no row with the reason.

JSON objects are read all at once (`jsonfields.py`). A block is accepted only if it can hold exactly one object a record: every
value starts with `{` and ends with `}` (so none can reach into the next: after a complete inner object, `{` is a syntax
error), and as many rows come out as values went in. Otherwise the block is halved until the bad record stands alone; the
others are decoded as usual. A record that Arrow's reader does not take, or may take for another, and every record of
another format or with types that it does not know, is read by `values.py`, which converts as ksqlDB does. So a record's row
depends on the record alone: not on its neighbours, and not on what was read before.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.engine.arrowtypes import arrow_type
from pipelines.engine.jsonfields import JsonFields, are_known
from pipelines.engine.jsonlines import joined
from pipelines.engine.jsonnames import Rows
from pipelines.engine.values import value_reader
from pipelines.plan import Source

NULL_VALUE = "value is null"


@dataclass
class _Found:
    """What has been read of a block: pieces of all columns in the order of the rows, and reasons by row."""

    pieces: list[list[pa.Array]] = field(default_factory=list)
    reasons: dict[int, str] = field(default_factory=dict)


# Adds the columns of values, none null, the first of them of the row that is given.
_Read = Callable[[pa.BinaryArray, int, _Found], None]


class BlockValues:
    """Reads the value columns of a source, `names` in their order. One remembers how records have been written so far."""

    def __init__(self, source: Source) -> None:
        columns = [column for column in source.columns if not column.key]
        self.names = [column.name for column in columns]
        self._types = [arrow_type(column.type) for column in columns]
        self._read = value_reader(source, columns)
        whole = source.value_format == "json" and source.wrapped and are_known(self._types)
        # A field may be two columns' only in `values.py`.
        whole = whole and len({column.field.upper() for column in columns}) == len(columns)
        self._fields = JsonFields(columns) if whole else None

    def decode(self, values: pa.BinaryArray) -> tuple[list[pa.Array], pa.StringArray]:
        """Columns and reasons, each of the length of `values`; a reason is null where the value is a row."""
        found = _Found()
        self._block(values.drop_null() if values.null_count else values, 0, found)
        columns = (
            [pa.concat_arrays([piece[number] for piece in found.pieces]) for number in range(len(self._types))]
            if found.pieces
            else [pa.array([], kind) for kind in self._types]
        )
        count = len(values) - values.null_count
        reasons = pa.nulls(count, pa.string())
        if found.reasons:
            reasons = pa.array([found.reasons.get(row) for row in range(count)], pa.string())
        if not values.null_count:
            return columns, reasons
        given = values.is_valid()
        places = pc.if_else(given, pc.subtract(pc.cumulative_sum(given.cast(pa.int64())), 1), None)
        return [column.take(places) for column in columns], pc.if_else(given, reasons.take(places), NULL_VALUE)

    def _block(self, values: pa.BinaryArray, first: int, found: _Found) -> None:
        """Add the columns of these values, of which none is null. The first is the row `first`."""
        count = len(values)
        if count == 0:
            return
        if self._fields is None:
            self._singly(values, first, found)
            return
        shaped = self._fields.shaped(values)
        if shaped is not None:
            columns, others = shaped
            found.pieces.append(self._with_others(columns, values, others, first, found, self._block))
            return
        text = joined(values)
        parsed = None if text is None else self._fields.parse(text, values)
        if parsed is not None:
            columns, others = parsed
            kept = [_left_out(column, others) for column in columns]
            found.pieces.append(self._with_others(kept, values, others, first, found, self._singly))
            return
        if count == 1:
            self._singly(values, first, found)
            return
        half = count // 2
        self._block(values.slice(0, half), first, found)
        self._block(values.slice(half), first + half, found)

    def _with_others(
        self, columns: list[pa.Array], values: pa.BinaryArray, others: Rows, first: int, found: _Found, read: _Read
    ) -> list[pa.Array]:
        """The columns with those values at their places that are decoded by `read`: the rows `others`."""
        if not len(others):
            return columns
        apart = _Found()
        read(values.take(pa.array(others)), 0, apart)
        found.reasons.update({first + int(others[row]): reason for row, reason in apart.reasons.items()})
        places = np.empty(len(values), np.int64)
        places[np.delete(np.arange(len(values)), others)] = np.arange(len(values) - len(others))
        places[others] = np.arange(len(values) - len(others), len(values))
        order = pa.array(places)
        return [
            pa.concat_arrays([column, *(piece[number] for piece in apart.pieces)]).take(order)
            for number, column in enumerate(columns)
        ]

    def _singly(self, values: pa.BinaryArray, first: int, found: _Found) -> None:
        """The same, record by record. All reasons are from here: a dead letter is grouped by its text, so that is no other."""
        rows = []
        for row, raw in enumerate(values.to_pylist()):
            try:
                rows.append(self._read(raw))
            except (ValueError, ArithmeticError, csv.Error) as error:
                found.reasons[first + row] = f"value does not fit the columns: {error}"
                rows.append([None] * len(self._types))
        found.pieces.append([pa.array([row[i] for row in rows], kind) for i, kind in enumerate(self._types)])


def _left_out(column: pa.Array, rows: Rows) -> pa.Array:
    """The column without these rows."""
    return column.take(pa.array(np.delete(np.arange(len(column)), rows))) if len(rows) else column
