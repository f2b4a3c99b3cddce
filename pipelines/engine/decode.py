"""Decode: Kafka records to rows, or to rows that say why a record is no row. Runs before the shuffle.

JSON values are decoded a block at a time. Records that are written alike `jsonshape.py` reads; others are joined by newlines
and given to Arrow's reader with the source's schema. There a block is accepted only if it can hold exactly one object a record: every value starts with `{` and ends with `}`
(so none can reach into the next: after a complete inner object, `{` is a syntax error), and as many rows come out as
records went in. Otherwise the block is halved until the bad record stands alone; the others are decoded as usual.

A field is found under the name its column has in the statement, in that case, in lower or in upper case. A record that
Arrow's reader does not take, and every record of another format or with types that it does not know, is read by
`values.py`, which converts as ksqlDB does.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as paj

from pipelines.engine.keycolumns import key_column
from pipelines.engine.records import Records, partitions
from pipelines.engine.values import Reader, Row, fields_once, key_reader, value_reader
from pipelines.engine.windowed_keys import split_key
from pipelines.plan import Source
from pipelines.sql.names import WINDOW_BOUNDS
from pipelines.sql.time_pattern import time_reader
from pipelines.sql.types import PHYSICAL, parse_type
from statestore.errors import InvalidConfig

Rows = npt.NDArray[np.int64]
Decoder = Callable[[Iterable[Records]], Iterator[pa.RecordBatch]]
# Is given the records of a block, the bad ones among them, and the bytes of all values.
Count = Callable[[int, int, int], None]
# Of records, by source partition and offset.
Reasons = Mapping[tuple[int, int], str]

RAW = pa.struct(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp_ms", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
    ]
)
PLACES = ("ROWPARTITION", "ROWOFFSET")
NULL_VALUE = "value is null"
RAW_DDL = "struct<topic:string,partition:int,offset:bigint,timestamp_ms:bigint,key:binary,value:binary>"
# A few records are not worth the arrays around them.
ROWS_MIN = 500
_UNLIKE_MAX = 3
_OPEN, _CLOSE, _NOT_ON_A_LINE = ord("{"), ord("}"), (b"\n", b"\r", b"\0")
_SIMPLE = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
}


def arrow_type(name: str) -> pa.DataType:
    """The Arrow type of a Spark SQL type name."""
    if name in _SIMPLE:
        return _SIMPLE[name]
    if name.startswith("decimal("):
        precision, scale = name[len("decimal(") : -1].split(",")
        return pa.decimal128(int(precision), int(scale))
    type_ = parse_type(name)
    inner = [arrow_type(part.spark) for part in type_.inner]
    match type_.kind:
        case "array":
            return pa.list_(*inner)
        case "map":
            return pa.map_(*inner)
        case "struct":
            return pa.struct(list(zip(type_.names, inner, strict=True)))
        case "bytes" | "binary":
            return pa.binary()
        case kind if kind in PHYSICAL:
            return _SIMPLE[PHYSICAL[kind]]
    raise InvalidConfig("column type has no decoder", type=name)


def decoded_ddl(source: Source) -> str:
    """Schema of the decoded rows as Spark DDL: the source's columns, ROWTIME, `__error`, `__raw`."""
    columns = [f"`{column.name}` {parse_type(column.type).ddl}" for column in source.columns]
    places = ["ROWPARTITION int", "ROWOFFSET bigint"] if source.places else []
    bounds = [f"{name} bigint" for name in bounds_of(source)]
    return ", ".join([*columns, "ROWTIME bigint", *bounds, *places, "__error string", f"__raw {RAW_DDL}"])


def bounds_of(source: Source) -> tuple[str, ...]:
    """The columns of a row's window, if the source is windowed."""
    return WINDOW_BOUNDS if source.window_type else ()


