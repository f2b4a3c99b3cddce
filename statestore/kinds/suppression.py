"""A buffer of changes in the order of their buffer times (KIP-328), one slot a key.

A later change of a buffered key takes the slot, and so the place in time, of the earlier one. The store's space has
the key and, as value, the bytes that the changelog gets (`buffered`); the order is kept in memory and made anew when
the store is opened, so it follows every rollback. The changelog is written when caches are flushed, one record a key
that has changed since: what is in the buffer, or a tombstone for what has left it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from sortedcontainers import SortedDict

from statestore.context import ChangelogRecord, RecordContext
from statestore.kinds.base import Kind
from statestore.kinds.buffered import FORMAT_HEADERS, Buffered, Change, restored
from statestore.spaces.base import Changes
from statestore.store import TransactionalMechanism

EMPTY_MIN_TIME: Final = 2**63 - 1
"""The least buffer time of an empty buffer."""


@dataclass(frozen=True)
class Eviction:
    """A change that leaves the buffer, with the record it came from."""

    key: bytes
    change: Change
    context: RecordContext


@dataclass(frozen=True)
class PriorValue:
    """What downstream has for a buffered key. Its time is not known."""

    value: bytes | None
    timestamp_ms: int = -1


class SuppressionBuffer(Kind):
    """Changes by buffer time. In memory unless told otherwise: the changelog brings it back."""

    layout: ClassVar[str] = "suppression/3"

    def __init__(
        self,
        name: str,
        *,
        mechanism: TransactionalMechanism | None = TransactionalMechanism.INDEXED_BATCH,
        persistent: bool = False,
        logged: bool = True,
    ) -> None:
        super().__init__(name, mechanism=mechanism, persistent=persistent, logged=logged)
        self._clear()

    def _clear(self) -> None:
        self._times: dict[bytes, int] = {}
        self._ordered: SortedDict = SortedDict()
        self._dirty: dict[bytes, None] = {}
        self._size_bytes = 0

    def _opened(self) -> None:
        self._clear()
        for key, raw in self.transaction.scan(self._name):
            self._place(key, *_read(raw))

    def commit(self, offset: int | None) -> None:
        """Flush, then commit. With a Kafka transaction flush before it ends, so that the changelog is part of it."""
        self.flush_cache()
        super().commit(offset)

    def close(self) -> None:
        super().close()
        self._clear()

    @property
    def num_records(self) -> int:
        """Keys in the buffer."""
        return len(self._times)

    @property
    def size_bytes(self) -> int:
        """Keys, values and contexts in the buffer, 8 bytes a key for its time."""
        return self._size_bytes

    @property
    def min_timestamp_ms(self) -> int:
        """The least buffer time; `EMPTY_MIN_TIME` if there is none."""
        return self._ordered.peekitem(0)[0][0] if self._ordered else EMPTY_MIN_TIME

    def put(self, buffer_time_ms: int, key: bytes, change: Change, context: RecordContext) -> None:
        """Hold a change back. A key that is there already keeps its buffer time and its prior value."""
        if change is None or context is None:
            raise TypeError("a change and its record are needed")
        buffered = self._buffered(key)
        prior = change.old if buffered is None else buffered.prior
        self._hold(buffer_time_ms, key, Buffered(change, prior, context))
        self._dirty[key] = None

    def observe(self, time_ms: int) -> int:
        """The stream time when a record of this time has come. It goes back with a rollback."""
        self._observe(time_ms)
        return self._stream_time_ms

    def prior_value(self, key: bytes) -> PriorValue | None:
        """What downstream has for a buffered key; None if the key is not in the buffer."""
        buffered = self._buffered(key)
        return None if buffered is None else PriorValue(buffered.prior)

    def evict_while(self, predicate: Callable[[], bool], callback: Callable[[Eviction], None]) -> None:
        """Give the changes out, oldest first, as long as `predicate` holds.

        The predicate is asked before each. During the callback the change still counts as buffered.
        """
        while self._ordered and predicate():
            (time, key), buffered = self._ordered.peekitem(0)
            callback(Eviction(key, buffered.change, buffered.context))
            self._remove(time, key)
            self._dirty[key] = None

    def flush_cache(self) -> bool:
        """Write the changelog: each key that has changed since the last time, once. Gives whether there was one."""
        found = bool(self._dirty)
        for key in self._dirty if self._logged else ():
            buffered = self._buffered(key)
            if buffered is None:
                self.context.log(ChangelogRecord(self._name, key, None, self._record_time_ms()))
            else:
                value = buffered.to_bytes(self._times[key])
                record = ChangelogRecord(self._name, key, value, buffered.context.timestamp_ms, FORMAT_HEADERS)
                self.context.log(record)
        self._dirty.clear()
        return found

    def _restored(self, records: Sequence[ChangelogRecord]) -> Mapping[str, Changes]:
        changes: dict[bytes, bytes | None] = {}
        for record in records:
            time = self._times.get(record.key)
            if record.value is not None:
                self._restore_one(record, record.value)
                changes[record.key] = self._ordered[self._times[record.key], record.key].to_bytes(
                    self._times[record.key]
                )
            elif time is not None:
                self._forget(time, record.key)
                changes[record.key] = None
        return {self._name: changes.items()}

    def _restore_one(self, record: ChangelogRecord, value: bytes) -> None:
        own_context = RecordContext(self._name, -1, -1, record.timestamp_ms, record.headers)
        buffered = self._buffered(record.key)
        time, change = restored(value, record.headers, own_context=own_context, buffered=buffered)
        self._place(record.key, self._times.get(record.key, time), change)

    def _buffered(self, key: bytes) -> Buffered | None:
        time = self._times.get(key)
        return None if time is None else self._ordered[time, key]

    def _hold(self, buffer_time_ms: int, key: bytes, buffered: Buffered) -> None:
        time = self._times.get(key, buffer_time_ms)
        self.transaction.put(self._name, key, buffered.to_bytes(time))
        self._place(key, time, buffered)

    def _place(self, key: bytes, time: int, buffered: Buffered) -> None:
        known = self._ordered.get((time, key))
        if known is not None:
            self._size_bytes -= _size(key, known)
        self._times[key] = time
        self._ordered[time, key] = buffered
        self._size_bytes += _size(key, buffered)

    def _remove(self, time: int, key: bytes) -> None:
        self.transaction.put(self._name, key, None)
        self._forget(time, key)

    def _forget(self, time: int, key: bytes) -> None:
        self._size_bytes -= _size(key, self._ordered.pop((time, key)))
        del self._times[key]


def _size(key: bytes, buffered: Buffered) -> int:
    return 8 + len(key) + buffered.size_bytes


def _read(raw: bytes) -> tuple[int, Buffered]:
    return restored(raw, FORMAT_HEADERS, own_context=RecordContext("", -1, -1, -1), buffered=None)
