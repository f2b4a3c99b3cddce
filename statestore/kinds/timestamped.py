"""A key-value store whose values begin with the time of their record, and its upgrade from one without.

The data is in the space `<store>.timestamped`. A store that was plain before has the space `<store>`, too; while that
holds anything, a read looks into both, the owner's reads of single keys move what they find, and writes leave the
plain copy behind. A moved value has the time -1: it is not known. Upgrading is part of the open transaction like any
write, and once the plain space is empty the next opening drops it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial
from threading import RLock

from statestore.columns import Columns, Entries, column
from statestore.context import ChangelogRecord
from statestore.kinds.key_value import KeyValue
from statestore.layouts.timestamped import UNKNOWN, pack, unpack
from statestore.overlay import merge
from statestore.spaces.base import ChangeColumns, Changes
from statestore.store import Isolation, KeyValueStore


class TimestampedKeyValue(KeyValue):
    """Values are given and stored as 8-byte big-endian time in ms and value."""

    layout = "timestamped-key-value/1"
    reads_layouts = frozenset({"key-value/1"})

    @cached_property
    def _space(self) -> str:
        return f"{self._name}.timestamped"

    def _opened(self) -> None:
        self._upgrading = self._name in self.transaction.spaces()
        if self._upgrading and next(self.transaction.scan(self._name), None) is None:
            self.transaction.drop(self._name)
            self._upgrading = False

    @cached_property
    def _moving(self) -> AbstractContextManager[object]:
        """A reader's thread may move a value, too: not in the middle of a write of the owner's, or of its commit."""
        return RLock()

    def commit(self, offset: int | None) -> None:
        with self._moving if self._upgrading else nullcontext():
            super().commit(offset)

    def rollback(self) -> None:
        with self._moving if self._upgrading else nullcontext():
            super().rollback()

    @property
    def upgrading(self) -> bool:
        """Whether there is plain data still."""
        return self._upgrading

    def get(self, key: bytes, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> bytes | None:
        if not self._upgrading:
            return super().get(key, isolation)
        with self._moving:
            found = super().get(key, isolation)
            plain = self.transaction.get(self._name, key, isolation) if found is None else None
            if plain is None:
                # A commit between the two may have moved it.
                return super().get(key, isolation) if found is None else found
            if isolation is Isolation.READ_UNCOMMITTED:
                self._write(key, pack(plain, UNKNOWN))
            return pack(plain, UNKNOWN)

    def get_many(self, keys: Iterable[bytes], isolation: Isolation = Isolation.READ_UNCOMMITTED) -> list[bytes | None]:
        if self._upgrading:
            return KeyValueStore.get_many(self, keys, isolation)
        return super().get_many(keys, isolation)

    def _write(self, key: bytes, value: bytes | None) -> None:
        with self._moving:
            super()._write(key, value)
            if self._upgrading:
                self.transaction.put(self._name, key, None)

    def _write_all(self, changes: ChangeColumns) -> None:
        with self._moving:
            super()._write_all(changes)
            if self._upgrading:
                self.transaction.put_all(self._name, [(key, None) for key, _ in changes])

    def _entries(
        self, lower: bytes | None, upper: bytes | None, *, upper_inclusive: bool, reverse: bool, isolation: Isolation
    ) -> Iterator[tuple[bytes, bytes]]:
        timestamped = partial(
            super()._entries, lower, upper, upper_inclusive=upper_inclusive, reverse=reverse, isolation=isolation
        )
        if not self._upgrading:
            return timestamped()

        def read(_stream_time_ms: int) -> Iterator[tuple[bytes, bytes]]:
            # The plain space first: what is moved in between is then seen twice, which the merge folds.
            plain = self.transaction.scan(
                self._name,
                lower=lower,
                upper=upper,
                upper_inclusive=upper_inclusive,
                reverse=reverse,
                isolation=isolation,
            )
            return merge(((key, pack(value, UNKNOWN)) for key, value in plain), timestamped(), reverse=reverse)

        return self._of_one_version(isolation, read)

    def approximate_num_entries(self) -> int:
        plain = self.transaction.base.estimate(self._name) if self._upgrading else 0
        return super().approximate_num_entries() + plain

    def _log_change(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self._log(key, None, self._record_time_ms())
        else:
            self._log(key, *unpack(value))

    def _loaded(self, records: Columns) -> Mapping[str, Entries]:
        changes = {self._space: Entries(records.keys, records.stamped())}
        if not self._upgrading:
            return changes
        return {**changes, self._name: Entries(records.keys, column([None] * len(records)))}

    def _restored(self, records: Sequence[ChangelogRecord]) -> Mapping[str, Changes]:
        changes = [
            (record.key, None if record.value is None else pack(record.value, record.timestamp_ms))
            for record in records
        ]
        if not self._upgrading:
            return {self._space: changes}
        return {self._space: changes, self._name: [(record.key, None) for record in records]}
