"""What readers see beside a writer that has written and has not committed: every query, every store, by isolation.

The writer is a thread of its own, stalled between its write and its commit; the reader must never wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from threading import Event, Thread
from typing import Any

import pytest

from statestore.cache.record_cache import RecordCache
from statestore.cache.stores import CachedKeyValue
from statestore.kinds.base import Kind
from statestore.kinds.key_value import KeyValue
from statestore.kinds.session import Session
from statestore.kinds.versioned import Versioned
from statestore.kinds.window import Window
from statestore.layouts.timelines import VersionedRecord
from statestore.position import Position
from statestore.query.queries import (
    KeyQuery,
    MultiVersionedKeyQuery,
    Query,
    RangeQuery,
    VersionedKeyQuery,
    WindowKeyQuery,
    WindowRangeQuery,
)
from statestore.query.request import QueryableStoreType, StateQueryRequest, StoreQueryParameters
from statestore.query.stores import QueryableStores
from statestore.store import Isolation
from statestore.windows import Windowed
from tests.statestore.conftest import SETUPS, TRANSACTIONAL, Setup, TaskUnderTest

COMMITTED = Isolation.READ_COMMITTED
UNCOMMITTED = Isolation.READ_UNCOMMITTED
KEY = b"k"


@dataclass(frozen=True)
class Case:
    """A store, how value `n` is written, a query, and its answers when values 1..n are visible."""

    name: str
    make: Callable[..., Kind]
    put: Callable[[Any, int], None]
    query: Query[Any]
    answers: tuple[Any, Any, Any]


def value(n: int) -> bytes:
    return b"v%d" % n


def windows(**options: Any) -> Window:
    return Window("s", retention_ms=1000, window_size_ms=10, **options)


def sessions(**options: Any) -> Session:
    return Session("s", retention_ms=1000, **options)


def versions(**options: Any) -> Versioned:
    return Versioned("s", history_retention_ms=1000, **options)


def keys(**options: Any) -> KeyValue:
    return KeyValue("s", **options)


def put_key(store: Any, n: int) -> None:
    store.put(KEY, value(n))


def put_window(store: Any, n: int) -> None:
    store.put(KEY, value(n), 10 * n)


def put_session(store: Any, n: int) -> None:
    store.put(Windowed(KEY, 10 * n, 10 * n), value(n))


W1, W2 = Windowed(KEY, 10, 20), Windowed(KEY, 20, 30)
S1, S2 = Windowed(KEY, 10, 10), Windowed(KEY, 20, 20)
V1 = VersionedRecord(value(1), 10)
V1_ENDED, V2 = VersionedRecord(value(1), 10, 20), VersionedRecord(value(2), 20)

CASES = [
    Case("key", keys, put_key, KeyQuery(KEY), (None, value(1), value(2))),
    Case("range", keys, put_key, RangeQuery.with_no_bounds(), ([], [(KEY, value(1))], [(KEY, value(2))])),
    Case(
        "window-key",
        windows,
        put_window,
        WindowKeyQuery(KEY, 0, 100),
        ([], [(10, value(1))], [(10, value(1)), (20, value(2))]),
    ),
    Case(
        "window-range",
        windows,
        put_window,
        WindowRangeQuery.with_window_start_range(0, 100),
        ([], [(W1, value(1))], [(W1, value(1)), (W2, value(2))]),
    ),
    Case(
        "session",
        sessions,
        put_session,
        WindowRangeQuery.with_key(KEY),
        ([], [(S1, value(1))], [(S1, value(1)), (S2, value(2))]),
    ),
    Case("versioned", versions, put_window, VersionedKeyQuery(KEY), (None, V1, V2)),
    Case("versioned as of", versions, put_window, VersionedKeyQuery(KEY).as_of(15), (None, V1, V1_ENDED)),
    Case("multi-versioned", versions, put_window, MultiVersionedKeyQuery(KEY), ([], [V1], [V2, V1_ENDED])),
]


class StalledWriter:
    """Puts value 1 and commits, puts value 2 and stops there until it is released, then commits."""

    def __init__(self, store: Kind, case: Case, task: TaskUnderTest) -> None:
        self._written, self._go_on = Event(), Event()
        self._thread = Thread(target=self._run, args=(store, case, task))
        self._thread.start()
        assert self._written.wait(10)

    def _run(self, store: Kind, case: Case, task: TaskUnderTest) -> None:
        task.at(1)
        case.put(store, 1)
        store.commit(1)
        task.at(2)
        case.put(store, 2)
        self._written.set()
        self._go_on.wait(10)
        store.commit(2)

    def finish(self) -> None:
        self._go_on.set()
        self._thread.join(10)
        assert not self._thread.is_alive()


def plain(answer: Any) -> Any:
    return list(answer) if isinstance(answer, Iterator) else answer


def ask(stores: QueryableStores, case: Case, isolation: Isolation | None = None) -> Any:
    request = StateQueryRequest.in_store("s").with_query(case.query)
    if isolation is not None:
        request = request.with_isolation_level(isolation)
    return plain(stores.query(request).partition_results[0].result)


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


@pytest.fixture
def stalled(task: TaskUnderTest, setup: Setup, case: Case) -> Iterator[tuple[Kind, StalledWriter]]:
    store = task.open(case.make(**setup.options))
    writer = StalledWriter(store, case, task)
    yield store, writer
    writer.finish()


def queryable(store: Kind, default: Isolation = UNCOMMITTED) -> QueryableStores:
    stores = QueryableStores(default_isolation=default)
    stores.add(store)
    return stores


@pytest.mark.parametrize("setup", TRANSACTIONAL, ids=str)
class TestStalledWriter:
    @pytest.mark.case("TX-01", "TX-02", "TX-06")
    def test_only_an_uncommitted_reader_sees_the_write(self, stalled: tuple[Kind, StalledWriter], case: Case) -> None:
        stores = queryable(stalled[0])
        assert case.answers[2] == ask(stores, case, UNCOMMITTED)
        assert case.answers[1] == ask(stores, case, COMMITTED)
        request = StateQueryRequest.in_store("s").with_query(case.query).enable_read_committed()
        assert case.answers[1] == plain(stores.query(request).partition_results[0].result)

    @pytest.mark.case("TX-03", "TX-04", "TX-06")
    @pytest.mark.parametrize("default", [UNCOMMITTED, COMMITTED])
    def test_a_reader_without_a_level_gets_the_default_and_one_with_a_level_its_own(
        self, stalled: tuple[Kind, StalledWriter], case: Case, default: Isolation
    ) -> None:
        stores = queryable(stalled[0], default)
        by_level = {UNCOMMITTED: case.answers[2], COMMITTED: case.answers[1]}
        assert by_level[default] == ask(stores, case)
        for isolation, expected in by_level.items():
            assert expected == ask(stores, case, isolation)

    @pytest.mark.case("TX-05", "TX-06")
    def test_a_committed_reader_sees_the_write_once_it_is_committed(
        self, stalled: tuple[Kind, StalledWriter], case: Case
    ) -> None:
        store, writer = stalled
        stores = queryable(store, COMMITTED)
        assert case.answers[1] == ask(stores, case)
        writer.finish()
        assert case.answers[2] == ask(stores, case)

    @pytest.mark.case("TX-30")
    def test_a_committed_position_leaves_the_write_out_and_survives_a_restart(
        self, task: TaskUnderTest, stalled: tuple[Kind, StalledWriter], case: Case
    ) -> None:
        store, writer = stalled
        assert Position({"": {0: 1}}) == store.position(COMMITTED)
        assert Position({"": {0: 2}}) == store.position(UNCOMMITTED)
        request = StateQueryRequest.in_store("s").with_query(case.query)
        for isolation, offset in ((COMMITTED, 1), (UNCOMMITTED, 2)):
            result = queryable(store).query(request.with_isolation_level(isolation))
            assert Position({"": {0: offset}}) == result.position
        writer.finish()
        if task.setup.persistent:
            again = task.restart(case.make(**task.setup.options))
            assert Position({"": {0: 2}}) == again.position(COMMITTED) == again.position(UNCOMMITTED)


@pytest.mark.case("TX-30")
@pytest.mark.parametrize("setup", TRANSACTIONAL, ids=str)
def test_a_position_comes_back_through_the_changelog(task: TaskUnderTest, case: Case) -> None:
    task.stores.positions_in_changelog = True
    store = task.open(case.make(**task.setup.options))
    for n in (1, 2):
        task.at(n)
        case.put(store, n)
    store.commit(2)
    again = task.restart(case.make(**task.setup.options), wipe=True)
    assert Position() == again.position()
    again.restore(task.logged)
    assert Position({"": {0: 2}}) == again.position(COMMITTED) == again.position(UNCOMMITTED)
    assert case.answers[2] == plain(case.query.ask(again, COMMITTED))


@pytest.mark.parametrize("setup", [setup for setup in SETUPS if not setup.transactional], ids=str)
def test_a_store_without_transactions_answers_with_its_newest_data_at_either_level(
    stalled: tuple[Kind, StalledWriter], case: Case
) -> None:
    stores = queryable(stalled[0])
    assert case.answers[2] == ask(stores, case, COMMITTED) == ask(stores, case, UNCOMMITTED)


@pytest.mark.parametrize("setup", SETUPS, ids=str)
def test_a_cache_is_read_past_only_if_there_are_transactions(task: TaskUnderTest, setup: Setup) -> None:
    store = task.open(CachedKeyValue("s", cache=RecordCache(1000), **setup.options))
    stores = queryable(store)
    store.put(KEY, b"cached")
    request = StateQueryRequest.in_store("s").with_query(KeyQuery(KEY))
    assert b"cached" == stores.query(request).partition_results[0].result
    expected = None if setup.transactional else b"cached"
    assert expected == stores.query(request.enable_read_committed()).partition_results[0].result


@pytest.mark.case("TX-04")
@pytest.mark.parametrize("setup", TRANSACTIONAL, ids=str)
@pytest.mark.parametrize("default", [UNCOMMITTED, COMMITTED])
def test_a_store_in_hand_keeps_to_its_isolation(task: TaskUnderTest, default: Isolation) -> None:
    store = task.open(KeyValue("s", **task.setup.options))
    store.put(KEY, b"1")
    store.commit(1)
    store.put(KEY, b"2")
    stores = queryable(store, default)
    parameters = StoreQueryParameters.from_name_and_type("s", QueryableStoreType.KEY_VALUE)
    assert (b"2" if default is UNCOMMITTED else b"1") == stores.store(parameters).get(KEY)
    assert b"1" == stores.store(parameters.enable_read_committed()).get(KEY)
    assert [(KEY, b"1")] == list(stores.store(parameters.enable_read_committed()).all())
    assert b"2" == stores.store(parameters.with_isolation_level(UNCOMMITTED)).get(KEY)
