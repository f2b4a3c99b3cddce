"""The open stores of a process, as readers of any thread see them.

A query is answered by every partition that it names and that is open; nothing here writes or waits for a writer. Stores
that their task is restoring do not answer, since a part of what is committed may not be in them yet: a task restores
them whenever it is opened, which a commit that failed does by itself.
Isolation is the request's, else the default. A store without transactions has one version only, its newest, cache
included, and answers with that at either level (KIP-844).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import Any, TypeVar

from statestore.errors import InvalidStateStore
from statestore.kinds.base import Kind
from statestore.kinds.key_value import KeyValue
from statestore.kinds.session import Session
from statestore.kinds.timestamped import TimestampedKeyValue
from statestore.kinds.timestamped_window import TimestampedWindow
from statestore.kinds.versioned import Versioned
from statestore.kinds.window import Window
from statestore.query.request import QueryableStoreType, StateQueryRequest, StoreQueryParameters
from statestore.query.result import FailureReason, QueryResult, StateQueryResult
from statestore.store import Isolation
from statestore.typed.base import TypedStore

R = TypeVar("R")

_KINDS: dict[QueryableStoreType, type] = {
    QueryableStoreType.KEY_VALUE: KeyValue,
    QueryableStoreType.TIMESTAMPED_KEY_VALUE: TimestampedKeyValue,
    QueryableStoreType.WINDOW: Window,
    QueryableStoreType.TIMESTAMPED_WINDOW: TimestampedWindow,
    QueryableStoreType.SESSION: Session,
    QueryableStoreType.VERSIONED: Versioned,
}
_READS = frozenset(
    [
        "get",
        "range",
        "reverse_range",
        "all",
        "reverse_all",
        "prefix_scan",
        "fetch_one",
        "fetch",
        "backward_fetch",
        "fetch_range",
        "backward_fetch_range",
        "fetch_all",
        "backward_fetch_all",
        "backward_all",
        "fetch_session",
        "find_sessions",
        "backward_find_sessions",
        "find_sessions_range",
        "backward_find_sessions_range",
        "find_ended",
        "versions",
        "position",
    ]
)


class ReadOnlyStore:
    """The reads of a store, bound to one isolation.

    They raise `InvalidStateStore` while the store is being restored, unless it is `stale`: read whatever is in it.
    """

    def __init__(self, store: Any, isolation: Isolation, *, stale: bool = False) -> None:
        self._store = store
        self._isolation = isolation
        self._stale = stale

    def __getattr__(self, name: str) -> Any:
        if name not in _READS:
            raise AttributeError(f"not a read of a store: {name}")
        return partial(self._read, getattr(self._store, name))

    def _read(self, read: Callable[..., R], *args: Any, **options: Any) -> R:
        before = _restored_in(self._store)
        found = read(*args, isolation=self._isolation, **options)
        if not self._stale and (before is None or _restored_in(self._store) is not before):
            raise InvalidStateStore("store is being restored", store=self._store.name, hint="ask again later")
        return found


class QueryableStores:
    """Stores by name and partition. `partitions` is how many each store has; None if that is not known."""

    def __init__(
        self, *, partitions: int | None = None, default_isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> None:
        self._partitions = partitions
        self._default_isolation = default_isolation
        self._stores: dict[str, dict[int, tuple[Any, bool]]] = {}
        self._lock = Lock()

    def add(self, store: Any, partition: int = 0, *, active: bool = True) -> None:
        """Let a store be asked; a standby is not active."""
        with self._lock:
            known = self._stores.get(store.name, {})
            self._stores = {**self._stores, store.name: {**known, partition: (store, active)}}

    def remove(self, store: Any, partition: int = 0) -> None:
        """Let a store no longer be asked. Its name stays known."""
        with self._lock:
            kept = {number: entry for number, entry in self._stores.get(store.name, {}).items() if number != partition}
            self._stores = {**self._stores, store.name: kept}

    def query(self, request: StateQueryRequest[R]) -> StateQueryResult[R]:
        """Ask every partition that the request names. Raises `InvalidStateStore` for a name that no store has."""
        stores = self._named(request.store_name)
        wanted = sorted(stores) if request.partitions is None else sorted(request.partitions)
        return StateQueryResult({number: self._ask(request, number, stores.get(number)) for number in wanted})

    def store(self, parameters: StoreQueryParameters) -> ReadOnlyStore:
        """A store to read from.

        Raises `InvalidStateStore` if it is unknown, not open here, being restored, or of another kind; and if it has several
        partitions here of which none is named: one would answer for all.
        """
        stores = self._named(parameters.store_name)
        if parameters.partition is None and len(stores) > 1:
            raise InvalidStateStore(
                "store has several partitions here",
                store=parameters.store_name,
                partitions=", ".join(map(str, sorted(stores))),
                hint="name one, or ask all of them with a query",
            )
        numbers = sorted(stores) if parameters.partition is None else [parameters.partition]
        for number in numbers:
            store, active = stores.get(number, (None, False))
            if store is None or not store.is_open():
                continue
            if not parameters.stale_stores and (not active or _restored_in(store) is None):
                continue
            kind = _KINDS[parameters.store_type]
            if not isinstance(_beneath(store), kind):
                raise InvalidStateStore(
                    "store is of another kind", store=parameters.store_name, wanted=parameters.store_type.value
                )
            return ReadOnlyStore(store, self._isolation(store, parameters.isolation), stale=parameters.stale_stores)
        raise InvalidStateStore(
            "store is not open here, or being restored",
            store=parameters.store_name,
            partition=parameters.partition,
            hint="ask again later",
        )

    def _named(self, name: str) -> dict[int, tuple[Any, bool]]:
        if name not in self._stores:
            raise InvalidStateStore("no store has this name", store=name)
        return self._stores[name]

    def _isolation(self, store: Any, asked: Isolation | None) -> Isolation:
        if not store.transactional():
            return Isolation.READ_UNCOMMITTED
        return asked or self._default_isolation

    def _ask(self, request: StateQueryRequest[R], partition: int, entry: tuple[Any, bool] | None) -> QueryResult[R]:
        if self._partitions is not None and not 0 <= partition < self._partitions:
            return _failed(FailureReason.DOES_NOT_EXIST, f"the store has {self._partitions} partitions")
        if entry is None or not entry[0].is_open():
            return _failed(FailureReason.NOT_PRESENT, "the partition is not open here")
        store, active = entry
        if request.require_active and not active:
            return _failed(FailureReason.NOT_ACTIVE, "the partition is a standby here")
        if not request.query.answered_by(store):
            return _failed(
                FailureReason.UNKNOWN_QUERY_TYPE,
                f"{type(store).__name__} does not answer {type(request.query).__name__}",
            )
        restored_in = _restored_in(store)
        if restored_in is None:
            return _failed(FailureReason.NOT_ACTIVE, "the partition is being restored")
        try:
            result = self._answer(request, store, partition)
        except Exception as error:
            return _failed(FailureReason.STORE_EXCEPTION, str(error))
        if _restored_in(store) is not restored_in:
            return _failed(FailureReason.NOT_ACTIVE, "the partition was opened again meanwhile")
        return result

    def _answer(self, request: StateQueryRequest[R], store: Any, partition: int) -> QueryResult[R]:
        began = time.perf_counter_ns()
        isolation = self._isolation(store, request.isolation)
        # Before the answer: what is read is at least as new as the position says.
        position = store.position(isolation)
        # A bound that is the position of an answer has those of all partitions, of which the store takes in its own.
        bound = request.position_bound.of(partition)
        if not position.reaches(bound):
            behind = f"{position.to_json()} is behind {bound.to_json()}"
            return QueryResult(None, FailureReason.NOT_UP_TO_BOUND, behind, position)
        answer = request.query.ask(store, isolation)
        info: tuple[str, ...] = ()
        if request.execution_info:
            micros = (time.perf_counter_ns() - began) // 1000
            info = (f"{type(request.query).__name__} on {type(store).__name__} at {isolation.value} in {micros} us",)
        return QueryResult(answer, position=position, execution_info=info)


def _beneath(store: object) -> object:
    return store.store if isinstance(store, TypedStore) else store


def _restored_in(store: object) -> object | None:
    """What is another one whenever the store is opened anew; None while it is being restored."""
    kind = _beneath(store)
    if not isinstance(kind, Kind):
        return store
    return None if kind.context.restoring else kind.context


def _failed(reason: FailureReason, message: str) -> QueryResult[R]:
    return QueryResult(None, reason, message)