def decoder(
    source: Source, raw_if_null: tuple[str, ...] | None, count: Count, refused: Reasons | None = None
) -> Decoder:
    """A function from blocks of records, as `records.py` says, to `decoded_ddl` rows.

    `__raw` holds the record as it was read wherever it may have to become a dead letter: on an error, and where one
    of the columns `raw_if_null` is null. With None it is held for every row. `count` is given the records and the bad
    ones of every block. Records of `refused`, by partition and offset, are bad for the reason given there.
    """
    fields = _Fields(source)
    names = [column.name for column in source.columns]
    bounds = bounds_of(source)
    times = row_times(source)
    read_keys = _key_decoder(source)

    def decode(blocks: Iterable[Records]) -> Iterator[pa.RecordBatch]:
        for records in blocks:
            record_values, kept, reasons = _refuse(records, refused or {})
            values, errors = _decode_values(record_values, fields)
            columns = dict(zip(fields.names, values, strict=True))
            found, errors = read_keys(records, kept, errors)
            columns.update(found)
            time, errors = times(records.times, columns, errors)
            errors = errors if reasons is None else pc.coalesce(reasons, errors)
            count(len(records), len(errors) - errors.null_count, records.values.nbytes)
            raw = _raw(source.topic, records, _needs_raw(columns, errors, raw_if_null))
            places = [partitions(records), records.offsets] if source.places else []
            yield pa.RecordBatch.from_arrays(
                [*(columns[n] for n in names), time, *(columns[n] for n in bounds), *places, errors, raw],
                names=[*names, "ROWTIME", *bounds, *PLACES[: len(places)], "__error", "__raw"],
            )

    return decode


def _refuse(records: Records, refused: Reasons) -> tuple[pa.Array, pa.Array | None, pa.Array | None]:
    """Values with nulls in place of what is refused, since not even the decoder may see it; which are kept, and why not.

    The last two are None where nothing is refused.
    """
    if not refused:
        return records.values, None, None
    reasons = pa.array([refused.get((records.partition, at)) for at in records.offsets.to_pylist()], pa.string())
    kept = reasons.is_null()
    return _only(records.values, kept), kept, reasons


def with_columns(decode: Decoder, extra: Mapping[str, Callable[[Records], pa.Array]]) -> Decoder:
    """The decoder with more columns of the records at the end, by name."""

    def run(blocks: Iterable[Records]) -> Iterator[pa.RecordBatch]:
        for records in blocks:
            for rows in decode([records]):
                columns = [*rows.columns, *(column_of(records) for column_of in extra.values())]
                yield pa.RecordBatch.from_arrays(columns, names=[*rows.schema.names, *extra])

    return run


def _raw(topic: str, records: Records, wanted: pa.BooleanArray) -> pa.Array:
    """The records as they were read where they are wanted, which is mostly nowhere."""
    if not wanted.true_count:
        return pa.nulls(len(records), RAW)
    columns = [
        pa.repeat(pa.scalar(topic), len(records)),
        partitions(records),
        records.offsets,
        records.times,
        records.keys,
        records.values,
    ]
    return pa.StructArray.from_arrays(
        [_only(column, wanted) for column in columns], fields=list(RAW), mask=pc.invert(wanted)
    )


def _only(column: pa.Array, wanted: pa.BooleanArray) -> pa.Array:
    return pc.if_else(wanted, column, pa.scalar(None, column.type))


def _needs_raw(columns: dict[str, pa.Array], errors: pa.Array, raw_if_null: tuple[str, ...] | None) -> pa.BooleanArray:
    wanted = errors.is_valid()
    if raw_if_null is None:
        return pc.or_(wanted, pa.scalar(True))
    for name in raw_if_null:
        wanted = pc.or_(wanted, columns[name].is_null())
    return wanted


