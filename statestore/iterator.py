"""What a range read gives: entries in order, with a look ahead, over a view that later writes do not change.

    with store.range(b"a", b"f") as entries:
        for key, value in entries: ...

The iterator ends like every iterator of Python. It must not outlive its store: after `close` of either, each further
step fails with `InvalidStateStore`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Generic, TypeVar

from statestore.errors import InvalidStateStore

K = TypeVar("K")
V = TypeVar("V")
K2 = TypeVar("K2")
V2 = TypeVar("V2")


def _always() -> bool:
    return True


class StoreIterator(Iterator[tuple[K, V]], Generic[K, V]):
    """(key, value) pairs. `is_open` tells whether the store still is.

    `ends_with_store`: a closed store ends the iterator instead of failing it, as Kafka Streams' windowed stores do.
    """

    def __init__(
        self,
        entries: Iterator[tuple[K, V]],
        is_open: Callable[[], bool] = _always,
        *,
        ends_with_store: bool = False,
    ) -> None:
        self._entries: Iterator[tuple[K, V]] | None = entries
        self._is_open = is_open
        self._ends_with_store = ends_with_store
        self._ahead: tuple[K, V] | None = None

    def __iter__(self) -> StoreIterator[K, V]:
        return self

    def __next__(self) -> tuple[K, V]:
        entries = self._entries
        if self._ahead is None and entries is not None and self._is_open():
            return next(entries)
        entry = self._look()
        if entry is None:
            raise StopIteration
        self._ahead = None
        return entry

    def has_next(self) -> bool:
        """Whether there is a further entry. Does not advance."""
        return self._look() is not None

    def peek_next_key(self) -> K:
        """The key of the next entry. Does not advance. Raises `LookupError` at the end."""
        entry = self._look()
        if entry is None:
            raise LookupError("iterator is at its end")
        return entry[0]

    def map(self, change: Callable[[K, V], tuple[K2, V2]]) -> StoreIterator[K2, V2]:
        """The same entries, changed one by one as they are taken. Closing either closes both."""
        return _Mapped(self, change)

    def close(self) -> None:
        """Release what the iterator holds. Twice is harmless."""
        self._entries = None
        self._ahead = None

    def __enter__(self) -> StoreIterator[K, V]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _look(self) -> tuple[K, V] | None:
        if self._entries is None:
            raise InvalidStateStore("iterator is closed")
        if not self._is_open():
            if self._ends_with_store:
                return None
            raise InvalidStateStore("store was closed under an iterator")
        if self._ahead is None:
            self._ahead = next(self._entries, None)
        return self._ahead


class _Mapped(StoreIterator[K2, V2], Generic[K, V, K2, V2]):
    """Looks through to the iterator beneath, so that a closed store shows at once."""

    def __init__(self, beneath: StoreIterator[K, V], change: Callable[[K, V], tuple[K2, V2]]) -> None:
        super().__init__(iter(()))
        self._beneath = beneath
        self._change = change

    def _look(self) -> tuple[K2, V2] | None:
        entry = self._beneath._look()
        return None if entry is None else self._change(*entry)

    def __next__(self) -> tuple[K2, V2]:
        return self._change(*next(self._beneath))

    def close(self) -> None:
        self._beneath.close()
