"""What a decoder sees of source records: columns of one run of one partition, wherever the records come from.

A column is made when it is first asked for: most queries never see a key, and offsets matter where order does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa


class Records(Protocol):
    """Records in the order of their offsets. Every array has `len` entries."""

    def __len__(self) -> int: ...

    @property
    def partition(self) -> int:
        """The source partition of all of them."""
        ...

    @property
    def keys(self) -> pa.BinaryArray:
        """The keys, null where a record has none."""
        ...

    @property
    def values(self) -> pa.BinaryArray:
        """The values, null for tombstones."""
        ...

    @property
    def offsets(self) -> pa.Int64Array:
        """Each record's offset in its partition."""
        ...

    @property
    def times(self) -> pa.Int64Array:
        """Each record's time in ms since the epoch."""
        ...


@dataclass(frozen=True)
class GivenRecords:
    """Records of columns that are there: of an archive, or in tests."""

    partition: int
    keys: pa.BinaryArray
    values: pa.BinaryArray
    offsets: pa.Int64Array
    times: pa.Int64Array

    def __len__(self) -> int:
        return len(self.offsets)


def partitions(records: Records) -> pa.Int32Array:
    """The partition once for each record."""
    return pa.repeat(pa.scalar(records.partition, pa.int32()), len(records))


def keys(records: Records) -> pa.BinaryArray:
    """The keys, as a column function."""
    return records.keys


def offsets(records: Records) -> pa.Int64Array:
    """The offsets, as a column function."""
    return records.offsets
