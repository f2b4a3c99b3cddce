"""Records and entries column by column: what loading a changelog works on, since single Python objects cost more.

A column of bytes is an Arrow array; null is None, a deletion among values. Made while the client's objects are still in
the processor's cache, and worked on as a whole from there: sorting, taking and stamping a million rows follow no pointers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statestore.layouts import timestamped

# Records to produce. Their times are CreateTimes in ms since the epoch.
RECORDS = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("time_ms", pa.int64())])
Timed = tuple[bytes | None, bytes | None, int]
Headers = tuple[tuple[str, bytes | None], ...]
_SLICE = 1_000


@dataclass(frozen=True)
class Entries:
    """Keys and values of one space, in the order in which they were written."""

    keys: pa.LargeBinaryArray
    values: pa.LargeBinaryArray

    def taken(self, rows: npt.NDArray[np.int64]) -> Entries:
        """These rows, in this order."""
        indices = pa.array(rows)
        return Entries(self.keys.take(indices), self.values.take(indices))

    def slices(self) -> Iterator[tuple[list[bytes], list[bytes | None]]]:
        """Lists of some rows at a time, few enough to stay in the processor's cache."""
        for start in range(0, len(self.keys), _SLICE):
            yield self.keys.slice(start, _SLICE).to_pylist(), self.values.slice(start, _SLICE).to_pylist()


@dataclass(frozen=True)
class Columns:
    """Committed records.

    times_ms: since the epoch.
    headers: of those records that have any, in their order.
    end: the offset after the last record.
    """

    keys: pa.LargeBinaryArray
    values: pa.LargeBinaryArray
    times_ms: npt.NDArray[np.int64]
    end: int
    headers: tuple[Headers, ...] = ()

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def size(self) -> int:
        """Bytes of keys and values, bookkeeping included."""
        size: int = self.keys.nbytes + self.values.nbytes
        return size

    @classmethod
    def of(
        cls,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        times_ms: Sequence[int],
        end: int,
        headers: tuple[Headers, ...] = (),
    ) -> Columns:
        """Of lists of the same length."""
        return cls(column(keys), column(values), np.array(times_ms, np.int64), end, headers)

    @classmethod
    def joined(cls, chunks: Sequence[Columns]) -> Columns:
        """One after the other; at least one."""
        return cls(
            pa.concat_arrays([chunk.keys for chunk in chunks]),
            pa.concat_arrays([chunk.values for chunk in chunks]),
            np.concatenate([chunk.times_ms for chunk in chunks]),
            chunks[-1].end,
            tuple(headers for chunk in chunks for headers in chunk.headers),
        )

    def with_keys(self) -> Columns:
        """Without the records that have no key."""
        if not self.keys.null_count:
            return self
        kept = self.keys.is_valid()
        return Columns(
            self.keys.filter(kept),
            self.values.filter(kept),
            self.times_ms[kept.to_numpy(False)],
            self.end,
            self.headers,
        )

    def stamped(self) -> pa.LargeBinaryArray:
        """The values, each after its time, as `layouts.timestamped` stores them."""
        count = len(self.keys)
        ends = np.arange(0, timestamped.SIZE * (count + 1), timestamped.SIZE)
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(self.times_ms.astype(">i8"))]
        times = pa.Array.from_buffers(pa.large_binary(), count, buffers)
        return pc.binary_join_element_wise(times, self.values, pa.scalar(b"", pa.large_binary()))


def column(items: Sequence[bytes | None]) -> pa.LargeBinaryArray:
    """A list as a column."""
    if None in items:
        return pa.array(items, pa.large_binary())
    # Joined by hand: Arrow's builder looks at each object's type.
    ends = np.fromiter(accumulate(map(len, items), initial=0), np.int64, len(items) + 1)  # type: ignore[arg-type]
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(items))]  # type: ignore[arg-type]
    return pa.Array.from_buffers(pa.large_binary(), len(items), buffers)


def integers(keys: pa.LargeBinaryArray, start: int, stop: int | None) -> npt.NDArray[Any]:
    """The 8 bytes of every key between two places, counted from its end, as big-endian integers."""
    sliced = pc.binary_slice(keys, start, stop)
    if not len(sliced):
        return np.zeros(0, ">i8")
    return np.frombuffer(sliced.buffers()[2], ">i8", len(sliced))


def records_of(timed: Iterable[Timed]) -> pa.RecordBatch:
    """Records one by one as columns of `RECORDS`."""
    rows = [dict(zip(RECORDS.names, record, strict=True)) for record in timed]
    return pa.RecordBatch.from_pylist(rows, schema=RECORDS)
