"""The values of a block of records as columns, each value that is no row with the reason.

JSON objects are read all at once (`jsonfields.py`). A block is accepted only if it can hold exactly one object a record: every
value starts with `{` and ends with `}` (so none can reach into the next: after a complete inner object, `{` is a syntax
error), and as many rows come out as values went in. Otherwise the block is halved until the bad record stands alone; the
others are decoded as usual. A record that Arrow's reader does not take, and every record of another format or with types
that it does not know, is read by `values.py`, which converts as ksqlDB does.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.engine.arrowtypes import arrow_type
from pipelines.engine.jsonfields import JsonFields, Rows, are_known, with_constants
from pipelines.engine.jsonlines import joined
from pipelines.engine.values import value_reader
from pipelines.plan import Source

NULL_VALUE = "value is null"


@dataclass
class _Found:
    """What has been read of a block: pieces of all columns in the order of the rows, and reasons by row."""

    pieces: list[list[pa.Array]] = field(default_factory=list)
    reasons: dict[int, str] = field(default_factory=dict)


class BlockValues:
    """Reads the value columns of a source, `names` in their order. One remembers how records have been written so far."""

    def __init__(self, source: Source) -> None:
        columns = [column for column in source.columns if not column.key]
        self.names = [column.name for column in columns]
        self._types = [arrow_type(column.type) for column in columns]
        self._read = value_reader(source, columns)
        whole = source.value_format == "json" and source.wrapped and are_known(self._types)
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
            found.pieces.append(self._with_others(columns, values, others, first, found) if len(others) else columns)
            return
        reason = "value is not a JSON object"
        text = joined(values)
        if text is not None:
            try:
                columns_read = self._fields.parse(text, values)
                if columns_read is not None:
                    bad = with_constants(text, values)
                    found.pieces.append(columns_read if bad is None else _without(columns_read, bad, first, found))
                    return
            except pa.ArrowInvalid as error:
                reason = f"value does not fit the columns: {str(error).splitlines()[0]}"
        if count == 1:
            self._singly(values, first, found, reason)
            return
        half = count // 2
        self._block(values.slice(0, half), first, found)
        self._block(values.slice(half), first + half, found)

    def _with_others(
        self, columns: list[pa.Array], values: pa.BinaryArray, others: Rows, first: int, found: _Found
    ) -> list[pa.Array]:
        """The columns with those values at their places that are decoded in another way; fewer than half are."""
        apart = _Found()
        self._block(values.take(pa.array(others)), 0, apart)
        found.reasons.update({first + int(others[row]): reason for row, reason in apart.reasons.items()})
        places = np.empty(len(values), np.int64)
        places[np.delete(np.arange(len(values)), others)] = np.arange(len(values) - len(others))
        places[others] = np.arange(len(values) - len(others), len(values))
        order = pa.array(places)
        return [
            pa.concat_arrays([column, *(piece[number] for piece in apart.pieces)]).take(order)
            for number, column in enumerate(columns)
        ]

    def _singly(self, values: pa.BinaryArray, first: int, found: _Found, reason: str = "") -> None:
        """The same, record by record. `reason` is what Arrow's reader said of the one record, if it was asked."""
        rows = []
        for row, raw in enumerate(values.to_pylist()):
            try:
                rows.append(self._read(raw))
            except (ValueError, ArithmeticError, csv.Error, RecursionError) as error:
                found.reasons[first + row] = reason or f"value does not fit the columns: {error}"
                rows.append([None] * len(self._types))
        found.pieces.append([pa.array([row[i] for row in rows], kind) for i, kind in enumerate(self._types)])


def _without(columns: list[pa.Array], bad: pa.BooleanArray, first: int, found: _Found) -> list[pa.Array]:
    """The columns, null in the rows that are bad for a constant."""
    for row in np.flatnonzero(bad.to_numpy(zero_copy_only=False)).tolist():
        found.reasons[first + row] = "value does not fit the columns: NaN and Infinity are not JSON"
    return [pc.if_else(bad, pa.scalar(None, column.type), column) for column in columns]
