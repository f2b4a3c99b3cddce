"""A sorted map from bytes to bytes, plain or with a time in front of each value.

Plain: one space of the store's name, values as they are given; the changelog has key and value, and the input
record's time. Timestamped: values are an 8-byte big-endian time in ms and the value; the changelog has the value alone
and that time as the record's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property

from statestore.iterator import StoreIterator, in_pieces
from statestore.kinds.base import Kind, require_key, require_keys
from statestore.spaces.base import ChangeColumns
from statestore.store import Isolation, KeyValueStore


class KeyValue(Kind, KeyValueStore):
    """Keys and values are bytes; None deletes; an empty value is a value."""

    layout = "key-value/1"
    loads = True

    @cached_property
    def _space(self) -> str:
        return self._name

    def get(self, key: bytes, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> bytes | None:
        if type(key) is not bytes:
            require_key(key)
        # A call for each of its parts would be a tenth of a get.
        transaction = self._transaction
        if transaction is None:
            transaction = self.transaction
        return transaction.get(self._space, key, isolation)

    def get_many(self, keys: Iterable[bytes], isolation: Isolation = Isolation.READ_UNCOMMITTED) -> list[bytes | None]:
        wanted = list(keys)
        require_keys(wanted)
        return self.transaction.get_many(self._space, wanted, isolation)

    def put(self, key: bytes, value: bytes | None) -> None:
        require_key(key)
        self._write(key, value)
        self._advance_position()
        self._log_change(key, value)

    def put_all(self, entries: Iterable[tuple[bytes, bytes | None]]) -> None:
        changes = ChangeColumns.of(entries)
        require_keys(changes.keys)
        self._write_all(changes)
        self._advance_position()
        if self._logged:
            for key, value in changes:
                self._log_change(key, value)

    def scan(
        self,
        *,
        lower: bytes | None,
        upper: bytes | None,
        upper_inclusive: bool = True,
        reverse: bool = False,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
    ) -> StoreIterator[bytes, bytes]:
        if lower is not None and upper is not None and lower > upper:
            return self._iterate(iter(()))
        entries = self._entries(lower, upper, upper_inclusive=upper_inclusive, reverse=reverse, isolation=isolation)
        found = self._iterate(in_pieces(entries))
        return found if self._persistent or self.transactional() else _Live(self, found)

    def approximate_num_entries(self) -> int:
        return self.transaction.base.estimate(self._space)

    # The layout.

    def _write(self, key: bytes, value: bytes | None) -> None:
        self.transaction.put(self._space, key, value)

    def _write_all(self, changes: ChangeColumns) -> None:
        self.transaction.put_all(self._space, changes)

    def _entries(
        self, lower: bytes | None, upper: bytes | None, *, upper_inclusive: bool, reverse: bool, isolation: Isolation
    ) -> Iterator[tuple[bytes, bytes]]:
        return self.transaction.scan(
            self._space,
            lower=lower,
            upper=upper,
            upper_inclusive=upper_inclusive,
            reverse=reverse,
            isolation=isolation,
        )

    def _log_change(self, key: bytes, value: bytes | None) -> None:
        self._log(key, value, self._record_time_ms())


class _Live(StoreIterator[bytes, bytes]):
    """Skips what was deleted since: a store in memory without transactions has no older view to keep to."""

    def __init__(self, store: KeyValue, entries: StoreIterator[bytes, bytes]) -> None:
        super().__init__(iter(()))
        self._store = store
        self._beneath = entries

    def _look(self) -> tuple[bytes, bytes] | None:
        while (entry := self._beneath._look()) is not None:
            if self._store.transaction.get(self._store._space, entry[0]) is not None:
                return entry
            next(self._beneath)
        return None

    def __iter__(self) -> _Live:
        return self

    def __next__(self) -> tuple[bytes, bytes]:
        self._look()
        return next(self._beneath)

    def close(self) -> None:
        self._beneath.close()
