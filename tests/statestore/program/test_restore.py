"""What opening a task does with what it finds: the cheapest correct way, and refusals instead of wrong stores."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from statestore import committed, restore, tasksession
from statestore.clock import Moment, now_ms
from statestore.committed import CommittedStores
from statestore.config import KafkaConfig, StreamConfig
from statestore.context import ChangelogRecord, RecordContext, StoreVersion
from statestore.errors import (
    InvalidInput,
    InvalidStateStore,
    RollforwardError,
    TaskCorrupted,
    Unavailable,
    Unrecoverable,
)
from statestore.kafka.admin import Admin
from statestore.kafka.reader import Reader, Record
from statestore.kinds.buffered import Change
from statestore.kinds.key_value import KeyValue
from statestore.kinds.suppression import SuppressionBuffer
from statestore.listener import RestoreListener, RestoreLog, RestoreProgress, Restoring
from statestore.planning.plan import Way
from statestore.query.queries import KeyQuery
from statestore.query.request import QueryableStoreType, StateQueryRequest, StoreQueryParameters
from statestore.query.result import FailureReason
from statestore.query.stores import QueryableStores
from statestore.restore import Changelog, RestorePlan, load_store, plan_restore, restore_store
from statestore.store import Isolation
from statestore.tasksession import TaskParts, TaskSession
from statestore.taskstores import TaskStores, restoring_file
from statestore.version import ChangelogPosition
from tests.statestore.program.conftest import Start
from tests.support.counting import Counting, Input
from tests.support.present import present

NOW = 1_000_000_000
DAY = 86_400_000
LOCAL = StoreVersion(offset=40, topic_id="id", written_at_ms=NOW)
CHANGELOG = Changelog("c", "id", 0, 0, 60, DAY)
COMMITTED = ChangelogPosition("id", 50)


class TestPlan:
    def test_a_store_at_the_committed_offset_needs_nothing(self) -> None:
        assert Way.NOTHING is plan_restore("s", replace(LOCAL, offset=50), COMMITTED, CHANGELOG, NOW).way

    def test_a_store_behind_takes_the_tail_up_to_the_commit_and_not_what_lies_behind_it(self) -> None:
        plan = plan_restore("s", LOCAL, COMMITTED, CHANGELOG, NOW)
        assert (Way.ROLL_FORWARD, 40, 50) == (plan.way, plan.start, plan.end)

    def test_without_a_word_of_the_commit_all_there_is_counts(self) -> None:
        plan = plan_restore("s", LOCAL, None, CHANGELOG, NOW)
        assert (Way.ROLL_FORWARD, 40, 60) == (plan.way, plan.start, plan.end)

    @pytest.mark.parametrize(
        ("case", "local", "first"),
        [
            ("missing", StoreVersion(), 0),
            ("of another topic", replace(LOCAL, topic_id="other"), 0),
            ("ahead", replace(LOCAL, offset=51), 0),
            ("before the changelog's beginning", LOCAL, 41),
            ("older than deletions are kept", replace(LOCAL, written_at_ms=NOW - DAY), 0),
            ("written by a clock that was ahead", replace(LOCAL, written_at_ms=NOW + DAY), 0),
        ],
    )
    def test_a_local_store_is_restored_in_full_when_it_is(self, case: str, local: StoreVersion, first: int) -> None:
        changelog = replace(CHANGELOG, first=first, cleanup_policy="compact,delete")
        plan = plan_restore("s", local, COMMITTED, changelog, NOW)
        assert (Way.FULL_REPLAY, first, 50) == (plan.way, plan.start, plan.end)

    def test_a_compacted_changelog_that_lost_its_head_does_not_give_a_store(self) -> None:
        beheaded = replace(CHANGELOG, first=41)
        for local in (StoreVersion(), LOCAL):
            with pytest.raises(Unrecoverable, match="before offset 41 were deleted"):
                plan_restore("s", local, COMMITTED, beheaded, NOW)
        assert Way.ROLL_FORWARD is plan_restore("s", replace(LOCAL, offset=41), COMMITTED, beheaded, NOW).way

    def test_an_old_store_that_misses_nothing_is_used(self) -> None:
        old = replace(LOCAL, offset=50, written_at_ms=NOW - 2 * DAY)
        assert Way.NOTHING is plan_restore("s", old, COMMITTED, CHANGELOG, NOW).way

    @pytest.mark.parametrize("changed", [{"topic_id": "other"}, {"end": 49}])
    def test_a_changelog_that_lost_what_was_committed_is_refused(self, changed: dict[str, object]) -> None:
        with pytest.raises(Unrecoverable):
            plan_restore("s", LOCAL, COMMITTED, replace(CHANGELOG, **changed), NOW)  # type: ignore[arg-type]


def asleep(monkeypatch: pytest.MonkeyPatch, seconds: int) -> None:
    """The machine sleeps so long."""
    time_ns = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: time_ns() + seconds * 1_000_000_000)


def a_moment_ago() -> Moment:
    asked = Moment()
    asked.at_ms -= 1_000
    return asked


def test_a_suppression_buffer_is_restored_from_its_records(tmp_path: Path) -> None:
    logged: list[ChangelogRecord] = []
    before, after = TaskStores(tmp_path / "before", sink=logged.append), TaskStores(tmp_path / "after")
    buffer, restored = SuppressionBuffer("s"), SuppressionBuffer("s")
    buffer.init(before)
    buffer.put(7, b"k", Change(b"new", b"old"), RecordContext("t", 0, 0, 7))
    buffer.commit(1)
    # As a log gives them back, without the name of a store.
    records = [Record(r.key, r.value, at, r.timestamp_ms, r.headers) for at, r in enumerate(logged)]
    reader: Any = SimpleNamespace(read=lambda *_, **__: iter([records]))
    restored.init(after)
    restore_store(restored, RestorePlan(Way.FULL_REPLAY, "", 0, 1), CHANGELOG, reader, RestoreListener(), Moment())
    assert (1, 7, b"old") == (
        restored.num_records,
        restored.min_timestamp_ms,
        present(restored.prior_value(b"k")).value,
    )
    for stores in (before, after):
        stores.close()


class TestAge:
    """A version is as old as the moment from which on what follows it was committed, however late it is written."""

    @pytest.fixture
    def stores(self, tmp_path: Path) -> Iterator[TaskStores]:
        stores = TaskStores(tmp_path / "task")
        yield stores
        stores.close()

    @pytest.fixture
    def store(self, stores: TaskStores) -> KeyValue:
        """It stands at offset 40, for an hour."""
        store = KeyValue("s")
        store.init(stores)
        stores.version_at_ms = now_ms() - 3_600_000
        store.put(b"old", b"1")
        store.restore([], topic_id="id")
        store.commit(40)
        return store

    @pytest.fixture
    def reader(self) -> Any:
        """Of a changelog with two records behind that, each a chunk."""
        chunks = [[Record(b"new", b"%d" % offset, offset, NOW)] for offset in (40, 45)]
        return SimpleNamespace(read=lambda *_, **__: iter(chunks))

    @pytest.mark.parametrize("way", [Way.ROLL_FORWARD, Way.FULL_REPLAY, Way.NOTHING])
    def test_a_restored_store_is_as_old_as_the_question_and_until_then_as_old_as_it_was(
        self, stores: TaskStores, store: KeyValue, reader: Any, way: Way
    ) -> None:
        began_ms, asked, seen = store.committed_version.written_at_ms, a_moment_ago(), list[int]()
        stores.version_at_ms = asked.at_ms
        asking = Asking(lambda: seen.append(store.committed_version.written_at_ms))
        restore_store(store, RestorePlan(way, "", 40, 50), CHANGELOG, reader, asking, asked)
        assert (50, asked.at_ms) == (store.committed_offset(), store.committed_version.written_at_ms)
        meanwhile = {Way.ROLL_FORWARD: [began_ms] * 2, Way.FULL_REPLAY: [asked.at_ms] * 2, Way.NOTHING: []}
        assert meanwhile[way] == seen

    @pytest.mark.parametrize("way", [Way.ROLL_FORWARD, Way.FULL_REPLAY])
    def test_what_was_read_when_deletions_may_be_gone_does_not_go_into_the_store(
        self, store: KeyValue, reader: Any, way: Way, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # The local store was an hour old.
        age_s = DAY / 1000 - (3_500 if way is Way.ROLL_FORWARD else 0)
        listener = Asking(lambda: monkeypatch.setattr(Moment, "age_s", lambda _: age_s))
        with pytest.raises(Unavailable, match="longer than the changelog keeps deletions"):
            restore_store(store, RestorePlan(way, "", 40, 50), CHANGELOG, reader, listener, Moment())
        assert (41, b"40") == (store.committed_offset(), store.get(b"new"))

    def test_nor_is_an_end_believed_before_which_a_deletion_may_be_gone(
        self, store: KeyValue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Moment, "age_s", lambda _: DAY / 1000)
        nothing: Any = SimpleNamespace(read=lambda *_, **__: iter(()))
        plan = RestorePlan(Way.ROLL_FORWARD, "", 40, 50)
        with pytest.raises(Unavailable, match="keeps deletions"):
            restore_store(store, plan, CHANGELOG, nothing, RestoreListener(), Moment())
        assert 40 == store.committed_offset()

    @pytest.mark.parametrize("is_late", [False, True])
    def test_a_loaded_store_is_as_old_as_the_question(
        self, stores: TaskStores, store: KeyValue, is_late: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked, written = a_moment_ago(), list[Any]()
        stores.version_at_ms = asked.at_ms

        def load(*_: Any, **__: Any) -> int:
            if is_late:
                monkeypatch.setattr(Moment, "age_s", lambda _: DAY / 1000)
            return 2

        monkeypatch.setattr(restore, "load", load)
        database: Any = SimpleNamespace(spaces=list, write=lambda changes, **_: written.append(changes))
        nobody: Any = None
        with pytest.raises(Unavailable, match="keeps deletions") if is_late else nullcontext():
            plan, told = RestorePlan(Way.FULL_REPLAY, "", 0, 50), RestoreListener()
            load_store(store, plan, CHANGELOG, database, nobody, told, asked=asked, piece_bytes=1)
        expected = replace(store.committed_version, offset=50, topic_id="id", written_at_ms=asked.at_ms)
        version = dict([stores.version_entries("s", expected)])
        assert ([] if is_late else [version]) == written

    def test_a_commit_is_as_old_as_its_transactions_begin(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store, before_ms = KeyValue("s"), now_ms()
        config = StreamConfig("a", KafkaConfig("127.0.0.1:1"), ("in",), 0, tmp_path / "state")
        nothing: Any = SimpleNamespace(close=lambda **_: None)
        parts = TaskParts(config, [store], "owner", {}, RestoreListener(), None, lambda *_, **__: nothing)
        session = TaskSession(parts)
        assert before_ms <= (session.context.version_at_ms or 0) <= now_ms()
        # The opening was long ago.
        session.context.version_at_ms = 1
        store.init(session.context)
        monkeypatch.setattr(session, "_commit_offsets", lambda: asleep(monkeypatch, 2 * 86_400))
        monkeypatch.setattr(session.outbox, "deliver", lambda: None)
        session.transaction()
        session.apply()
        monkeypatch.undo()
        session.close()
        assert before_ms <= store.committed_version.written_at_ms <= now_ms()


class Told(RestoreListener):
    """Remembers what it was told; `suspend_after` records it raises."""

    def __init__(self, suspend_after: int | None = None) -> None:
        self.events: list[tuple[str, str, int]] = []
        self._left = suspend_after

    def on_restore_start(self, restoring: Restoring) -> None:
        self.events.append(("start", restoring.store, restoring.start))

    def on_batch_restored(self, restoring: Restoring, *, offset: int, records: int) -> None:
        self.events.append(("batch", restoring.store, records))
        if self._left is not None:
            raise Unavailable("suspended by the test")

    def on_restore_end(self, restoring: Restoring, *, records: int) -> None:
        self.events.append(("end", restoring.store, records))

    def on_restore_suspended(self, restoring: Restoring, *, records: int) -> None:
        self.events.append(("suspended", restoring.store, records))


class Asking(RestoreListener):
    """Asks a store whenever a batch of another, or of it, is restored."""

    def __init__(self, ask: Callable[[], object]) -> None:
        self.ask = ask
        self.answers: list[object] = []

    def on_batch_restored(self, restoring: Restoring, *, offset: int, records: int) -> None:
        self.answers.append(self.ask())


def read_elsewhere(config: StreamConfig, name: str) -> dict[bytes, bytes]:
    """What another process reads of a key-value store."""
    stores = CommittedStores(config.task_folder)
    store = KeyValue(name)
    try:
        store.init(stores)
        return dict(store.all())
    finally:
        stores.close()


def ways(program: object) -> dict[str, str]:
    return {name: plan.way.value for name, plan in program.task.plans.items()}  # type: ignore[attr-defined]


def test_after_a_clean_close_only_memory_is_restored(start: Start, feed: Input) -> None:
    program = start()
    feed.send(30)
    program.run()
    program.task.close()
    told = Told()
    again = start(listener=told)
    expected = dict.fromkeys((*program.of, "windows", "cached"), Way.NOTHING.value)
    assert {**expected, "memory": Way.FULL_REPLAY.value} == ways(again)
    first, *batches, last = told.events
    assert (("start", "memory", 0), ("end", "memory", 30)) == (first, last)
    # Kafka decides in how many batches the records come.
    assert {("batch", "memory")} == {(event, store) for event, store, _ in batches}
    assert 30 == sum(records for _, _, records in batches)


def test_a_suspended_restore_goes_on_where_it_was(start: Start, feed: Input, config: StreamConfig) -> None:
    program = start(of=("indexed",))
    feed.send(30)
    program.run()
    program.task.close()
    shutil.rmtree(config.task_folder)
    told = Told(suspend_after=1)
    with pytest.raises(Unavailable):
        start(of=("indexed",), listener=told)
    restored = told.events[1][2]
    assert [("start", "indexed", 0), ("batch", "indexed", restored), ("suspended", "indexed", restored)] == told.events
    told = Told()
    again = start(of=("indexed",), listener=told)
    begun = {store: at for event, store, at in told.events if event == "start"}
    # The others have not begun yet; the first goes on, unless Kafka gave all of its records at once.
    assert (0, 0) == (begun.pop("windows"), begun.pop("cached"))
    assert (["indexed"] if restored < 30 else []) == [store for store, at in begun.items() if at > 0]
    assert feed.expected(again) == again.content()


def test_progress_goes_from_nothing_to_everything(start: Start, feed: Input, config: StreamConfig) -> None:
    program = start(of=("indexed",))
    feed.send(30)
    program.run()
    program.task.close()
    shutil.rmtree(config.task_folder)
    told: list[tuple[int, int]] = []
    start(of=("indexed",), listener=RestoreProgress(lambda done, total: told.append((done, total))))
    assert (0, told[-1][1]) == (told[0][0], told[-1][0])
    assert sorted(told) == told
    assert isinstance(RestoreLog(), RestoreListener)


class TestReadersMeanwhile:
    """A store that is being restored lacks keys that are committed: it does not answer as if there were none."""

    @pytest.fixture
    def asking(self) -> Asking:
        return Asking(lambda: None)

    @pytest.fixture
    def program(self, start: Start, feed: Input, asking: Asking) -> Counting:
        """The store in memory is restored at every opening, the other one then stands where it did."""
        program = start(of=("memory", "indexed"), listener=asking)
        feed.send(30)
        program.run()
        asking.answers.clear()
        return program

    @pytest.mark.parametrize("name", ["memory", "indexed"])
    def test_a_query_is_not_answered(self, program: Counting, asking: Asking, name: str) -> None:
        stores = QueryableStores()
        stores.add(program.counts[name])
        request = StateQueryRequest.in_store(name).with_query(KeyQuery[str, int]("k0"))
        asking.ask = lambda: stores.query(request).partition_results[0].failure_reason
        program.task.open()
        assert {FailureReason.NOT_ACTIVE} == set(asking.answers)
        assert 5 == stores.query(request).partition_results[0].result

    def test_an_answer_from_before_an_opening_does_not_count(
        self, program: Counting, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The reader's thread may stand still between its looking at the store and its reading."""
        stores, store = QueryableStores(), program.counts["memory"]
        stores.add(store)

        def get(key: str, isolation: Isolation) -> None:
            program.task.open()

        monkeypatch.setattr(store, "get", get)
        result = stores.query(StateQueryRequest("memory", KeyQuery[str, int]("k0"))).partition_results[0]
        assert FailureReason.NOT_ACTIVE is result.failure_reason

    def test_a_store_in_hand_is_not_read_unless_it_may_be_stale(self, program: Counting, asking: Asking) -> None:
        stores = QueryableStores()
        stores.add(program.counts["memory"])
        parameters = StoreQueryParameters("memory", QueryableStoreType.KEY_VALUE)
        held, stale = stores.store(parameters), stores.store(parameters.enable_stale_stores())

        def ask() -> None:
            for read in (lambda: stores.store(parameters), lambda: held.get("k0")):
                with pytest.raises(InvalidStateStore, match="being restored"):
                    read()
            stale.get("k0")

        asking.ask = ask
        program.task.open()
        assert asking.answers
        assert 5 == held.get("k0")

    def test_another_process_waits(
        self,
        program: Counting,
        feed: Input,
        asking: Asking,
        config: StreamConfig,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(committed, "_OPEN_S", 0.01)
        program.task.close()
        shutil.copytree(config.task_folder, tmp_path / "before")
        feed.send(30, keys=9)
        program.run()
        program.task.close()
        shutil.rmtree(config.task_folder)
        shutil.copytree(tmp_path / "before", config.task_folder)
        asking.answers.clear()

        def ask() -> None:
            with pytest.raises(Unavailable, match="being restored"):
                read_elsewhere(config, "indexed")

        assert 7 == len(read_elsewhere(config, "indexed"))
        asking.ask = ask
        program.task.open()
        assert asking.answers
        program.task.close()
        assert 9 == len(read_elsewhere(config, "indexed"))

    def test_another_process_does_not_wait_for_stores_in_memory(
        self, program: Counting, asking: Asking, config: StreamConfig
    ) -> None:
        asking.ask = lambda: restoring_file(config.task_folder).exists()
        program.task.open()
        assert {False} == set(asking.answers)


class TestRefusals:
    """With a tail or nothing to replay alike: what Kafka has lost is said, never made up by an empty store."""

    @pytest.fixture
    def ended(self, start: Start, feed: Input) -> str:
        program = start(of=("indexed",))
        feed.send(10)
        program.run()
        program.task.close()
        return program.config.application

    def test_a_missing_changelog_topic(self, start: Start, kafka: str, config: StreamConfig, ended: str) -> None:
        Admin(config.kafka).delete([f"{ended}-indexed-changelog"])
        with pytest.raises(Unrecoverable, match="missing"):
            start(of=("indexed",))

    def test_a_changelog_topic_made_again(self, start: Start, kafka: str, config: StreamConfig, ended: str) -> None:
        admin, topic = Admin(config.kafka), f"{ended}-indexed-changelog"
        admin.delete([topic])
        while topic in admin.describe([topic]):
            pass
        admin.create(topic, partitions=1, settings={"cleanup.policy": "compact"})
        with pytest.raises(Unrecoverable, match="created again"):
            start(of=("indexed",))

    def test_what_is_on_disk_stays_as_it_is_and_may_be_read(
        self, start: Start, feed: Input, config: StreamConfig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It may be the last copy, also of a store that would have been restored before the one that cannot be."""
        of = ("indexed", "auto")
        program = start(of=of)
        feed.send(10)
        program.run()
        program.task.close()

        def planned(store: str, *facts: Any) -> RestorePlan:
            if store == "auto":
                raise Unrecoverable("kafka has lost its tail")
            plan = plan_restore(store, *facts)
            return replace(plan, way=Way.FULL_REPLAY, start=0) if store == "indexed" else plan

        monkeypatch.setattr(tasksession, "plan_restore", planned)
        with pytest.raises(Unrecoverable, match="lost its tail"):
            start(of=of)
        assert not restoring_file(config.task_folder).exists()
        assert [7, 7] == [len(read_elsewhere(config, name)) for name in of]

    @pytest.mark.parametrize("damaged", ["its task", "the store"])
    def test_what_is_damaged_is_not_deleted_either(
        self, start: Start, config: StreamConfig, ended: str, monkeypatch: pytest.MonkeyPatch, damaged: str
    ) -> None:
        def refused(store: str, local: StoreVersion, *facts: Any) -> RestorePlan:
            assert StoreVersion() == local
            raise Unrecoverable("changelog does not give the store")

        def corrupted(*_: object, **__: object) -> None:
            raise TaskCorrupted("made by the test")

        monkeypatch.setattr(tasksession, "plan_restore", refused)
        if damaged == "the store":
            monkeypatch.setattr(KeyValue, "init", corrupted)
        else:
            monkeypatch.setattr(tasksession.TaskSession, "_restore_all", corrupted)
        with monkeypatch.context() as kept:
            kept.setattr(tasksession, "wipe_task", lambda _: pytest.fail("the task is deleted"))
            kept.setattr(TaskStores, "wipe", lambda *_: pytest.fail("the store is deleted"))
            with pytest.raises(Unrecoverable, match="does not give"):
                start(of=("indexed",))
        assert not restoring_file(config.task_folder).exists()

    def test_a_changelog_whose_head_was_deleted(self, start: Start, config: StreamConfig, ended: str) -> None:
        admin, topic = Admin(config.kafka), f"{ended}-indexed-changelog"
        # Brokers refuse to delete records of a topic that is only compacted.
        admin.configure(topic, {"cleanup.policy": "compact,delete"})
        admin.trim(topic, 0, before=5)
        admin.configure(topic, {"cleanup.policy": "compact"})
        start(of=("indexed",)).task.close()
        shutil.rmtree(config.task_folder)
        with pytest.raises(Unrecoverable, match="before offset 5 were deleted"):
            start(of=("indexed",))
        # What was never there is not taken for an empty store.
        with pytest.raises(InvalidInput, match="no such store"):
            read_elsewhere(config, "indexed")

    def test_input_offsets_that_are_gone_beside_a_changelog_that_is_not(
        self, start: Start, kafka: str, ended: str
    ) -> None:
        admin = AdminClient({"bootstrap.servers": kafka})
        admin.delete_consumer_groups([ended])[ended].result()
        with pytest.raises(Unrecoverable, match="input offsets"):
            start(of=("indexed",))

    def test_input_offsets_that_are_gone_beside_a_changelog_whose_records_are_gone_too(
        self, start: Start, config: StreamConfig, ended: str
    ) -> None:
        admin, reader = Admin(config.kafka), Reader(config.kafka)
        admin.delete_groups([ended])
        for store in ("indexed", "windows", "cached"):
            topic = f"{ended}-{store}-changelog"
            admin.configure(topic, {"cleanup.policy": "compact,delete"})
            admin.trim(topic, 0, before=reader.begin_and_end(topic, 0)[1])
        with pytest.raises(Unrecoverable, match="or had some"):
            start(of=("indexed",))

    def test_an_input_topic_that_does_not_exist(self, start: Start) -> None:
        with pytest.raises(RollforwardError, match="input topic"):
            start(of=("indexed",), config={"inputs": ("nowhere",)})


def test_a_folder_that_another_process_holds_is_not_waited_for(start: Start, feed: Input) -> None:
    start(of=("indexed",))
    with pytest.raises(Unavailable, match="folder"):
        start(of=("indexed",))


def test_a_store_added_later_begins_empty(start: Start, feed: Input) -> None:
    program = start(of=("indexed",))
    feed.send(10)
    program.run()
    program.task.close()
    again = start(of=("indexed", "auto"))
    assert {} == again.content()["auto"]
    assert feed.expected(program)["indexed"] == again.content()["indexed"]


@pytest.mark.case("TX-26")
def test_one_damaged_store_is_restored_and_results_stay_exact(
    start: Start, feed: Input, config: StreamConfig, tmp_path: Path
) -> None:
    program = start(of=("indexed", "direct"))
    feed.send(30)
    program.run()
    # What a killed process leaves of a store without transactions: writes that belong to no commit.
    program.task.next_offset(program.input)
    program.counts["direct"].put("k0", 999)
    program.task.close()
    again = start(of=("indexed", "direct"))
    assert (Way.FULL_REPLAY.value, Way.NOTHING.value) == (ways(again)["direct"], ways(again)["indexed"])
    feed.send(10)
    again.run()
    assert feed.expected(again) == again.content()
    assert feed.expected_outputs() == feed.outputs()


@pytest.mark.case("TX-17")
@pytest.mark.parametrize(("of", "way"), [("direct", Way.FULL_REPLAY), ("indexed", Way.NOTHING)])
def test_an_unclean_close_costs_a_restore_only_without_transactions(
    start: Start, feed: Input, of: str, way: Way
) -> None:
    program = start(of=(of,))
    feed.send(30)
    program.run()
    feed.send(1)
    program.step(next(program.reader.read(program.input, 0, start=program.task.next_offset(program.input)))[0])
    program.task.close()
    again = start(of=(of,))
    assert way.value == ways(again)[of]
    again.run()
    assert feed.expected(again) == again.content()


def test_a_version_that_is_written_late_is_as_old_as_its_commit(
    start: Start, feed: Input, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was deleted meanwhile by a newer owner may be forgotten when it is rolled forward."""
    program = start(of=("indexed",))
    feed.send(10)

    def reached(point: str) -> None:
        if point == "program.committed":
            asleep(monkeypatch, 2 * 86_400)

    with monkeypatch.context() as patch:
        patch.setattr("statestore.tasksession.reach", reached)
        program.run()
    monkeypatch.undo()
    program.task.close()
    assert program.counts["indexed"].store.committed_version.written_at_ms <= now_ms()
    feed.send(5)
    other = start(of=("indexed",), folder="elsewhere")
    other.run()
    other.task.close()
    asleep(monkeypatch, 2 * 86_400)
    again = start(of=("indexed",))
    plan = again.task.plans["indexed"]
    assert Way.FULL_REPLAY is plan.way
    assert plan.reason.startswith("local store is older than the changelog keeps deletions")
    assert feed.expected(again) == again.content()


@pytest.mark.case("TX-27")
def test_clean_restarts_one_after_the_other_restore_nothing(start: Start, feed: Input) -> None:
    of = ("direct", "indexed", "secondary", "auto")
    for _ in range(4):
        program = start(of=of)
        assert feed.sent.total() == 0 or {Way.NOTHING.value} == set(ways(program).values())
        feed.send(10)
        program.run()
        program.task.close()
    assert feed.expected_outputs() == feed.outputs()


@pytest.mark.case("TX-24", "TX-25")
def test_a_damaged_folder_is_restored_from_the_changelogs(start: Start, feed: Input, config: StreamConfig) -> None:
    program = start(of=("direct", "indexed"))
    feed.send(30)
    program.run()
    program.task.close()
    for file in (config.task_folder / "committed").glob("CURRENT"):
        file.write_bytes(b"nonsense")
    again = start(of=("direct", "indexed"))
    assert feed.expected(again) == again.content()
    feed.send(10)
    again.run()
    assert feed.expected_outputs() == feed.outputs()


@pytest.mark.case("TX-23")
def test_at_least_once_takes_what_it_finds_and_goes_on(start: Start, feed: Input) -> None:
    program = start(of=("direct",), config={"exactly_once": False})
    feed.send(10)
    program.run()
    feed.send(5)
    for record in next(program.reader.read(program.input, 0, start=program.task.next_offset(program.input))):
        program.step(record)
    program.task.close()
    again = start(of=("direct",), config={"exactly_once": False})
    again.run()
    # The five records were counted when the first process ended, and once more by the second.
    assert 10 + 5 + 5 == sum(again.content()["direct"].values())
    assert feed.sent.total() == sum(again.content()["windows"].values())