class _Fields:
    """The value columns of a source and the JSON names under which each may come."""

    def __init__(self, source: Source) -> None:
        self.columns = [column for column in source.columns if not column.key]
        self.read = value_reader(source, self.columns)
        self.names = [column.name for column in self.columns]
        self.types = [arrow_type(column.type) for column in self.columns]
        taken: set[str] = set()
        self.spellings: list[list[str]] = []
        for column in self.columns:
            spellings = dict.fromkeys([column.field, column.field.lower(), column.field.upper()])
            self.spellings.append([name for name in spellings if name not in taken])
            taken.update(spellings)
        simple = all(pa.types.is_primitive(kind) or kind == pa.string() for kind in self.types)
        self.by_arrow = source.value_format == "json" and source.wrapped and simple
        self._parse = self._options(self.spellings, others="ignore")
        # A column of a name that no value has costs as much as a number: so blocks are taken to have the first
        # spellings and no field beside them, until one has.
        self._plain = all(self.spellings)
        self._parse_plain = self._options([names[:1] for names in self.spellings], others="error")
        self._first = {names[0]: kind for names, kind in zip(self.spellings, self.types, strict=True) if names}
        self._unlike = 0 if self._plain else _UNLIKE_MAX

    def _options(self, spellings: list[list[str]], *, others: Literal["ignore", "error"]) -> paj.ParseOptions:
        """For fields of these names; what becomes of fields of other names."""
        schema = pa.schema([(name, kind) for names, kind in zip(spellings, self.types, strict=True) for name in names])
        return paj.ParseOptions(explicit_schema=schema, newlines_in_values=False, unexpected_field_behavior=others)

    def shaped(self, values: pa.BinaryArray) -> tuple[list[pa.Array], Rows] | None:
        """One array a column of the values that are of one shape, and which are not.

        None if most are not; they are taken not to be when three blocks were not.
        """
        if len(values) < ROWS_MIN or self._unlike >= _UNLIKE_MAX:
            return None
        # Imports Numba, which few records do not need.
        from pipelines.engine.jsonshape import columns_of, shape_of

        # The first may be the one that has null for a text.
        shapes = (shape_of(values[row].as_py(), self._first) for row in (0, len(values) // 2))
        shape = next((shape for shape in shapes if shape is not None), None)
        found = None if shape is None else columns_of(values, shape)
        if found is None:
            self._unlike += 1
            return None
        self._unlike = 0
        count = len(values) - len(found.others)
        columns = [found.columns.get(name, pa.nulls(count, kind)) for name, kind in self._first.items()]
        return columns, found.others

    def parse(self, text: bytes) -> pa.Table:
        """Rows of newline-separated objects. Raises ArrowInvalid for anything else."""
        if any(pa.types.is_decimal(kind) for kind in self.types):
            return self._parse_exactly(text)
        read = paj.ReadOptions(use_threads=False, block_size=max(len(text) + 1, 1024))
        if self._plain:
            try:
                return paj.read_json(pa.BufferReader(text), read_options=read, parse_options=self._parse_plain)
            except pa.ArrowInvalid:
                # Other fields, or an error that comes again.
                pass
        table = paj.read_json(pa.BufferReader(text), read_options=read, parse_options=self._parse)
        self._plain = False
        return table

    def _parse_exactly(self, text: bytes) -> pa.Table:
        """The same by Python's own reader, which keeps every digit: Arrow's takes decimals from JSON strings alone."""
        try:
            rows = [json.loads(line, parse_float=Decimal, object_pairs_hook=fields_once) for line in text.split(b"\n")]
            columns = {
                name: pa.array([_exact(row.get(name), kind) for row in rows], kind)
                for names, kind in zip(self.spellings, self.types, strict=True)
                for name in names
            }
        except (ValueError, TypeError, ArithmeticError, AttributeError, RecursionError) as error:
            raise pa.ArrowInvalid(str(error)) from error
        return pa.table(columns)

    def pick(self, table: pa.Table) -> list[pa.Array]:
        """One array a column: the first spelling that a row has."""
        picked = []
        for names, kind in zip(self.spellings, self.types, strict=True):
            arrays = [table.column(name) for name in names if name in table.column_names]
            present = [array for array in arrays if array.null_count < len(array)] or arrays[:1]
            merged = pc.coalesce(*present) if len(present) > 1 else present[0]
            picked.append(pa.concat_arrays(merged.chunks) if merged.num_chunks else pa.array([], kind))
        return picked


def _exact(value: object, kind: pa.DataType) -> object:
    """The value as the column's type takes it, as strictly as Arrow's reader. Raises ValueError."""
    if value is None:
        return None
    number = isinstance(value, int | Decimal) and not isinstance(value, bool)
    if pa.types.is_decimal(kind) and (number or isinstance(value, str)):
        return Decimal(value)  # type: ignore[arg-type]
    if pa.types.is_floating(kind) and number:
        return float(value)  # type: ignore[arg-type]
    fits = (
        (pa.types.is_integer(kind) and number and isinstance(value, int))
        or (pa.types.is_boolean(kind) and isinstance(value, bool))
        or (pa.types.is_string(kind) and isinstance(value, str))
    )
    if not fits:
        raise ValueError(f"{type(value).__name__} is no {kind}")
    return value


def _decode_values(values: pa.BinaryArray, fields: _Fields) -> tuple[list[pa.Array], pa.Array]:
    """Columns and errors, each of the length of `values`."""
    count = len(values)
    errors: dict[int, str] = {}
    pieces: list[list[pa.Array]] = []
    if values.null_count == 0:
        _decode_block(values, 0, fields, pieces, errors)
    else:
        raws = values.to_pylist()
        start = 0
        for row, raw in enumerate([*raws, None]):
            if raw is None:
                if row > start:
                    _decode_block(values.slice(start, row - start), start, fields, pieces, errors)
                if row < count:
                    errors[row] = NULL_VALUE
                    pieces.append([pa.nulls(1, kind) for kind in fields.types])
                start = row + 1
    columns = (
        [pa.concat_arrays([piece[i] for piece in pieces]) for i in range(len(fields.types))]
        if pieces
        else [pa.array([], kind) for kind in fields.types]
    )
    if not errors:
        return columns, pa.nulls(count, pa.string())
    return columns, pa.array([errors.get(row) for row in range(count)], pa.string())


def _decode_block(
    values: pa.BinaryArray, first: int, fields: _Fields, pieces: list[list[pa.Array]], errors: dict[int, str]
) -> None:
    """Append the block's columns to `pieces`; row numbers of `errors` begin at `first`."""
    count = len(values)
    if count == 0:
        return
    if not fields.by_arrow:
        _decode_singly(values, first, fields, pieces, errors)
        return
    shaped = fields.shaped(values)
    if shaped is not None:
        columns, others = shaped
        pieces.append(_with_others(columns, values, others, first, fields, errors) if len(others) else columns)
        return
    reason = "value is not a JSON object"
    text = _joined(values)
    if text is not None:
        try:
            table = fields.parse(text)
            if table.num_rows == count:
                pieces.append(fields.pick(table))
                return
        except pa.ArrowInvalid as error:
            reason = f"value does not fit the columns: {str(error).splitlines()[0]}"
    if count == 1:
        _decode_singly(values, first, fields, pieces, errors, reason)
        return
    half = count // 2
    _decode_block(values.slice(0, half), first, fields, pieces, errors)
    _decode_block(values.slice(half), first + half, fields, pieces, errors)


def _with_others(
    columns: list[pa.Array], values: pa.BinaryArray, others: Rows, first: int, fields: _Fields, errors: dict[int, str]
) -> list[pa.Array]:
    """The columns with those values at their places that are decoded in another way; fewer than half are."""
    pieces: list[list[pa.Array]] = []
    reasons: dict[int, str] = {}
    _decode_block(values.take(pa.array(others)), 0, fields, pieces, reasons)
    errors.update({first + int(others[row]): reason for row, reason in reasons.items()})
    places = np.empty(len(values), np.int64)
    places[np.delete(np.arange(len(values)), others)] = np.arange(len(values) - len(others))
    places[others] = np.arange(len(values) - len(others), len(values))
    order = pa.array(places)
    return [
        pa.concat_arrays([column, *(piece[number] for piece in pieces)]).take(order)
        for number, column in enumerate(columns)
    ]


def _decode_singly(
    values: pa.BinaryArray,
    first: int,
    fields: _Fields,
    pieces: list[list[pa.Array]],
    errors: dict[int, str],
    reason: str = "",
) -> None:
    """The same, record by record. `reason` is what Arrow's reader said of the one record, if it was asked."""
    rows = []
    for row, raw in enumerate(values.to_pylist()):
        try:
            rows.append(fields.read(raw))
        except (ValueError, ArithmeticError, csv.Error, RecursionError) as error:
            errors[first + row] = reason or f"value does not fit the columns: {error}"
            rows.append([None] * len(fields.types))
    pieces.append([pa.array([row[i] for row in rows], kind) for i, kind in enumerate(fields.types)])


def _joined(values: pa.BinaryArray) -> bytes | None:
    """The values as lines; None if some value cannot be one object on one line."""
    if not _one_object_each(values):
        if not _is_utf8(_lines(values)):
            return None
        # Outside of strings a line break is white space, and inside of them JSON forbids it.
        texts = pc.utf8_trim_whitespace(pc.replace_substring_regex(values.cast(pa.string()), r"[\n\r]", " "))
        values = texts.cast(pa.binary())
        if not _one_object_each(values):
            return None
    text = _lines(values)
    return text if text.isascii() or _is_utf8(text) else None


def _lines(values: pa.BinaryArray) -> bytes:
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


KeyDecoder = Callable[[Records, pa.Array | None, pa.Array], tuple[dict[str, pa.Array], pa.Array]]


def _key_decoder(source: Source) -> KeyDecoder:
    """A function from records, which are kept (None: all) and errors to the KEY columns by name and the errors with theirs."""
    keys = [column for column in source.columns if column.key]
    types = [arrow_type(column.type) for column in keys]
    if not keys:
        return lambda _records, _kept, errors: ({}, errors)
    read = _windowed(key_reader(source, keys), source) if source.window_type else key_reader(source, keys)
    names = [*(key.name for key in keys), *bounds_of(source)]
    types += [pa.int64()] * (len(names) - len(keys))
    nothing = [None] * len(names)

    def decode(records: Records, kept: pa.Array | None, errors: pa.Array) -> tuple[dict[str, pa.Array], pa.Array]:
        raws = records.keys if kept is None else _only(records.keys, kept)
        column = key_column(raws, source.key_format, keys[0].type) if len(names) == 1 else None
        if column is not None:
            return {names[0]: column}, errors
        rows, reasons = [], errors.to_pylist()
        for row, raw in enumerate(raws.to_pylist()):
            try:
                rows.append(nothing if raw is None else read(raw))
            except (ValueError, ArithmeticError, csv.Error, RecursionError) as error:
                reasons[row] = reasons[row] or f"key does not fit column {keys[0].name}: {error}"
                rows.append(nothing)
        columns = {name: pa.array([row[i] for row in rows], types[i]) for i, name in enumerate(names)}
        return columns, pa.array(reasons, pa.string())

    return decode


def _windowed(read: Reader, source: Source) -> Reader:
    """Reads a key that ends with its window's bounds: the columns, then start and end."""

    def parts(raw: bytes) -> Row:
        key, start, end = split_key(raw, source)
        return [*read(key), start, end]

    return parts


Times = Callable[[pa.Array, dict[str, pa.Array], pa.Array], tuple[pa.Array, pa.Array]]


def row_times(source: Source) -> Times:
    """A function from the records' times, columns and errors to ROWTIME and the errors with those of the times."""
    if source.timestamp is None:
        return lambda times, _, errors: (times, errors)
    name = source.timestamp
    read = time_reader(source.timestamp_format)

    def take(times: pa.Array, columns: dict[str, pa.Array], errors: pa.Array) -> tuple[pa.Array, pa.Array]:
        if source.timestamp_format is None and pa.types.is_integer(columns[name].type):
            given, wanted = columns[name].cast(pa.int64()), errors.is_null()
            if pc.and_(wanted, pc.greater_equal(given, 0)).true_count == wanted.true_count:
                return pc.if_else(wanted, given, times), errors
        found, reasons = times.to_pylist(), errors.to_pylist()
        for row, value in enumerate(columns[name].to_pylist()):
            if reasons[row] is not None:
                continue
            try:
                found[row] = read(value)
            except ValueError as error:
                reasons[row] = f"timestamp column {name} holds no time: {error}"
        return pa.array(found, pa.int64()), pa.array(reasons, pa.string())

    return take
