"""The JSON fields of a block's values as columns, under whatever names records have them.

Records that are written alike `jsonshape.py` reads; Arrow's reader takes the others as lines of one text, with the source's
schema. A field may be written in any case, as in ksqlDB. Which spellings there are is learnt: where a column has no
value the text is searched for another spelling of its name, and read again with it. What is learnt only makes it quick:
a record of two spellings of a name is left to `values.py` (`jsonnames.py`), and so are those of too many in all.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as paj

from pipelines.engine.arrowtypes import arrow_type
from pipelines.engine.jsonlines import lines
from pipelines.engine.jsonnames import Names, Rows
from pipelines.engine.values import usual_spellings
from pipelines.plan import Column

# A few records are not worth the arrays around them.
ROWS_MIN = 500
_UNLIKE_MAX = 3
# Records of a block that are asked for its shape.
_PROBES = 8
# Of one column. Records of more are read one by one.
_SPELLINGS_MAX = 12
# What Arrow's reader takes and JSON does not have, outside of texts.
_CONSTANTS = (b"NaN", b"Inf")
# They can only stand behind one of these; "Info" as a text stands behind a quote.
_BEFORE_CONSTANT = np.isin(np.arange(256), list(b":,[- \t\n\r"))
_WITH_CONSTANT = r'^(?:[^"]|"(?:[^"\\]|\\.)*")*(?:NaN|Inf)'
# A field's name in any case; where it stands in another object that does no harm.
_NAMED = r'"(%s)"[ \t\n\r]*:'
_NO_ROWS = np.empty(0, np.int64)


def are_known(types: Iterable[pa.DataType]) -> bool:
    """Whether fields of these types are read here: not decimals, which Arrow takes from JSON strings alone."""
    return all(pa.types.is_primitive(kind) or kind == pa.string() for kind in types)


class JsonFields:
    """Columns, of types that `are_known`, and the names under which each may come."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._types = [arrow_type(column.type) for column in columns]
        self._spellings = [usual_spellings(column.field) for column in self._columns]
        self._names = Names([column.field for column in columns])
        # STRASSE is a usual spelling of straße, and not the same in another case.
        usual = "|".join(re.escape(name) for names in self._spellings for name in names)
        self._any_case = re.compile(_NAMED % usual, re.IGNORECASE)
        # A column of a name that no value has costs as much as a number: so blocks are taken to have one spelling
        # of each and no field beside them, until one has.
        self._plain = True
        self._unlike = 0
        self._expect([names[0] for names in self._spellings])

    def _expect(self, names: list[str]) -> None:
        """Of each column the spelling that is taken for that of most records."""
        self._expected = dict(zip(names, self._types, strict=True))
        self._parse_plain = self._options([[name] for name in names], others="error")
        self._parse = self._options(self._spellings, others="ignore")

    def _options(self, spellings: list[list[str]], *, others: Literal["ignore", "error"]) -> paj.ParseOptions:
        """For fields of these names; what becomes of fields of other names."""
        schema = pa.schema([(name, kind) for names, kind in zip(spellings, self._types, strict=True) for name in names])
        return paj.ParseOptions(explicit_schema=schema, newlines_in_values=False, unexpected_field_behavior=others)

    def shaped(self, values: pa.BinaryArray) -> tuple[list[pa.Array], Rows] | None:
        """One array a column of the values that are of one shape, and which are not.

        None if most are not; they are taken not to be when three blocks were not.
        """
        if len(values) < ROWS_MIN or self._unlike >= _UNLIKE_MAX:
            return None
        # Imports Numba, which few records do not need.
        from pipelines.engine.jsonshape import columns_of, shape_of

        # Any of them may be the one that has null for a text, or is bad.
        shapes = (
            shape_of(values[row].as_py(), self._expected) for row in range(0, len(values), len(values) // _PROBES)
        )
        shape = next((shape for shape in shapes if shape is not None), None)
        found = None if shape is None else columns_of(values, shape)
        if found is None:
            self._unlike += 1
            return None
        self._unlike = 0
        count = len(values) - len(found.others)
        columns = [found.columns.get(name, pa.nulls(count, kind)) for name, kind in self._expected.items()]
        return columns, found.others

    def parse(self, text: bytes, values: pa.BinaryArray) -> tuple[list[pa.Array], Rows] | None:
        """One array a column of these values, which are the lines of the text, and the rows that only `values.py` can read.

        None if they are not one object each, or some does not fit.
        """
        try:
            columns, others = self._parsed(text, values)
        except pa.ArrowInvalid:
            return None
        constants = _with_constants(text, values)
        return columns, others if constants is None else np.union1d(others, _rows(constants))

    def _parsed(self, text: bytes, values: pa.BinaryArray) -> tuple[list[pa.Array], Rows]:
        """The same, but for constants. Raises ArrowInvalid where it is None."""
        read = paj.ReadOptions(use_threads=False, block_size=max(len(text) + 1, 1024))
        if self._plain:
            try:
                table = paj.read_json(pa.BufferReader(text), read_options=read, parse_options=self._parse_plain)
                # No record has another field, so none has two spellings of one.
                return self._picked(_whole(table, values)), _NO_ROWS
            except pa.ArrowInvalid:
                # Other fields, or an error that comes again.
                pass
        while True:
            table = paj.read_json(pa.BufferReader(text), read_options=read, parse_options=self._parse)
            self._plain = False
            columns = self._picked(_whole(table, values))
            missing = functools.reduce(pc.or_, (column.is_null() for column in columns)) if columns else None
            if missing is None or not missing.true_count:
                return columns, self._names.odd(values, self._spellings)
            spellings = self._spellings_with(values, columns, missing)
            if spellings == self._spellings:
                return columns, self._names.odd(values, self._spellings)
            if max(map(len, spellings)) > _SPELLINGS_MAX:
                return columns, np.union1d(self._names.odd(values, self._spellings), _rows(missing))
            self._spellings = spellings
            self._expect(list(self._expected))

    def _spellings_with(
        self, values: pa.BinaryArray, columns: list[pa.Array], missing: pa.BooleanArray
    ) -> list[list[str]]:
        """Of each column the spellings, with those under which fields without a value, in the rows `missing`, have one."""
        text = lines(values.filter(missing))
        unset = [number for number, column in enumerate(columns) if column.null_count]
        if not any(_has_others(text, self._spellings[number]) for number in unset):
            return self._spellings
        found = set(self._any_case.findall(text.decode()))
        return [
            _in_order(column.field, {*names, *(name for name in found if name.upper() == column.field.upper())})
            for column, names in zip(self._columns, self._spellings, strict=True)
        ]

    def _picked(self, table: pa.Table) -> list[pa.Array]:
        """One array a column: the first spelling under which a row has a value."""
        picked = []
        expected = list(self._expected)
        for number, (names, kind) in enumerate(zip(self._spellings, self._types, strict=True)):
            arrays = {name: table.column(name) for name in names if name in table.column_names}
            present = [name for name, array in arrays.items() if array.null_count < len(array)]
            if len(present) == 1:
                expected[number] = present[0]
            merged = pc.coalesce(*(arrays[name] for name in present or list(arrays)[:1]))
            picked.append(pa.concat_arrays(merged.chunks) if merged.num_chunks else pa.array([], kind))
        if expected != list(self._expected):
            self._expect(expected)
        return picked


def _whole(table: pa.Table, values: pa.BinaryArray) -> pa.Table:
    """The table, if it has as many rows as there are values; else raises ArrowInvalid."""
    if table.num_rows != len(values):
        raise pa.ArrowInvalid("a value is not one object")
    return table


def _rows(flags: pa.BooleanArray) -> Rows:
    return np.flatnonzero(flags.to_numpy(zero_copy_only=False))


def _with_constants(text: bytes, values: pa.BinaryArray) -> pa.BooleanArray | None:
    """Which of the values, the lines of the text, that Arrow has read have NaN or Infinity for a number; None if none has."""
    if not any(_may_have(text, constant) for constant in _CONSTANTS):
        return None
    found = pc.match_substring_regex(values, _WITH_CONSTANT)
    return found if found.true_count else None


def _may_have(text: bytes, constant: bytes) -> bool:
    """Whether the constant stands somewhere in the objects' text where it may be outside of a JSON text."""
    # A single byte is found a hundred times quicker than several, and few texts have it.
    if constant[:1] not in text:
        return False
    raw = np.frombuffer(text, np.uint8)
    at = np.flatnonzero(raw[1 : 1 - len(constant)] == constant[0]) + 1
    at = at[_BEFORE_CONSTANT[raw[at - 1]]]
    for further, byte in enumerate(constant[1:], 1):
        at = at[raw[at + further] == byte]
    return len(at) > 0


def _in_order(name: str, spellings: set[str]) -> list[str]:
    """The order in which `values.py` looks for them."""
    usual = usual_spellings(name)
    return [*usual, *sorted(spellings.difference(usual))]


def _has_others(text: bytes, spellings: list[str]) -> bool:
    """Whether there may be spellings of a name in the text that are not among these. To count them is quick."""
    if not spellings[0].isascii():
        return True
    known = sum(text.count(b'"%b"' % name.encode()) for name in spellings)
    return text.lower().count(b'"%b"' % spellings[0].lower().encode()) > known
