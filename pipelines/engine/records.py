"""A source's records as Spark hands them to Python: few and narrow columns, since handing costs as much as decoding.

The topic is the source's own and not repeated in every row; partition and offset are one number, the record's place:

    bits 48 to 62   partition
    bits 0 to 47    offset
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

_OFFSET_BITS = 48
COLUMNS = (
    "key",
    "value",
    f"shiftleft(CAST(partition AS BIGINT), {_OFFSET_BITS}) + `offset` AS place",
    "CAST(unix_millis(timestamp) AS BIGINT) AS time",
)
NAMES = ("key", "value", "place", "time")


def keys(records: pa.RecordBatch) -> pa.BinaryArray:
    """The keys, null where a record has none."""
    return records.column(0)


def values(records: pa.RecordBatch) -> pa.BinaryArray:
    """The values, null for tombstones."""
    return records.column(1)


def partitions(records: pa.RecordBatch) -> pa.Int32Array:
    """Each record's partition."""
    return pc.shift_right(records.column(2), _OFFSET_BITS).cast(pa.int32())


def offsets(records: pa.RecordBatch) -> pa.Int64Array:
    """Each record's offset in its partition."""
    return pc.bit_wise_and(records.column(2), (1 << _OFFSET_BITS) - 1)


def times(records: pa.RecordBatch) -> pa.Int64Array:
    """Each record's time in ms since the epoch."""
    return records.column(3)


def record_batch(
    keys: pa.Array, values: pa.Array, *, partitions: pa.Array, offsets: pa.Array, times: pa.Array
) -> pa.RecordBatch:
    """Records as Spark would hand them over, from arrays of the same length."""
    places = pc.add(pc.shift_left(partitions.cast(pa.int64()), _OFFSET_BITS), offsets)
    return pa.RecordBatch.from_arrays([keys, values, places, times], names=list(NAMES))
