"""What a range read gives: entries in order, with a look ahead, over a view that later writes do not change.

    with store.range(b"a", b"f") as entries:
        for key, value in entries: ...

The iterator ends like every iterator of Python. It must not outlive its store: after `close` of either, each further
step fails with `InvalidStateStore`.

Entries come in pieces, lists that are the iterator's own. A loop goes through them without a step of Python for each
entry; therefore closing empties the piece that is gone through, and the next step finds nothing left and looks why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain, islice, starmap
from operator import length_hint
from threading import Lock
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, cast
from weakref import ref

from statestore.errors import InvalidStateStore

K = TypeVar("K")
V = TypeVar("V")
K2 = TypeVar("K2")
V2 = TypeVar("V2")
T = TypeVar("T")

# Of a read the first piece, and how much larger each next one is.
_FIRST = 16
_GROWTH = 4
# The largest piece of `in_pieces`.
_MOST = 1024
_NOTHING: Iterator[Any] = iter(())


def piece_sizes(largest: int) -> Iterator[int]:
    """How many entries a read takes at a time: few at first, since most reads look for a few."""
    size = _FIRST
    while True:
        yield size
        size = min(_GROWTH * size, largest)


class Flat(chain[T]):
    """Entries one by one that are there in pieces: whoever wants pieces takes these instead of making new ones."""

    pieces: Iterator[list[T]]

    @classmethod
    def of(cls, pieces: Iterator[list[T]]) -> Self:
        """The entries of the pieces. Of a `Flat` either the entries are taken or its pieces."""
        flat = cast(Self, cls.from_iterable(pieces))
        flat.pieces = pieces
        return flat


def in_pieces(entries: Iterable[T]) -> Iterator[list[T]]:
    """The entries in lists of `piece_sizes`, or as they are read; nothing may have been taken of them."""
    return entries.pieces if isinstance(entries, Flat) else _cut_up(entries)


def _cut_up(entries: Iterable[T]) -> Iterator[list[T]]:
    rest = iter(entries)
    for size in piece_sizes(_MOST):
        piece = list(islice(rest, size))
        if not piece:
            return
        yield piece


class StoreIterator(Iterator[tuple[K, V]], Generic[K, V]):
    """(key, value) pairs.

    `ends_with_store`: a closed store ends the iterator instead of failing it, as Kafka Streams' windowed stores do.
    """

    def __init__(self, pieces: Iterator[list[tuple[K, V]]], *, ends_with_store: bool = False) -> None:
        self._pieces = pieces
        self._piece: list[tuple[K, V]] = []
        self._left: Iterator[tuple[K, V]] = _NOTHING
        self._ends_with_store = ends_with_store
        # Why there is nothing more to give, if there is not; "" ends the iterator as if it had come to its end.
        self._over: str | None = None

    def __iter__(self) -> Iterator[tuple[K, V]]:
        return chain.from_iterable(iter(self._reach, None))

    def __next__(self) -> tuple[K, V]:
        while (left := self._reach()) is not None:
            for entry in left:
                return entry
        raise StopIteration

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
        self._end("iterator is closed")

    def store_closed(self) -> None:
        """The store is closed: nothing more is given."""
        if self._over is None:
            self._end("" if self._ends_with_store else "store was closed under an iterator")

    def __enter__(self) -> StoreIterator[K, V]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _end(self, why: str) -> None:
        # In this order: whoever reads a piece meanwhile puts it in its place and then looks whether it is over.
        self._over = why
        self._pieces = iter(())
        self._piece.clear()

    def _reach(self) -> Iterator[tuple[K, V]] | None:
        """What is left of the piece that is gone through, else the next one; None at the end."""
        while not length_hint(self._left):
            if self._over:
                raise InvalidStateStore(self._over)
            piece = next(self._pieces, None)
            if piece is None:
                return None
            self._piece, self._left = piece, iter(piece)
            if self._over is not None:
                piece.clear()
        return self._left

    def _look(self) -> tuple[K, V] | None:
        """The next entry, which stays the next one; None at the end."""
        while (left := self._reach()) is not None:
            # It is gone if the store is closed just now.
            with suppress(IndexError):
                return self._piece[-length_hint(left)]
        return None


class _Mapped(StoreIterator[K2, V2], Generic[K, V, K2, V2]):
    """Looks through to the iterator beneath, so that a closed store shows at once."""

    def __init__(self, beneath: StoreIterator[K, V], change: Callable[[K, V], tuple[K2, V2]]) -> None:
        super().__init__(iter(()))
        self._beneath = beneath
        self._change = change

    def _look(self) -> tuple[K2, V2] | None:
        entry = self._beneath._look()
        return None if entry is None else self._change(*entry)

    def __iter__(self) -> Iterator[tuple[K2, V2]]:
        return starmap(self._change, self._beneath)

    def __next__(self) -> tuple[K2, V2]:
        return self._change(*next(self._beneath))

    def close(self) -> None:
        self._beneath.close()


class OpenIterators:
    """The iterators of one store that somebody holds still. Any thread may add one."""

    def __init__(self) -> None:
        self._known: list[ref[StoreIterator[Any, Any]]] = []
        self._many = _MOST
        self._lock = Lock()

    def add(self, iterator: StoreIterator[Any, Any]) -> None:
        """End it with the store."""
        self._known.append(ref(iterator))
        if len(self._known) > self._many:
            self._forget()

    def _forget(self) -> None:
        """Those that nobody holds any more. What is added meanwhile comes behind the slice that is replaced."""
        with self._lock:
            known = len(self._known)
            self._known[:known] = [one for one in self._known[:known] if one() is not None]
            self._many = 2 * len(self._known) + _MOST

    def store_closed(self) -> None:
        """End them all."""
        with self._lock:
            known, self._known = self._known, []
        for one in known:
            iterator = one()
            if iterator is not None:
                iterator.store_closed()
