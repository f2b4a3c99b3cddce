"""Session stores with types."""

from __future__ import annotations

from typing import Generic, TypeVar

from statestore.iterator import StoreIterator
from statestore.kinds.session import Session
from statestore.store import Isolation
from statestore.typed.base import TypedStore
from statestore.windows import Windowed

K = TypeVar("K")
V = TypeVar("V")

_UNCOMMITTED = Isolation.READ_UNCOMMITTED


class TypedSessionStore(TypedStore[Session, K, V], Generic[K, V]):
    """Values by key, first and last time of a session, in ms. Ranges include both ends; a key of None is open."""

    def put(self, session: Windowed[K], value: V | None) -> None:
        """Set the value of one session. None removes it."""
        with self._timed("put"):
            self.store.put(self._session(session), self.values.serialize(value))

    def remove(self, session: Windowed[K]) -> None:
        """Remove one session. Harmless if there is none."""
        with self._timed("remove"):
            self.store.remove(self._session(session))

    def fetch_session(self, key: K, start_ms: int, end_ms: int, isolation: Isolation = _UNCOMMITTED) -> V | None:
        """The value of the session with exactly this start and end, or None."""
        with self._timed("fetch"):
            return self.values.deserialize(self.store.fetch_session(self._key(key), start_ms, end_ms, isolation))

    def find_sessions(
        self, key: K, earliest_end_ms: int, latest_start_ms: int, isolation: Isolation = _UNCOMMITTED
    ) -> StoreIterator[Windowed[K], V]:
        """Sessions of one key that end at `earliest_end_ms` or later and start at `latest_start_ms` or earlier."""
        with self._timed("fetch"):
            return self._typed(self.store.find_sessions(self._key(key), earliest_end_ms, latest_start_ms, isolation))

    def backward_find_sessions(
        self, key: K, earliest_end_ms: int, latest_start_ms: int, isolation: Isolation = _UNCOMMITTED
    ) -> StoreIterator[Windowed[K], V]:
        """`find_sessions`, descending."""
        raw = self._key(key)
        with self._timed("fetch"):
            return self._typed(self.store.backward_find_sessions(raw, earliest_end_ms, latest_start_ms, isolation))

    def find_sessions_range(
        self,
        lower: K | None,
        upper: K | None,
        earliest_end_ms: int,
        latest_start_ms: int,
        isolation: Isolation = _UNCOMMITTED,
    ) -> StoreIterator[Windowed[K], V]:
        """`find_sessions` for all keys between two. An inverted key range is empty and warned of."""
        bounds = self._bounds(lower, upper)
        with self._timed("fetch"):
            return self._typed(self.store.find_sessions_range(*bounds, earliest_end_ms, latest_start_ms, isolation))

    def backward_find_sessions_range(
        self,
        lower: K | None,
        upper: K | None,
        earliest_end_ms: int,
        latest_start_ms: int,
        isolation: Isolation = _UNCOMMITTED,
    ) -> StoreIterator[Windowed[K], V]:
        """`find_sessions_range` in the opposite order; `lower` is still the smaller end."""
        bounds = self._bounds(lower, upper)
        with self._timed("fetch"):
            return self._typed(
                self.store.backward_find_sessions_range(*bounds, earliest_end_ms, latest_start_ms, isolation)
            )

    def find_ended(
        self, earliest_end_ms: int, latest_end_ms: int, isolation: Isolation = _UNCOMMITTED
    ) -> StoreIterator[Windowed[K], V]:
        """Sessions of every key that end between the two."""
        with self._timed("fetch"):
            return self._typed(self.store.find_ended(earliest_end_ms, latest_end_ms, isolation))

    def fetch(self, key: K, isolation: Isolation = _UNCOMMITTED) -> StoreIterator[Windowed[K], V]:
        """Every session of one key."""
        with self._timed("fetch"):
            return self._typed(self.store.fetch(self._key(key), isolation))

    def backward_fetch(self, key: K, isolation: Isolation = _UNCOMMITTED) -> StoreIterator[Windowed[K], V]:
        """`fetch`, descending."""
        with self._timed("fetch"):
            return self._typed(self.store.backward_fetch(self._key(key), isolation))

    def fetch_range(
        self, lower: K | None, upper: K | None, isolation: Isolation = _UNCOMMITTED
    ) -> StoreIterator[Windowed[K], V]:
        """Every session of all keys between two."""
        bounds = self._bounds(lower, upper)
        with self._timed("fetch"):
            return self._typed(self.store.fetch_range(*bounds, isolation))

    def backward_fetch_range(
        self, lower: K | None, upper: K | None, isolation: Isolation = _UNCOMMITTED
    ) -> StoreIterator[Windowed[K], V]:
        """`fetch_range` in the opposite order."""
        bounds = self._bounds(lower, upper)
        with self._timed("fetch"):
            return self._typed(self.store.backward_fetch_range(*bounds, isolation))

    def _session(self, session: Windowed[K]) -> Windowed[bytes]:
        if session is None:
            raise TypeError("a session must not be None")
        return Windowed(self._key(session.key), session.start_ms, session.end_ms)

    def _typed(self, sessions: StoreIterator[Windowed[bytes], bytes]) -> StoreIterator[Windowed[K], V]:
        read_key, read_value = self.keys.read, self.values.read
        return sessions.map(lambda at, value: (Windowed(read_key(at.key), *at[1:]), read_value(value)))
