"""Decode: Kafka records to rows, or to rows that say why a record is no row. Runs before the shuffle.

values   `blockvalues.py`, a block at a time; of JSON `jsonfields.py` and `jsonshape.py`, single ones `values.py`
         what one decodes to depends on the record alone
keys     `keycolumns.py`, single ones `values.py`
times    the record's, or a column's
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.engine.arrowtypes import arrow_type
from pipelines.engine.blockvalues import NULL_VALUE, BlockValues
from pipelines.engine.keycolumns import key_column
from pipelines.engine.records import Records, partitions
from pipelines.engine.values import Reader, Row, key_reader
from pipelines.engine.windowed_keys import split_key
from pipelines.plan import Source
from pipelines.sql.names import WINDOW_BOUNDS
from pipelines.sql.time_pattern import time_reader
from pipelines.sql.types import parse_type

Decoder = Callable[[Iterable[Records]], Iterator[pa.RecordBatch]]
# Is given the records of a block, the bad ones among them, how many have a value, and the bytes of all values.
Count = Callable[[int, int, int, int], None]
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
RAW_DDL = "struct<topic:string,partition:int,offset:bigint,timestamp_ms:bigint,key:binary,value:binary>"


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
    value_columns = BlockValues(source)
    names = [column.name for column in source.columns]
    bounds = bounds_of(source)
    times = row_times(source)
    read_keys = _key_decoder(source)

    def decode(blocks: Iterable[Records]) -> Iterator[pa.RecordBatch]:
        for records in blocks:
            record_values, kept, reasons = _refuse(records, refused or {})
            values, errors = value_columns.decode(record_values)
            columns = dict(zip(value_columns.names, values, strict=True))
            found, errors = read_keys(records, kept, errors)
            columns.update(found)
            time, errors = times(records.times, columns, errors)
            errors = errors if reasons is None else pc.coalesce(reasons, errors)
            has_value = len(records) - records.values.null_count
            count(len(records), len(errors) - errors.null_count, has_value, _bytes_of(records.values))
            raw = _raw(source.topic, records, _needs_raw(columns, errors, raw_if_null))
            places = [partitions(records), records.offsets] if source.places else []
            yield pa.RecordBatch.from_arrays(
                [*(columns[n] for n in names), time, *(columns[n] for n in bounds), *places, errors, raw],
                names=[*names, "ROWTIME", *bounds, *PLACES[: len(places)], "__error", "__raw"],
            )

    return decode


def _bytes_of(values: pa.BinaryArray) -> int:
    """Of the values alone: what Arrow has besides for each record would make few values among many nulls look large."""
    return pc.sum(pc.binary_length(values)).as_py() or 0


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
            except (ValueError, ArithmeticError, csv.Error) as error:
                if reasons[row] in (None, NULL_VALUE):
                    reasons[row] = f"key does not fit column {keys[0].name}: {error}"
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


def _own_times(times: pa.Array, _columns: dict[str, pa.Array], errors: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Those of the records. Brokers take one without, which has -1; its row would be in no window and no time's order."""
    known = pc.greater_equal(times, 0)
    if known.true_count == len(times):
        return times, errors
    return times, pc.coalesce(errors, pc.if_else(known, None, pa.scalar("record has no time", pa.string())))


def row_times(source: Source) -> Times:
    """A function from the records' times, columns and errors to ROWTIME and the errors with those of the times."""
    if source.timestamp is None:
        return _own_times
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
