"""What queries find, which stores answer them, and how failing partitions say why."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from statestore.errors import InvalidStateStore
from statestore.kinds.key_value import KeyValue
from statestore.kinds.session import Session
from statestore.kinds.timestamped import TimestampedKeyValue
from statestore.kinds.versioned import Versioned
from statestore.kinds.window import Window
from statestore.layouts.timelines import VersionedRecord
from statestore.position import Position
from statestore.query.queries import (
    KeyQuery,
    MultiVersionedKeyQuery,
    Query,
    RangeQuery,
    TimestampedKeyQuery,
    TimestampedRangeQuery,
    VersionedKeyQuery,
    WindowKeyQuery,
    WindowRangeQuery,
)
from statestore.query.request import QueryableStoreType, StateQueryRequest, StoreQueryParameters
from statestore.query.result import FailureReason, QueryResult, StateQueryResult
from statestore.query.stores import QueryableStores
from statestore.store import Isolation, TransactionalMechanism
from statestore.taskstores import TaskStores
from statestore.typed.key_value import TypedKeyValueStore, TypedTimestampedKeyValueStore
from statestore.typed.serdes import INTEGER, STRING, ValueAndTimestamp
from statestore.typed.versioned import TypedVersionedStore
from tests.statestore.conftest import SETUPS, Setup, TaskUnderTest


@pytest.fixture(params=[setup for setup in SETUPS if setup.mechanism is TransactionalMechanism.INDEXED_BATCH], ids=str)
def setup(request: pytest.FixtureRequest) -> Setup:
    return request.param


def asked(store: Any, query: Query[Any]) -> Any:
    stores = QueryableStores()
    stores.add(store)
    answer = stores.query(StateQueryRequest.in_store(store.name).with_query(query)).partition_results[0].result
    return list(answer) if isinstance(answer, Iterator) else answer


@pytest.fixture
def numbers(task: TaskUnderTest, setup: Setup) -> TypedKeyValueStore[int, str]:
    store = TypedKeyValueStore(KeyValue("numbers", **setup.options), INTEGER, STRING)
    store.init(task.stores)
    store.put_all([(1, "one"), (2, "two"), (3, "three")])
    return store


class TestKeyValue:
    def test_one_key(self, numbers: TypedKeyValueStore[int, str]) -> None:
        assert ("two", None) == (asked(numbers, KeyQuery(2)), asked(numbers, KeyQuery(9)))

    def test_ranges_with_open_ends_in_both_orders(self, numbers: TypedKeyValueStore[int, str]) -> None:
        one, two, three = (1, "one"), (2, "two"), (3, "three")
        for query, expected in [
            (RangeQuery.with_range(1, 2), [one, two]),
            (RangeQuery.with_lower_bound(2), [two, three]),
            (RangeQuery.with_upper_bound(2), [one, two]),
            (RangeQuery[int, str].with_no_bounds(), [one, two, three]),
            (RangeQuery[int, str].with_prefix(b"\0\0\0"), [one, two, three]),
            (RangeQuery[int, str].with_prefix(b"\0\0\0\2"), [two]),
            (RangeQuery[int, str].with_prefix(b"\1"), []),
        ]:
            assert expected == asked(numbers, query) == asked(numbers, query.with_ascending_keys())
            assert expected[::-1] == asked(numbers, query.with_descending_keys())

    def test_a_store_of_bytes_is_asked_with_bytes(self, numbers: TypedKeyValueStore[int, str]) -> None:
        assert b"one" == asked(numbers.store, KeyQuery(b"\0\0\0\1"))
        assert [(b"\0\0\0\3", b"three")] == asked(numbers.store, RangeQuery(prefix=b"\0\0\0\3"))

    def test_times_are_given_only_to_those_who_ask(self, task: TaskUnderTest, setup: Setup) -> None:
        store = TypedTimestampedKeyValueStore(TimestampedKeyValue("t", **setup.options), INTEGER, STRING)
        store.init(task.stores)
        timed = ValueAndTimestamp("one", 97)
        store.put(1, timed)
        assert ("one", timed) == (asked(store, KeyQuery(1)), asked(store, TimestampedKeyQuery(1)))
        assert [(1, "one")] == asked(store, RangeQuery())
        assert [(1, timed)] == asked(store, TimestampedRangeQuery())


class TestVersioned:
    @pytest.fixture
    def store(self, task: TaskUnderTest, setup: Setup) -> TypedVersionedStore[int, str]:
        store = TypedVersionedStore(Versioned("v", history_retention_ms=1000, **setup.options), INTEGER, STRING)
        store.init(task.stores)
        for text, time in [("a", 10), ("b", 20)]:
            assert store.put(1, text, time) is None
        return store

    def test_the_newest_and_as_of(self, store: TypedVersionedStore[int, str]) -> None:
        a, b = VersionedRecord("a", 10, 20), VersionedRecord("b", 20)
        assert b == asked(store, VersionedKeyQuery.with_key(1)) == store.get(1)
        assert a == asked(store, VersionedKeyQuery.with_key(1).as_of(19)) == store.get(1, 19)
        assert asked(store, VersionedKeyQuery.with_key(1).as_of(9)) is None

    def test_several_versions(self, store: TypedVersionedStore[int, str]) -> None:
        a, b = VersionedRecord("a", 10, 20), VersionedRecord("b", 20)
        query = MultiVersionedKeyQuery[int, str].with_key(1)
        assert [b, a] == asked(store, query) == asked(store, query.with_descending_timestamps())
        assert [a, b] == asked(store, query.with_ascending_timestamps())
        assert [a] == asked(store, query.to_time(19))
        assert [b] == asked(store, query.from_time(20).to_time(30))

    def test_a_typed_delete_gives_what_was_valid(self, store: TypedVersionedStore[int, str]) -> None:
        assert VersionedRecord("b", 20) == store.delete(1, 30)
        assert store.get(1) is None
        assert store.delete(1, 31) is None
        with pytest.raises(TypeError):
            store.put(None, "x", 40)  # type: ignore[arg-type]


ALL_QUERIES: list[Query[Any]] = [
    KeyQuery(b"k"),
    RangeQuery(),
    TimestampedKeyQuery(b"k"),
    TimestampedRangeQuery(),
    WindowKeyQuery(b"k", 0, 1),
    WindowRangeQuery.with_window_start_range(0, 1),
    WindowRangeQuery.with_key(b"k"),
    VersionedKeyQuery(b"k"),
    MultiVersionedKeyQuery(b"k"),
]


class TestFailures:
    def test_a_store_refuses_queries_of_other_kinds(self, task: TaskUnderTest, setup: Setup) -> None:
        known = {
            task.open(KeyValue("k", **setup.options)): {0, 1},
            task.open(Window("w", retention_ms=10, window_size_ms=10, **setup.options)): {4, 5},
            task.open(Session("s", retention_ms=10, **setup.options)): {6},
            task.open(Versioned("v", history_retention_ms=10, **setup.options)): {7, 8},
        }
        for store, answered in known.items():
            stores = QueryableStores()
            stores.add(store)
            for number, query in enumerate(ALL_QUERIES):
                result = stores.query(StateQueryRequest(store.name, query)).partition_results[0]
                reason = None if number in answered else FailureReason.UNKNOWN_QUERY_TYPE
                assert reason == result.failure_reason

    def test_each_partition_says_why_it_has_no_answer(
        self, task: TaskUnderTest, numbers: TypedKeyValueStore[int, str]
    ) -> None:
        stores = QueryableStores(partitions=4)
        stores.add(numbers, 0)
        stores.add(numbers, 1, active=False)
        request = StateQueryRequest.in_store("numbers").with_query(KeyQuery(1))
        asked = stores.query(request.with_partitions([0, 1, 2, 4]).with_require_active())
        assert {
            0: None,
            1: FailureReason.NOT_ACTIVE,
            2: FailureReason.NOT_PRESENT,
            4: FailureReason.DOES_NOT_EXIST,
        } == {number: result.failure_reason for number, result in asked.partition_results.items()}
        assert [0, 1] == list(stores.query(request.with_all_partitions()).partition_results)
        stores.remove(numbers, 1)
        assert [0] == list(stores.query(request).partition_results)

    def test_a_store_behind_the_bound_does_not_answer(
        self, task: TaskUnderTest, numbers: TypedKeyValueStore[int, str]
    ) -> None:
        task.at(5, topic="t")
        numbers.put(1, "uno")
        stores = QueryableStores()
        stores.add(numbers)
        request = StateQueryRequest.in_store("numbers").with_query(KeyQuery[int, str](1))
        reached = stores.query(request.with_position_bound(Position({"t": {0: 5}}))).partition_results[0]
        assert ("uno", Position({"t": {0: 5}})) == (reached.result, reached.position)
        behind = stores.query(request.with_position_bound(Position({"t": {0: 6}}))).partition_results[0]
        assert (FailureReason.NOT_UP_TO_BOUND, Position({"t": {0: 5}})) == (behind.failure_reason, behind.position)
        uncommitted = request.with_position_bound(Position({"t": {0: 5}})).enable_read_committed()
        assert FailureReason.NOT_UP_TO_BOUND == stores.query(uncommitted).partition_results[0].failure_reason

    def test_the_position_of_an_answer_is_the_next_bound_of_every_partition(self, tmp_path: Path, setup: Setup) -> None:
        stores = QueryableStores(partitions=2)
        tasks = [TaskUnderTest(setup, tmp_path / str(partition)) for partition in (0, 1)]
        for partition, task in enumerate(tasks):
            store = task.open(KeyValue("s", **setup.options))
            task.at(5, topic="t", partition=partition)
            store.put(b"k", b"v")
            stores.add(store, partition)
        request = StateQueryRequest.in_store("s").with_query(KeyQuery[bytes, bytes](b"k"))

        def failures(bound: Position) -> list[FailureReason | None]:
            found = stores.query(request.with_position_bound(bound)).partition_results
            return [found[partition].failure_reason for partition in (0, 1)]

        position = stores.query(request).position
        assert Position({"t": {0: 5, 1: 5}}) == position
        assert [None, None] == failures(position)
        assert [None, FailureReason.NOT_UP_TO_BOUND] == failures(position.advanced("t", 1, 6))
        for task in tasks:
            task.stores.close()

    def test_a_closed_store_is_not_present_and_a_failing_one_says_how(
        self, numbers: TypedKeyValueStore[int, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stores = QueryableStores()
        stores.add(numbers)

        def fail(*_: object) -> None:
            raise OSError("disk on fire")

        with monkeypatch.context() as broken:
            broken.setattr(numbers.store, "get", fail)
            result = stores.query(StateQueryRequest("numbers", KeyQuery(1))).partition_results[0]
        assert (FailureReason.STORE_EXCEPTION, "disk on fire") == (result.failure_reason, result.failure_message)
        with pytest.raises(ValueError, match="store_exception: disk on fire"):
            _ = result.result
        numbers.close()
        result = stores.query(StateQueryRequest("numbers", KeyQuery(1))).partition_results[0]
        assert FailureReason.NOT_PRESENT == result.failure_reason

    def test_an_unknown_store_and_a_key_of_none_are_errors(self) -> None:
        with pytest.raises(InvalidStateStore, match="name"):
            QueryableStores().query(StateQueryRequest("nope", KeyQuery(1)))
        for make in (KeyQuery, VersionedKeyQuery, MultiVersionedKeyQuery, WindowRangeQuery.with_key):
            with pytest.raises(TypeError):
                make(None)


class TestRequests:
    def test_a_request_is_never_changed(self) -> None:
        first: StateQueryRequest[Any] = StateQueryRequest.in_store("s").with_query(KeyQuery(1))
        changed = [
            first.enable_read_committed(),
            first.with_partitions({1, 2}),
            first.with_position_bound(Position({"t": {0: 1}})),
            first.with_require_active(),
            first.enable_execution_info(),
        ]
        assert first == StateQueryRequest("s", KeyQuery(1))
        assert 6 == len({repr(request) for request in [first, *changed]})
        assert Isolation.READ_COMMITTED == changed[0].isolation
        parameters = StoreQueryParameters.from_name_and_type("s", QueryableStoreType.WINDOW)
        assert parameters.isolation is None
        assert Isolation.READ_COMMITTED == parameters.enable_read_committed().isolation

    def test_execution_info_is_given_if_asked_for(self, numbers: TypedKeyValueStore[int, str]) -> None:
        stores = QueryableStores()
        stores.add(numbers)
        request = StateQueryRequest.in_store("numbers").with_query(KeyQuery(1))
        assert () == stores.query(request).partition_results[0].execution_info
        (info,) = stores.query(request.enable_execution_info()).partition_results[0].execution_info
        assert info.startswith("KeyQuery on TypedKeyValueStore at read_uncommitted in ")

    def test_results_of_partitions_are_summed_up(self) -> None:
        one = QueryResult("a", position=Position({"t": {0: 1}}))
        none: QueryResult[str] = QueryResult(None, position=Position({"t": {1: 7}}))
        both = StateQueryResult({0: one, 1: none})
        assert one == both.only_partition_result
        assert Position({"t": {0: 1, 1: 7}}) == both.position
        assert StateQueryResult({0: none}).only_partition_result is None
        with pytest.raises(ValueError, match="2 partitions"):
            _ = StateQueryResult({0: one, 1: one}).only_partition_result


class TestStoreInHand:
    def test_one_of_several_partitions_does_not_answer_for_all(self, tmp_path: Path) -> None:
        stores, opened = QueryableStores(partitions=2), []
        for partition in range(2):
            task = TaskStores(tmp_path / str(partition))
            store = KeyValue("s")
            store.init(task)
            store.put(b"key%d" % partition, b"v")
            stores.add(store, partition)
            opened.append(task)
        parameters = StoreQueryParameters.from_name_and_type("s", QueryableStoreType.KEY_VALUE)
        with pytest.raises(InvalidStateStore, match=r"several partitions here.*partitions=`0, 1`"):
            stores.store(parameters)
        assert [b"v", b"v"] == [stores.store(parameters.with_partition(p)).get(b"key%d" % p) for p in range(2)]
        for task in opened:
            task.close()

    def test_only_reads_of_the_right_kind_and_of_an_active_store(self, numbers: TypedKeyValueStore[int, str]) -> None:
        stores = QueryableStores()
        stores.add(numbers, 0, active=False)
        parameters = StoreQueryParameters.from_name_and_type("numbers", QueryableStoreType.KEY_VALUE)
        with pytest.raises(InvalidStateStore, match="not open here"):
            stores.store(parameters)
        view = stores.store(parameters.enable_stale_stores())
        assert "one" == view.get(1)
        with pytest.raises(AttributeError):
            view.put(1, "uno")
        with pytest.raises(InvalidStateStore, match="another kind"):
            stores.store(StoreQueryParameters("numbers", QueryableStoreType.WINDOW, stale_stores=True))
        with pytest.raises(InvalidStateStore, match="not open here"):
            stores.store(parameters.enable_stale_stores().with_partition(7))
