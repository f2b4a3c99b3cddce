"""What a transaction promises, whichever mechanism keeps it (KIP-844), and what a task does about stores without."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from statestore.config import RocksConfig
from statestore.context import ChangelogRecord, StoreVersion
from statestore.errors import FormatUnsupported, InvalidConfig, InvalidStateStore, TaskCorrupted
from statestore.kinds.key_value import KeyValue
from statestore.position import Position
from statestore.spaces.base import OWN_SPACES
from statestore.spaces.memory import MemoryBase
from statestore.store import Isolation, TransactionalMechanism
from statestore.taskstores import TaskStores
from statestore.transactions.indexed_batch import IndexedBatchTransaction
from statestore.version import TaskDatabase
from tests.statestore.conftest import TRANSACTIONAL, Setup, TaskUnderTest
from tests.support.present import present

COMMITTED = Isolation.READ_COMMITTED
DISK = Setup(TransactionalMechanism.INDEXED_BATCH)


@pytest.fixture(params=TRANSACTIONAL, ids=str)
def setup(request: pytest.FixtureRequest) -> Setup:
    return request.param


@pytest.fixture
def store(task: TaskUnderTest) -> KeyValue:
    store = task.open(KeyValue("s", **task.setup.options))
    store.put_all([(b"k%d" % number, b"old") for number in range(10)])
    store.commit(10)
    return store


class TestStaging:
    @pytest.mark.case("TX-07")
    def test_the_owner_reads_its_writes_over_the_base(self, store: KeyValue) -> None:
        store.put(b"k1", b"new")
        store.delete(b"k2")
        store.put(b"k15", b"added")
        assert (b"new", None, b"old") == (store.get(b"k1"), store.get(b"k2"), store.get(b"k3"))
        expected = [(b"k1", b"new"), (b"k15", b"added"), (b"k3", b"old")]
        assert expected == list(store.range(b"k1", b"k3"))
        assert 10 == len(list(store.all()))

    @pytest.mark.case("TX-08")
    def test_a_range_deletion_hides_at_once_and_a_later_put_shows_through(self, store: KeyValue) -> None:
        store.put(b"k3", b"staged, then deleted")
        store.transaction.delete_range("s", b"k2", b"k5")
        assert [None, None] == [store.get(b"k3"), store.get(b"k5")]
        store.put(b"k4", b"later")
        left = [b"k0", b"k1", b"k4", b"k6", b"k7", b"k8", b"k9"]
        assert left == [key for key, _ in store.all()]
        assert left[::-1] == [key for key, _ in store.reverse_all()]
        assert 10 == len(list(store.all(COMMITTED)))
        store.commit(11)
        assert left == [key for key, _ in store.all(COMMITTED)]
        assert b"later" == store.get(b"k4", COMMITTED)

    @pytest.mark.case("TX-32")
    def test_ranges_from_one_key_add_up_and_older_views_stay(self, store: KeyValue) -> None:
        store.put(b"k2", b"staged")
        before = store.all()
        store.transaction.delete_range("s", b"k2", b"k6")
        store.transaction.delete_range("s", b"k2", b"k3")
        assert [b"k0", b"k1", b"k7", b"k8", b"k9"] == [key for key, _ in store.all()]
        assert b"staged" == dict(before)[b"k2"]
        store.commit(11)
        assert [b"k0", b"k1", b"k7", b"k8", b"k9"] == [key for key, _ in store.all(COMMITTED)]

    @pytest.mark.parametrize(("lower", "upper", "left"), [(None, b"k7", 2), (b"k3", None, 3), (None, None, 0)])
    def test_a_range_deletion_may_have_open_ends(
        self, store: KeyValue, lower: bytes | None, upper: bytes | None, left: int
    ) -> None:
        store.transaction.delete_range("s", lower, upper)
        assert left == len(list(store.all()))
        store.commit(11)
        assert left == len(list(store.all(COMMITTED)))

    @pytest.mark.case("TX-09")
    @pytest.mark.parametrize("end", ["commit", "rollback"])
    def test_an_iterator_stays_on_the_view_of_its_opening(self, store: KeyValue, end: str) -> None:
        store.put(b"k1", b"staged")
        staged, committed = store.all(), store.all(COMMITTED)
        first = next(staged)
        store.commit(11) if end == "commit" else store.rollback()
        store.put_all([(b"k%d" % number, b"later") for number in range(10)])
        store.commit(12)
        expected = [(b"k%d" % number, b"old") for number in range(10)]
        assert expected == list(committed)
        expected[1] = (b"k1", b"staged")
        assert expected == [first, *staged]

    @pytest.mark.case("TX-10")
    def test_a_rollback_takes_everything_back(self, store: KeyValue, task: TaskUnderTest) -> None:
        position = store.position()
        task.at(99)
        store.put(b"k1", b"new")
        store.delete(b"k2")
        store.transaction.delete_range("s", b"k5", None)
        assert Position({"": {0: 99}}) == store.position()
        store.rollback()
        assert [(b"k%d" % number, b"old") for number in range(10)] == list(store.all())
        assert (position, 0) == (store.position(), store.approximate_num_uncommitted_bytes())

    def test_a_dropped_space_is_hidden_at_once_and_gone_at_commit(self, store: KeyValue) -> None:
        transaction = store.transaction
        transaction.put("s.1", b"a", b"1")
        store.commit(11)
        transaction.drop("s.1")
        assert (["s"], ["s", "s.1"]) == (transaction.spaces(), transaction.spaces(COMMITTED))
        assert (None, b"1") == (transaction.get("s.1", b"a"), transaction.get("s.1", b"a", COMMITTED))
        transaction.rollback()
        assert b"1" == transaction.get("s.1", b"a")
        transaction.drop("s.1")
        store.commit(12)
        assert ["s"] == transaction.spaces(COMMITTED)

    def test_a_space_written_after_its_drop_has_the_new_content_alone(self, store: KeyValue) -> None:
        store.transaction.drop("s")
        store.put(b"new", b"1")
        store.commit(11)
        assert [(b"new", b"1")] == list(store.all(COMMITTED))


class TestCommitting:
    @pytest.mark.case("TX-11")
    def test_data_and_offset_are_committed_together(self, store: KeyValue, task: TaskUnderTest) -> None:
        store.put(b"k1", b"new")
        assert 10 == store.committed_offset()
        store.commit(11)
        assert 11 == store.committed_offset()
        store.put(b"k1", b"uncommitted")
        if task.setup.persistent:
            again = task.restart(KeyValue("s", **task.setup.options))
            assert (11, b"new") == (again.committed_offset(), again.get(b"k1"))

    @pytest.mark.case("TX-12", "CP-01")
    def test_a_commit_without_offset_takes_the_offset_away(self, store: KeyValue) -> None:
        store.commit(None)
        assert store.committed_offset() is None
        assert store.recover(5) is None

    @pytest.mark.case("TX-14")
    def test_the_gauge_counts_every_write_and_ends_with_the_transaction(self, store: KeyValue) -> None:
        assert 0 == store.approximate_num_uncommitted_bytes()
        store.put(b"k1", b"12345")
        assert 7 == store.approximate_num_uncommitted_bytes()
        store.put(b"k1", b"12345")
        store.put(b"k2", None)
        assert 16 == store.approximate_num_uncommitted_bytes()
        for number in range(30):
            store.put(b"k%d" % (number % 10), b"1234")
        assert 16 + 30 * 6 == store.approximate_num_uncommitted_bytes()
        store.commit(11)
        assert 0 == store.approximate_num_uncommitted_bytes()

    @pytest.mark.case("TX-31")
    def test_restoring_goes_past_the_open_transaction(self, store: KeyValue) -> None:
        store.put(b"staged", b"1")
        staged = store.approximate_num_uncommitted_bytes()
        store.restore([ChangelogRecord("s", b"restored", b"2", 0)], offset=11)
        assert staged == store.approximate_num_uncommitted_bytes()
        store.rollback()
        assert (None, b"2", 11) == (store.get(b"staged"), store.get(b"restored", COMMITTED), store.committed_offset())


@pytest.mark.case("TX-13")
@pytest.mark.parametrize("persistent", [True, False])
def test_a_store_without_transactions_has_nothing_uncommitted(tmp_path: Path, persistent: bool) -> None:
    task = TaskUnderTest(Setup(None, persistent=persistent), tmp_path)
    store = task.open(KeyValue("s", mechanism=None, persistent=persistent))
    store.put(b"a", b"1")
    assert (0, b"1") == (store.approximate_num_uncommitted_bytes(), store.get(b"a", COMMITTED))
    assert not store.transactional()
    task.stores.close()


def raising(*_: object) -> None:
    raise OSError("killed")


class TestCrashes:
    """A dead process is simulated by releasing the folder without closing the stores."""

    def opened(self, folder: Path, *, mechanism: TransactionalMechanism | None, exactly_once: bool = True) -> KeyValue:
        self.stores = TaskStores(folder, exactly_once=exactly_once)
        store = KeyValue("s", mechanism=mechanism)
        store.init(self.stores)
        return store

    def die(self) -> None:
        self.stores.database.close()

    def written(self, folder: Path, mechanism: TransactionalMechanism | None, *, exactly_once: bool = True) -> None:
        store = self.opened(folder, mechanism=mechanism, exactly_once=exactly_once)
        store.put(b"a", b"committed")
        store.commit(1)
        store.put(b"a", b"uncommitted")

    @pytest.mark.case("TX-23", "CP-06")
    def test_at_least_once_goes_on_with_what_is_there(self, tmp_path: Path) -> None:
        self.written(tmp_path, None, exactly_once=False)
        self.die()
        store = self.opened(tmp_path, mechanism=None, exactly_once=False)
        assert (1, b"uncommitted") == (store.committed_offset(), store.get(b"a"))
        self.stores.close()

    @pytest.mark.case("TX-24", "TX-17", "CP-06")
    def test_exactly_once_wipes_a_store_without_transactions_and_restores_it(self, tmp_path: Path) -> None:
        self.written(tmp_path, None)
        self.die()
        with pytest.raises(TaskCorrupted, match="belongs to no commit"):
            self.opened(tmp_path, mechanism=None)
        self.stores.wipe("s")
        store = KeyValue("s", mechanism=None)
        store.init(self.stores)
        assert [] == list(store.all())
        store.restore([ChangelogRecord("s", b"a", b"committed", 0)], offset=1)
        store.put(b"b", b"on")
        assert {b"a": b"committed", b"b": b"on"} == dict(store.all())
        self.stores.close()

    def test_a_wipe_that_is_cut_leaves_no_offset_without_the_data(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.written(tmp_path, TransactionalMechanism.INDEXED_BATCH)
        self.stores.close()
        self.stores = TaskStores(tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr(self.stores.database, "drop", raising)
            with pytest.raises(OSError, match="killed"):
                self.stores.wipe("s")
        self.die()
        with pytest.raises(TaskCorrupted, match="data, but no committed offset"):
            self.opened(tmp_path, mechanism=TransactionalMechanism.INDEXED_BATCH)
        self.stores.wipe("s")
        store = KeyValue("s")
        store.init(self.stores)
        assert (None, []) == (store.committed_offset(), list(store.all()))
        self.stores.close()

    @pytest.mark.case("TX-17")
    @pytest.mark.parametrize("mechanism", TransactionalMechanism)
    def test_a_transactional_store_is_kept(self, tmp_path: Path, mechanism: TransactionalMechanism) -> None:
        self.written(tmp_path, mechanism)
        self.die()
        # Here the dead one's temporary store is still open; its folder is deleted all the same.
        temporary = tmp_path / "s.uncommitted" / "LOCK"
        assert (mechanism is TransactionalMechanism.SECONDARY_STORE) == temporary.exists()
        store = self.opened(tmp_path, mechanism=mechanism)
        assert (1, b"committed") == (store.committed_offset(), store.get(b"a"))
        self.stores.close()

    @pytest.mark.case("TX-25", "CP-07")
    @pytest.mark.parametrize("mechanism", [None, TransactionalMechanism.INDEXED_BATCH])
    def test_data_without_offset_is_corruption(self, tmp_path: Path, mechanism: TransactionalMechanism | None) -> None:
        store = self.opened(tmp_path, mechanism=mechanism)
        store.put(b"a", b"1")
        store.commit(None)
        self.stores.close()
        with pytest.raises(TaskCorrupted, match="no committed offset"):
            self.opened(tmp_path, mechanism=mechanism)
        self.stores.wipe("s")
        self.stores.close()
        self.opened(tmp_path, mechanism=mechanism)
        self.stores.close()

    @pytest.mark.case("CP-08")
    def test_a_store_in_memory_needs_no_offset(self, tmp_path: Path) -> None:
        task = TaskUnderTest(Setup(None, persistent=False), tmp_path, exactly_once=True)
        store = task.open(KeyValue("s", mechanism=None, persistent=False))
        store.put(b"a", b"1")
        assert [] == list(task.restart(KeyValue("s", mechanism=None, persistent=False)).all())
        task.stores.close()

    @pytest.mark.case("TX-26")
    def test_wiping_a_damaged_store_leaves_the_others_alone(self, tmp_path: Path) -> None:
        self.written(tmp_path, TransactionalMechanism.INDEXED_BATCH)
        other = KeyValue("other")
        other.init(self.stores)
        other.put(b"x", b"kept")
        other.commit(7)
        self.stores.database.write({"checkpoint": [(b"s", b"{damaged")]})
        self.die()
        with pytest.raises(TaskCorrupted, match="unreadable"):
            self.opened(tmp_path, mechanism=TransactionalMechanism.INDEXED_BATCH)
        self.stores.wipe("s")
        store, other = KeyValue("s"), KeyValue("other")
        for one in (store, other):
            one.init(self.stores)
        assert (None, 7, b"kept") == (store.get(b"a"), other.committed_offset(), other.get(b"x"))
        self.stores.close()

    @pytest.mark.case("TX-27")
    @pytest.mark.parametrize("mechanism", [None, *TransactionalMechanism])
    def test_closing_and_opening_again_and_again_is_never_corruption(
        self, tmp_path: Path, mechanism: TransactionalMechanism | None
    ) -> None:
        for turn in range(1, 4):
            store = self.opened(tmp_path, mechanism=mechanism)
            assert (turn - 1 or None, turn - 1) == (store.committed_offset(), len(list(store.all())))
            store.put(b"%d" % turn, b"x")
            store.commit(turn)
            self.stores.close()

    def test_a_store_without_transactions_that_was_written_after_its_commit_is_not_closed_cleanly(
        self, tmp_path: Path
    ) -> None:
        self.written(tmp_path, None)
        self.stores.close()
        with pytest.raises(TaskCorrupted):
            self.opened(tmp_path, mechanism=None)
        self.die()

    @pytest.mark.case("TX-28")
    def test_switching_transactions_on_after_a_crash_wipes_once(self, tmp_path: Path) -> None:
        self.written(tmp_path, None)
        self.die()
        batch = TransactionalMechanism.INDEXED_BATCH
        with pytest.raises(TaskCorrupted):
            self.opened(tmp_path, mechanism=batch)
        self.stores.wipe("s")
        self.stores.close()
        for turn in range(2):
            store = self.opened(tmp_path, mechanism=batch)
            assert turn == len(list(store.all()))
            store.put(b"a", b"1")
            store.commit(turn + 1)
            self.stores.close()


def test_an_indexed_batch_keeps_nothing_of_the_spaces_of_transactions_before() -> None:
    transaction = IndexedBatchTransaction("s", MemoryBase())
    for number in range(3):
        transaction.put(f"s.{number}", b"k", b"v")
        assert [f"s.{number}"] == list(transaction.overlays)
        transaction.commit("checkpoint", [])
    transaction.put("s.9", b"k", b"v")
    transaction.rollback()
    assert ({}, 0) == (transaction.overlays, transaction.memory_bytes)
    assert ["s.0", "s.1", "s.2"] == transaction.spaces()


class TestCheckpoints:
    @pytest.fixture
    def stores(self, tmp_path: Path) -> TaskStores:
        return TaskStores(tmp_path)

    def entry(self, stores: TaskStores, name: str) -> dict[str, object]:
        raw = stores.database.get("checkpoint", name.encode())
        assert raw is not None
        return json.loads(raw)

    @pytest.mark.case("CP-02")
    def test_a_negative_offset_is_refused(self, stores: TaskStores) -> None:
        store = KeyValue("s")
        store.init(stores)
        with pytest.raises(ValueError, match="negative"):
            store.commit(-1)
        stores.close()

    @pytest.mark.case("CP-03")
    def test_a_negative_offset_that_is_found_counts_as_unknown(self, stores: TaskStores) -> None:
        space, [(key, raw)] = stores.version_entries("s", StoreVersion(offset=3))
        stores.database.write({space: [(key, present(raw).replace(b'"offset":3', b'"offset":-1'))]})
        assert StoreVersion() == stores.version("s", persistent=True)
        stores.close()

    @pytest.mark.case("CP-04")
    def test_an_unknown_offset_is_written_and_read_back_as_such(self, stores: TaskStores) -> None:
        store = KeyValue("s")
        store.init(stores)
        store.commit(5)
        assert (5, 5) == (store.committed_offset(), self.entry(stores, "s")["offset"])
        store.commit(None)
        found = stores.version("s", persistent=True)
        assert (None, None) == (store.committed_offset(), self.entry(stores, "s")["offset"])
        # What is unknown is the offset, not the store: an entry that says so is no missing entry.
        assert found is not None and (KeyValue.layout, None) == (found.layout, found.offset)
        assert stores.version("another", persistent=True) is None
        stores.close()

    @pytest.mark.case("CP-11")
    def test_an_entry_says_format_layout_offset_time_and_position(self, stores: TaskStores) -> None:
        for version in (
            StoreVersion(layout="key-value/1", offset=None),
            StoreVersion("window/1", 7, "id", 99, Position({"in": {0: 5, 11: 6}}), True, 5_000),
        ):
            space, entries = stores.version_entries("s", version)
            stores.database.write({space: entries})
            assert version == stores.version("s", persistent=True)
        expected = {
            "format": 1,
            "layout": "window/1",
            "offset": 7,
            "topic_id": "id",
            "stream_time_ms": 99,
            "position": '{"in":{"0":5,"11":6}}',
            "running": True,
            "written_at_ms": 5_000,
        }
        assert expected == self.entry(stores, "s")
        assert stores.version("unknown", persistent=True) is None
        stores.close()

    @pytest.mark.case("CP-09")
    @pytest.mark.parametrize("name", [".checkpoint", "checkpoint", "default", "", "a/b"])
    def test_a_reserved_name_is_refused(self, stores: TaskStores, name: str) -> None:
        with pytest.raises(ValueError):
            KeyValue(name).init(stores)

    @pytest.mark.parametrize("name", sorted(OWN_SPACES))
    def test_a_pipelines_task_refuses_it_before_a_commit_could_lose_its_state(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(InvalidConfig, match=f"store=`{name}`"):
            TaskDatabase(tmp_path / "task", [name], RocksConfig())
        assert not (tmp_path / "task").exists()

    @pytest.mark.case("CP-09")
    def test_a_name_is_taken_once(self, stores: TaskStores) -> None:
        KeyValue("s").init(stores)
        with pytest.raises(ValueError, match="already"):
            KeyValue("s").init(stores)
        stores.close()

    @pytest.mark.case("CP-10")
    @pytest.mark.parametrize("act", ["flush", "close"])
    def test_one_failing_store_does_not_keep_the_others(
        self, stores: TaskStores, act: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        done = []
        for name in ("a", "b", "c"):
            store = KeyValue(name)
            store.init(stores)

            def failing(name: str = name) -> None:
                done.append(name)
                if name != "c":
                    raise OSError(name)

            monkeypatch.setattr(store, act, failing)
        with pytest.raises(OSError, match="a"):
            getattr(stores, act)()
        assert ["a", "b", "c"] == done
        assert (act == "flush") == stores.database.is_open
        stores.database.close()

    def test_another_format_is_refused(self, stores: TaskStores) -> None:
        stores.database.write({"checkpoint": [(b"s", b'{"format":2}')]})
        with pytest.raises(FormatUnsupported, match="another format"):
            KeyValue("s").init(stores)
        stores.database.close()


def test_a_closed_task_gives_its_folder_free_although_iterators_are_held(tmp_path: Path) -> None:
    task = TaskUnderTest(DISK, tmp_path)
    store = task.open(KeyValue("s"))
    store.put_all([(b"a", b"1"), (b"b", b"2")])
    store.commit(1)
    held = store.all()
    assert (b"a", b"1") == next(held)
    again = task.restart(KeyValue("s"))
    with pytest.raises(InvalidStateStore):
        next(held)
    assert b"2" == again.get(b"b")
    task.stores.close()
