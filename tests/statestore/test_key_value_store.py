"""What a transactional key-value store promises: one contract for every mechanism."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statestore.errors import InvalidStateStore
from statestore.kinds.key_value import KeyValue
from statestore.overlay import Overlay, merge
from statestore.spaces.base import ChangeColumns
from statestore.store import Isolation, after_prefix
from tests.statestore.conftest import TRANSACTIONAL, Setup, TaskUnderTest

COMMITTED = Isolation.READ_COMMITTED
UNCOMMITTED = Isolation.READ_UNCOMMITTED


@pytest.fixture(params=TRANSACTIONAL, ids=str)
def setup(request: pytest.FixtureRequest) -> Setup:
    return request.param


@pytest.fixture
def store(task: TaskUnderTest) -> KeyValue:
    return task.open(KeyValue("s", **task.setup.options))


class TestReadsAndWrites:
    def test_get_of_an_unknown_key_is_none(self, store: KeyValue) -> None:
        assert store.get(b"a") is None

    def test_put_is_seen_by_its_own_store_before_commit(self, store: KeyValue) -> None:
        store.put(b"a", b"1")
        assert b"1" == store.get(b"a")

    def test_an_empty_value_is_a_value_and_none_deletes(self, store: KeyValue) -> None:
        store.put_all([(b"a", b""), (b"b", b"x"), (b"b", None)])
        assert b"" == store.get(b"a")
        assert store.get(b"b") is None

    def test_put_if_absent_gives_the_existing_value_and_keeps_it(self, store: KeyValue) -> None:
        assert store.put_if_absent(b"a", b"1") is None
        assert b"1" == store.put_if_absent(b"a", b"2")
        assert b"1" == store.get(b"a")

    def test_delete_gives_the_old_value_once(self, store: KeyValue) -> None:
        store.put(b"a", b"1")
        store.commit(1)
        assert b"1" == store.delete(b"a")
        assert store.delete(b"a") is None
        assert [] == list(store.all())

    def test_keys_are_bytes(self, store: KeyValue) -> None:
        with pytest.raises(TypeError):
            store.get(None)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            store.put("a", b"1")  # type: ignore[arg-type]


class TestRanges:
    @pytest.fixture(autouse=True)
    def filled(self, store: KeyValue) -> None:
        store.put_all([(b"a", b"1"), (b"b", b"2"), (b"d", b"4"), (b"e", b"5")])
        store.commit(4)
        store.put_all([(b"b", None), (b"c", b"3"), (b"d", b"44")])

    def test_range_includes_both_ends_and_uncommitted_writes(self, store: KeyValue) -> None:
        assert [(b"c", b"3"), (b"d", b"44")] == list(store.range(b"b", b"d"))

    def test_committed_range_sees_none_of_the_open_transaction(self, store: KeyValue) -> None:
        assert [(b"b", b"2"), (b"d", b"4")] == list(store.range(b"b", b"d", COMMITTED))

    def test_open_ends_and_reverse(self, store: KeyValue) -> None:
        everything = [(b"a", b"1"), (b"c", b"3"), (b"d", b"44"), (b"e", b"5")]
        assert everything == list(store.all())
        assert everything[::-1] == list(store.reverse_all())
        assert everything[:2] == list(store.range(None, b"c"))
        assert everything[:0:-1] == list(store.reverse_range(b"b", None))

    def test_an_inverted_range_is_empty(self, store: KeyValue) -> None:
        assert [] == list(store.range(b"d", b"a"))

    def test_prefix_scan_stops_before_the_next_prefix(self, store: KeyValue) -> None:
        store.put_all([(b"p", b"0"), (b"p\xff", b"1"), (b"q", b"2"), (b"\xff\xff", b"3")])
        assert [(b"p", b"0"), (b"p\xff", b"1")] == list(store.prefix_scan(b"p"))
        assert [(b"\xff\xff", b"3")] == list(store.prefix_scan(b"\xff"))
        assert after_prefix(b"\xff\xff") is None

    def test_a_scan_stays_on_the_view_of_its_start(self, store: KeyValue) -> None:
        scan = store.all()
        first = next(scan)
        store.put(b"c", b"changed")
        store.commit(9)
        assert [(b"a", b"1"), (b"c", b"3"), (b"d", b"44"), (b"e", b"5")] == [first, *scan]


class TestTransactions:
    def test_it_is_transactional_and_open(self, store: KeyValue) -> None:
        assert store.transactional() and store.is_open()

    def test_commit_makes_writes_committed(self, store: KeyValue) -> None:
        store.put(b"a", b"1")
        assert store.get(b"a", COMMITTED) is None
        store.commit(7)
        assert b"1" == store.get(b"a", COMMITTED)

    def test_rollback_forgets_writes_and_deletes(self, store: KeyValue) -> None:
        store.put(b"a", b"1")
        store.commit(1)
        store.put_all([(b"a", None), (b"b", b"2")])
        store.rollback()
        assert [(b"a", b"1")] == list(store.all())

    def test_recover_gives_the_offset_of_the_last_commit(self, store: KeyValue) -> None:
        assert store.recover(None) is None
        store.put(b"a", b"1")
        store.commit(7)
        store.put(b"a", b"2")
        assert 7 == store.recover(99)
        assert b"1" == store.get(b"a")

    def test_what_was_not_committed_is_gone_after_reopening(self, store: KeyValue, task: TaskUnderTest) -> None:
        store.put(b"a", b"1")
        store.commit(3)
        store.put(b"a", b"2")
        again = task.restart(store.__class__("s", **task.setup.options))
        persistent = task.setup.persistent
        assert (3 if persistent else None) == again.recover(None)
        assert ([(b"a", b"1")] if persistent else []) == list(again.all())

    def test_a_closed_store_refuses_everything(self, store: KeyValue) -> None:
        scan = store.all()
        store.put(b"a", b"1")
        store.commit(1)
        open_scan = store.all(COMMITTED)
        store.close()
        assert not store.is_open()
        for call in (
            lambda: store.get(b"a"),
            lambda: store.put(b"a", b"1"),
            lambda: store.commit(1),
            lambda: list(store.all()),
            lambda: store.approximate_num_entries(),
            lambda: list(scan),
            lambda: list(open_scan),
        ):
            with pytest.raises(InvalidStateStore):
                call()
        store.close()


changes = st.lists(st.tuples(st.binary(max_size=3), st.one_of(st.none(), st.binary(max_size=2))), max_size=30)


@settings(max_examples=200, deadline=None)
@given(base=st.dictionaries(st.binary(max_size=3), st.binary(max_size=2)), changed=changes, reverse=st.booleans())
def test_merged_view_equals_a_dict(base: dict[bytes, bytes], changed: list, reverse: bool) -> None:
    overlay = Overlay()
    overlay.put_all(changed)
    model = dict(base)
    for key, value in changed:
        if value is None:
            model.pop(key, None)
        else:
            model[key] = value
    entries = iter(sorted(base.items(), reverse=reverse))
    merged = list(merge(entries, *overlay.slice(None, None, reverse=reverse), reverse=reverse))
    assert sorted(model.items(), reverse=reverse) == merged


@settings(max_examples=200, deadline=None)
@given(
    batches=st.lists(st.dictionaries(st.binary(max_size=2), st.none() | st.binary(max_size=2)), max_size=3),
    asked=st.booleans(),
)
def test_changes_that_come_in_order_are_those_that_come_one_by_one(
    batches: list[dict[bytes, bytes | None]], asked: bool
) -> None:
    overlay, model = Overlay(), {}
    assert [] == overlay.slice(None, None)[0]
    for batch in batches:
        keys = sorted(batch)
        overlay.put_all(ChangeColumns(keys, [batch[key] for key in keys]))
        model.update(batch)
        assert len(model) == len(overlay)
        assert bool(model) == bool(overlay)
        if asked:
            assert [(True, value) for value in model.values()] == [overlay.find(key) for key in model]
            assert (False, None) == overlay.find(b"none")
    assert sorted(model.items()) == list(overlay.in_order())
    assert model == dict(iter(overlay.items()))
    overlay.put(b"one more", b"1")
    assert sorted({**model, b"one more": b"1"}.items()) == overlay.slice(None, None)[0]
    overlay.clear()
    assert not overlay
