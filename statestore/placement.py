"""Where the entries of a task's store lie: all in one space, or a windowed store's in segments that expire.

A windowed store's keys are those of `layouts.window`, its segments those of `layouts.segments`, one space each, so
that expiry deletes files. Which task an entry belongs to is decided by its key without the window: a key's windows
are all of one task. The result topic has the key and the window's start, as ksqlDB serialises a windowed key.

A segment has expired when the task's stream time has gone past the retention of all that it can hold. The stream time
is committed with the batch, so every owner, and every replay, leaves the same segments out from the same batch on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import merge
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statestore.columns import Entries, integers
from statestore.config import StoreSpec
from statestore.layouts.segments import Segments, default_interval_ms
from statestore.murmur2 import partitions_of
from statestore.spaces.base import Change, ChangeColumns
from statestore.store import Entry, Isolation
from statestore.transactions.base import Transaction

_START, _SEQUENCE = 8, 4
_SUFFIX = _START + _SEQUENCE


class Readable(Protocol):
    """A database, or an open transaction at one isolation level."""

    def spaces(self) -> list[str]: ...

    def get_many(self, space: str, keys: list[bytes]) -> list[bytes | None]: ...

    def scan(self, space: str, *, lower: bytes | None = None, upper: bytes | None = None) -> Iterator[Entry]: ...


@dataclass(frozen=True)
class AtIsolation:
    """An open transaction as a reader at one isolation level sees it."""

    transaction: Transaction
    isolation: Isolation

    def spaces(self) -> list[str]:
        """Names of the store's spaces."""
        return self.transaction.spaces(self.isolation)

    def get_many(self, space: str, keys: list[bytes]) -> list[bytes | None]:
        """Values of the keys, in their order."""
        return self.transaction.get_many(space, keys, self.isolation)

    def scan(self, space: str, *, lower: bytes | None = None, upper: bytes | None = None) -> Iterator[Entry]:
        """Entries between two keys, both included."""
        return self.transaction.scan(space, lower=lower, upper=upper, isolation=self.isolation)


class Placement:
    """The rules for one store."""

    def __init__(self, store: StoreSpec) -> None:
        self._store = store.name
        self._segments: Segments | None = None
        if store.retention_ms is not None:
            self._segments = Segments(store.name, store.retention_ms, default_interval_ms(store.retention_ms))

    @property
    def windowed(self) -> bool:
        """Whether keys carry a window."""
        return self._segments is not None

    def owners(self, keys: pa.BinaryArray) -> pa.BinaryArray:
        """What the tasks of the keys are computed from."""
        return pc.binary_slice(keys, 0, -_SUFFIX) if self.windowed else keys

    def results(self, outputs: pa.RecordBatch, partitions: int) -> dict[int, pa.RecordBatch]:
        """The result topic's records by partition, in their order; under -1 what the client shall send by its key."""
        if not self.windowed or not len(outputs):
            return {-1: outputs}
        keys, values, times = outputs.columns
        owners = partitions_of(self.owners(keys), partitions)
        records = pa.RecordBatch.from_arrays(
            [pc.binary_slice(keys, 0, -_SEQUENCE), values, times], schema=outputs.schema
        )
        return {int(each): records.filter(pa.array(owners == each)) for each in np.unique(owners)}

    def space(self, key: bytes) -> str:
        """The space that has the key."""
        if self._segments is None:
            return self._store
        return self._segments.space(self._segments.number(_start(key)))

    def placed(self, changes: Iterable[Change]) -> dict[str, list[Change]]:
        """The changes by space."""
        if self._segments is None:
            return {self._store: list(changes)}
        found: dict[str, list[Change]] = {}
        for change in changes:
            found.setdefault(self.space(change[0]), []).append(change)
        return found

    def placed_columns(self, entries: Entries) -> dict[str, Entries]:
        """`placed` of columns."""
        if self._segments is None:
            return {self._store: entries}
        return self._segments.placed(entries, _starts(entries.keys))

    def placed_lists(self, changes: ChangeColumns, keys: pa.BinaryArray) -> dict[str, ChangeColumns]:
        """`placed` of a windowed store's changes in lists; `keys` are the same keys as a column."""
        assert self._segments is not None
        rows = self._segments.rows(_starts(keys))
        if len(rows) == 1:
            return dict.fromkeys(rows, changes)
        return {space: changes.taken(mine.tolist()) for space, mine in rows.items()}

    # Expiry.

    def live(self, keys: pa.BinaryArray, stream_time_ms: int) -> npt.NDArray[np.bool_]:
        """Whether each key's segment is kept at that stream time."""
        segments = self._segments
        if segments is None:
            return np.ones(len(keys), np.bool_)
        oldest_ms = segments.oldest_live(stream_time_ms) * segments.interval_ms
        live: npt.NDArray[np.bool_] = _starts(keys) >= oldest_ms
        return live

    def expired(self, spaces: list[str], stream_time_ms: int) -> list[str]:
        """Those of the spaces whose segment has expired, the oldest first."""
        segments = self._segments
        if segments is None:
            return []
        oldest = segments.oldest_live(stream_time_ms)
        return [segments.space(number) for number in segments.numbers(spaces) if number < oldest]

    # Reading.

    def spaces(self, known: list[str]) -> list[str]:
        """Those of the spaces that are the store's."""
        segments = self._segments
        return [self._store] if segments is None else [segments.space(number) for number in segments.numbers(known)]

    def get_many(self, source: Readable, keys: list[bytes]) -> list[bytes | None]:
        """Values of a few keys, in their order."""
        return [source.get_many(self.space(key), [key])[0] for key in keys]

    def states(self, source: Readable, keys: pa.BinaryArray) -> pa.BinaryArray:
        """Values of the keys, in their order, null where there is none."""

        def of(space: str, keys: pa.BinaryArray) -> pa.BinaryArray:
            return pa.array(source.get_many(space, keys.to_pylist()), pa.binary())

        if self._segments is None:
            return of(self._store, keys)
        rows = self._segments.rows(_starts(keys))
        if len(rows) == 1:
            return of(next(iter(rows)), keys)
        if not rows:
            return keys
        found = [of(space, keys.take(pa.array(mine))) for space, mine in rows.items()]
        order = np.concatenate(list(rows.values()))
        return pa.concat_arrays(found).take(pa.array(np.argsort(order)))

    def scan(
        self, source: Readable, *, lower: bytes | None = None, upper: bytes | None = None, stream_time_ms: int = -1
    ) -> Iterator[Entry]:
        """Entries between two stored keys, both included, in key order; without windows out of retention by then."""
        spaces = self.spaces(source.spaces())
        # Of those that have expired nothing is read, and some have been deleted entry by entry.
        dead = set() if stream_time_ms < 0 else set(self.expired(spaces, stream_time_ms))
        scans = [source.scan(space, lower=lower, upper=upper) for space in spaces if space not in dead]
        entries = scans[0] if len(scans) == 1 else merge(*scans, key=lambda entry: entry[0])
        if self._segments is None or stream_time_ms < 0:
            return entries
        readable = self._segments.readable_from(stream_time_ms)
        return (entry for entry in entries if _start(entry[0]) >= readable)


def _starts(keys: pa.BinaryArray) -> npt.NDArray[np.int64]:
    return integers(keys, -_SUFFIX, -_SEQUENCE).astype(np.int64)


def _start(key: bytes) -> int:
    return int.from_bytes(key[-_SUFFIX:-_SEQUENCE], "big")
