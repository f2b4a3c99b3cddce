"""Clones and going back of a deployed query of several tasks, its batches committed without Spark."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from ops.past import rewind_all
from ops.reset import reset_all
from pipelines import clone as clone_module
from pipelines import names
from pipelines.clone import Cloned, clone
from pipelines.deploy import DeployedQuery, deployed_queries
from pipelines.engine.journal import Journal
from pipelines.metastore.embedded import deploy
from pipelines.past import past_version
from pipelines.plan import plan_hash
from pipelines.registry import Registry
from pipelines.reset import EARLIEST, Target, reset
from pipelines.rewind import rewind
from pipelines.settings import Settings
from statestore.batches import (
    DONE,
    DRIVER,
    PLANNED,
    BatchesLog,
    DriverLog,
    Order,
    Planned,
    Range,
    encode,
    encode_fields,
)
from statestore.config import KafkaConfig
from statestore.errors import InvalidConfig, InvalidInput, RollforwardError, Unavailable, Unrecoverable
from statestore.kafka.admin import Admin, Topic
from statestore.kafka.groups import GroupOffsets
from statestore.kafka.producer import ProducerFatal, TransactionalProducer
from statestore.kafka.reader import Reader
from statestore.layouts.local import PREFIX
from statestore.partitioner import task_of
from statestore.snapshots.schedule import Snapshotter
from statestore.snapshots.service import Snapshots
from statestore.task import Task
from tests.support.pipeline import settings_for
from tests.support.present import present
from tests.support.task import ROCKS, commit_batch

SQL = """CREATE STREAM s (a VARCHAR, n INT) WITH (kafka_topic = '{topic}', value_format = 'json');
CREATE TABLE q AS SELECT a, COUNT(*) AS records FROM s GROUP BY a EMIT CHANGES;
"""
TABLE_SQL = """CREATE TABLE s (k VARCHAR PRIMARY KEY, a VARCHAR) WITH (kafka_topic = '{topic}', value_format = 'json');
CREATE TABLE q AS SELECT a, COUNT(*) AS records FROM s GROUP BY a EMIT CHANGES;
"""
STATELESS_SQL = "CREATE STREAM large AS SELECT a, n FROM s WHERE n > 5 EMIT CHANGES;"
PAIR_SQL = f"""{SQL}CREATE STREAM s2 (a VARCHAR, n INT) WITH (kafka_topic = '{{topic}}2', value_format = 'json');
CREATE TABLE r AS SELECT a, COUNT(*) AS records FROM s2 GROUP BY a EMIT CHANGES;
"""
Model = dict[bytes, bytes]


class Written:
    """A deployed pipeline whose batches are committed by hand; `models` is its store after each."""

    def __init__(self, kafka: str, name: str, home: Path, sql: str = SQL) -> None:
        self.settings: Settings = settings_for(home, kafka, tasks=2)
        self.kafka = self.settings.kafka_config()
        self.admin = Admin(self.kafka)
        self.source: Topic = self.admin.create(f"{name}-in", partitions=1, settings={})
        self.registry = Registry(self.settings.metastore)
        deploy(sql.format(topic=self.source.name), name, self.settings, self.registry)
        self.row = self.registry.pipeline(name)
        self.deployed: DeployedQuery = deployed_queries(self.row)[0]
        self.models: list[Model] = []

    def tell_of_a_lost_end(self, start: int) -> None:
        """A batch without rows whose plan says that the source has lost what was read from `start` on."""
        batch, before = len(self.models), present(self.log(self.deployed).planned)
        lost = tuple(replace(r, start=start, end=r.end) for r in before.ranges)
        ranges = tuple(replace(r, start=start, end=start) for r in before.ranges)
        planned = Planned(batch, before.plan, ranges, lost, floor=batch, cut=batch)
        self._driver({PLANNED: encode(planned), DONE: encode_fields(batch=batch)})
        self.models.append(self.models[-1])

    def batch(self, changes: Model, *, snapshot: bool = False) -> None:
        """Commit a batch of one source record; a task without rows commits nothing."""
        tasks = self.deployed.query.tasks
        by_task: dict[int, Model] = defaultdict(dict)
        for key, value in changes.items():
            by_task[task_of(key, tasks)][key] = value
        self.commit(by_task, {}, snapshot=snapshot)
        self.models.append({**(self.models[-1] if self.models else {}), **changes})

    def commit(self, changes: Mapping[int, Model], orders: Mapping[int, Order], *, snapshot: bool) -> None:
        """Commit the next batch, with each task's changes."""
        batch, specs = len(self.models), self.deployed.task_specs(self.settings.states)
        plan, config = plan_hash(self.deployed.query), self.settings.snapshot_config()
        assert config is not None
        epoch = self._driver({DRIVER: encode_fields(started_at=time.time(), plan=plan)})
        for spec in specs:
            mine, order = changes.get(spec.number), orders.get(spec.number)
            task = Task(spec, epoch, self.kafka, ROCKS, transactions=True, snapshots=Snapshots(config))
            task.open()
            if mine or order:
                commit_batch(task, batch, mine or {}, plan=plan, ends={"0": batch + 1}, order=order)
            if snapshot and task.committed_batch >= 0:
                Snapshotter(config, list).take(task)
            task.close()
        ranges = (Range(self.source.name, self.source.topic_id, 0, batch, batch + 1),)
        before = self.log(self.deployed).planned
        kept = (0, 0) if before is None else (before.floor, before.cut)
        planned = Planned(batch, plan, ranges, floor=kept[0], cut=kept[1])
        self._driver({PLANNED: encode(planned), DONE: encode_fields(batch=batch)})

    def _driver(self, records: Mapping[bytes, bytes]) -> int:
        return self.drive(self.deployed, records)

    def drive(self, deployed: DeployedQuery, records: Mapping[bytes, bytes]) -> int:
        """Write as the query's driver."""
        query = deployed.query
        producer = TransactionalProducer(self.kafka, names.driver_id(deployed.pipeline, query.name))
        producer.init()
        producer.begin()
        offsets: list[int] = []
        for key, value in records.items():
            producer.produce(
                deployed.batches_topic, key=key, value=value, partition=query.tasks, on_offset=offsets.append
            )
        producer.flush()
        producer.commit()
        producer.close()
        return offsets[0]

    def content(self, deployed: DeployedQuery, batch: int | None = None) -> Model:
        """All tasks' entries at a batch, without times."""
        found: Model = {}
        with past_version(deployed, self.settings, batch=batch) as version:
            for spec in deployed.task_specs(self.settings.states):
                found |= {key: value[8:] for key, value in version.task(spec).database.scan("q")}
        return found

    def log(self, deployed: DeployedQuery) -> DriverLog:
        return BatchesLog(Reader(self.kafka), deployed.batches_topic, tasks=deployed.query.tasks).driver_log()

    def group_offset(self, deployed: DeployedQuery) -> int:
        group = GroupOffsets(self.kafka, names.group(deployed.pipeline, "q"))
        return group.committed([(self.source.name, 0)])[self.source.name, 0][0]

    def clone(self, name: str, *, batch: int | None = None) -> tuple[Cloned, DeployedQuery]:
        made = clone(self.row, name, self.settings, self.registry, batch=batch, at_ms=None)
        return made[0], deployed_queries(self.registry.pipeline(name))[0]


@pytest.fixture
def written(kafka: str, unique: str, tmp_path: Path) -> Iterator[Written]:
    """Four batches, a snapshot at the second; the third has rows of one task alone."""
    written = Written(kafka, unique, tmp_path / "home")
    written.batch({b"k%d" % n: b"0" for n in range(20)})
    written.batch({b"k%d" % n: b"1" for n in range(10, 30)}, snapshot=True)
    written.batch({b"k0": b"2"})
    written.batch({b"k%d" % n: b"3" for n in range(5)})
    yield written
    written.registry.close()


def send(config: KafkaConfig, topic: str, count: int) -> None:
    producer = TransactionalProducer(config, f"{topic}-test")
    producer.init()
    producer.begin()
    for _ in range(count):
        producer.produce(topic, key=b"k", value=b"{}", partition=0)
    producer.commit()
    producer.close()


def test_a_query_of_several_tasks_is_read_copied_and_brought_back(written: Written, unique: str) -> None:
    original, models = written.deployed, written.models
    assert models == [written.content(original, batch) for batch in range(4)]

    # A clone holds the version, goes on where its input stood, and takes nothing of the original's.
    before = written.log(original)
    cloned, copy = written.clone(f"{unique}_copy", batch=2)
    assert (2, len(models[2]), True) == (cloned.batch, cloned.keys, cloned.copied_now)
    assert models[2] == written.content(copy)
    assert (2, 3) == (written.log(copy).done, written.group_offset(copy))
    assert not written.clone(f"{unique}_copy", batch=2)[0].copied_now
    assert before == written.log(original)
    newest, copy_of_newest = written.clone(f"{unique}_newest")
    assert (3, models[3]) == (newest.batch, written.content(copy_of_newest))

    # Back to the second batch, as the fifth; the ones before stay what they were.
    went = rewind(original, written.settings, written.registry, batch=1, at_ms=None)
    assert (1, 4, 5, 0) == (went.batch, went.as_batch, went.puts, went.deletes)
    assert [*models, models[1]] == [written.content(original, batch) for batch in range(5)]
    assert (4, 2) == (written.log(original).done, written.group_offset(original))


def test_a_table_s_aggregation_is_copied_with_what_its_rows_count_for(kafka: str, unique: str, tmp_path: Path) -> None:
    written = Written(kafka, unique, tmp_path / "home", TABLE_SQL)
    row_of, order = PREFIX + b"row", Order(7, 0)
    group = next(key for key in (b"g%d" % n for n in range(9)) if task_of(key, 2) == 1)
    # Every task keeps what a row counts for, and one of them the group.
    written.commit({0: {row_of: b"elsewhere"}, 1: {group: b"1", row_of: group}}, {0: order, 1: order}, snapshot=True)
    written.models.append({})
    cloned, copy = written.clone(f"{unique}_copy")
    assert (0, 1) == (cloned.batch, cloned.keys), "entries of rows are no keys"
    with past_version(copy, written.settings) as version:
        tasks = [dict(version.entries(spec)) for spec in copy.task_specs(written.settings.states)]
    found = [{key: value[8:] for key, value in entries.items()} for entries in tasks]
    assert [{row_of: b"elsewhere"}, {group: b"1", row_of: group}] == found
    with pytest.raises(InvalidInput, match="cannot be brought back"):
        rewind(written.deployed, written.settings, written.registry, batch=0, at_ms=None)
    written.registry.close()


class Killed(BaseException):
    """Ends the command as a kill does."""


def killed_at(monkeypatch: pytest.MonkeyPatch, point: str, *, passes: int = 0) -> None:
    """The next command ends at the point, after it has passed it so often."""
    left = iter(range(passes))

    def reach(reached: str) -> None:
        if reached == point and next(left, None) is None:
            raise Killed

    monkeypatch.setattr(clone_module, "reach", reach)


def test_a_clone_that_is_not_whole_does_not_start_whatever_it_lacks(
    kafka: str, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = Written(kafka, unique, tmp_path / "home", SQL + STATELESS_SQL)
    written.batch({b"k%d" % n: b"0" for n in range(20)})
    table, stateless = deployed_queries(written.row)
    written.deployed = stateless
    written.models.clear()
    written.batch({b"k": b"0"})
    written.deployed = table
    name = f"{unique}_copy"

    def started() -> list[bool]:
        """Whether each query of the clone may run."""
        found = []
        for query in deployed_queries(written.registry.pipeline(name)):
            with closing(Journal(query, written.kafka, attempts=1)) as journal:
                try:
                    journal.own()
                    found.append(True)
                except InvalidConfig as error:
                    assert "clone is not complete" in str(error)
                    assert unique == error.fields["origin"]
                    found.append(False)
        return found

    # Before any, behind one, and in the middle of the other.
    for point, passes, whole in (("clone.deployed", 0, 0), ("clone.marked", 0, 0), ("clone.marked", 1, 1)):
        killed_at(monkeypatch, point, passes=passes)
        with pytest.raises(Killed):
            written.clone(name)
        assert [True] * whole + [False] * (2 - whole) == started()
    monkeypatch.undo()
    # That somebody has tried to start it is no reason to refuse the command that goes on with it.
    assert written.clone(name)[0].keys == 20
    assert [True, True] == started()
    written.registry.close()


def test_what_could_not_be_right_is_refused(written: Written, unique: str) -> None:
    original = written.deployed
    with pytest.raises(InvalidInput, match="name of its own"):
        written.clone(unique)
    other, _ = deploy(SQL.format(topic=written.source.name), f"{unique}_other", written.settings, written.registry)
    written.drive(deployed_queries(other)[0], {DRIVER: encode_fields(started_at=0)})
    with pytest.raises(InvalidInput, match="another pipeline of this name"):
        written.clone(f"{unique}_other", batch=1)
    # Records behind the batch are gone: the query could not run forward.
    send(written.kafka, written.source.name, 4)
    written.admin.trim(written.source.name, 0, before=3)
    with pytest.raises(InvalidInput, match="were deleted"):
        rewind(original, written.settings, written.registry, batch=1, at_ms=None)
    # Another query reads the results.
    reader = SQL.replace("CREATE TABLE q", "CREATE TABLE r").format(topic=original.query.output_topic)
    deploy(reader, f"{unique}_reader", written.settings, written.registry)
    with pytest.raises(InvalidInput, match="a second time"):
        rewind(original, written.settings, written.registry, batch=3, at_ms=None)
    assert written.models[3] == written.content(original, 3)


def test_what_refuses_one_query_changes_nothing_of_the_others(kafka: str, unique: str, tmp_path: Path) -> None:
    settings = settings_for(tmp_path / "home", kafka, tasks=2)
    second_source = Admin(settings.kafka_config()).create(f"{unique}-in2", partitions=1, settings={})
    written = Written(kafka, unique, tmp_path / "home", PAIR_SQL)
    first, second = deployed_queries(written.row)
    for deployed, source in ((first, written.source), (second, second_source)):
        written.deployed, written.source = deployed, source
        written.models.clear()
        written.batch({b"k": b"0"})
        written.batch({b"k": b"1"})
    before = written.log(first)

    def require_refused(work: Callable[[], object], error: type[RollforwardError], match: str) -> None:
        with pytest.raises(error, match=match) as refused:
            work()
        assert "queries_done" not in refused.value.fields
        assert before == written.log(first)

    def go_back() -> object:
        at_ms = int(time.time() * 1000) + 1
        return rewind_all(
            written.registry, written.settings, unique, None, batch=None, at_ms=at_ms, dry_run=False, tell=ignored
        )

    def begin_anew() -> object:
        target = Target(edge=EARLIEST)
        return reset_all(written.registry, written.settings, unique, None, target, dry_run=False)

    # The second one's source has lost what it would read again.
    send(written.kafka, second_source.name, 4)
    written.admin.trim(second_source.name, 0, before=3)
    require_refused(go_back, InvalidInput, "were deleted")
    require_refused(lambda: written.clone(f"{unique}_copy"), InvalidInput, "were deleted")
    assert written.registry.find(f"{unique}_copy") is None
    # And now it is another topic.
    written.admin.delete([second_source.name])
    written.admin.await_gone(second_source.name)
    written.admin.create(second_source.name, partitions=1, settings={})
    require_refused(begin_anew, Unrecoverable, "created again")
    written.registry.close()


def ignored(_step: str, _detail: str) -> None:
    """Progress that nobody watches."""


def test_a_reset_cannot_be_undone_by_going_back(written: Written) -> None:
    # It has deleted results that no record behind the batch would write again.
    original = written.deployed
    done = reset(original, written.settings, written.registry, Target(edge=EARLIEST), dry_run=False)
    assert (4, {}) == (done.as_batch, written.content(original))
    for dry_run in (True, False):
        with pytest.raises(InvalidInput, match=r"batch 4, a reset .* wrote results of records before it"):
            rewind(original, written.settings, written.registry, batch=3, at_ms=None, dry_run=dry_run)
    # What came behind it can be gone back to, and takes along where the end of going back is.
    written.models.append({})
    written.batch({b"k1": b"5"})
    written.batch({b"k1": b"6"})
    assert 4 == present(written.log(original).planned).floor
    assert 5 == rewind(original, written.settings, written.registry, batch=5, at_ms=None).batch
    assert (7, 4) == (present(written.log(original).planned).batch, present(written.log(original).planned).floor)


def test_nothing_reads_on_from_where_the_source_has_lost_what_was_read(written: Written, unique: str) -> None:
    original = written.deployed
    # Batches 0 to 3 have read offsets 0 to 3; then the log is cut to 2, and others are written there.
    written.tell_of_a_lost_end(2)
    send(written.kafka, written.source.name, 8)

    def require_refused(batch: int) -> None:
        with pytest.raises(InvalidInput, match=r"lost records that were read.*first=.4."):
            rewind(original, written.settings, written.registry, batch=batch, at_ms=None, dry_run=True)
        with pytest.raises(InvalidInput, match=r"lost records that were read.*first=.4."):
            written.clone(f"{unique}_copy", batch=batch)

    # The batch that tells it has no rows: the newest position is still one before it.
    for batch in (1, 3, 4):
        require_refused(batch)
    written.batch({b"k1": b"5"})
    written.batch({b"k1": b"6"})
    require_refused(4)
    cloned, copy = written.clone(f"{unique}_copy", batch=5)
    assert (5, 6) == (cloned.batch, written.group_offset(copy))
    assert 7 == rewind(original, written.settings, written.registry, batch=5, at_ms=None).as_batch
    # Neither going back nor a reset makes the offsets before mean again what they did.
    with pytest.raises(InvalidInput, match="lost records that were read"):
        rewind(original, written.settings, written.registry, batch=3, at_ms=None)
    assert 8 == reset(original, written.settings, written.registry, Target(edge=EARLIEST), dry_run=False).as_batch
    assert (8, 4) == (present(written.log(original).planned).floor, present(written.log(original).planned).cut)
    with pytest.raises(InvalidInput, match="lost records that were read"):
        written.clone(f"{unique}_other", batch=3)


def test_going_back_cannot_be_undone_before_its_records_are_read_again(written: Written) -> None:
    original = written.deployed
    assert 4 == rewind(original, written.settings, written.registry, batch=1, at_ms=None).as_batch
    with pytest.raises(InvalidInput, match="has not read again all that the batch has"):
        rewind(original, written.settings, written.registry, batch=3, at_ms=None)
    # Further back it can go at any time.
    assert 5 == rewind(original, written.settings, written.registry, batch=0, at_ms=None).as_batch


def test_what_has_lost_its_producer_ends_its_own_transaction_first(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nobody, itself included, can read the batches topic to its end before that.
    original, topic = written.deployed, written.deployed.batches_topic

    def lose(producer: TransactionalProducer, *_: object) -> None:
        producer.flush()
        raise ProducerFatal("producer is unusable: send_offsets_to_transaction")

    began = time.monotonic()
    with monkeypatch.context() as patch, pytest.raises(Unavailable, match="nothing was changed"):
        patch.setattr(TransactionalProducer, "send_offsets", lose)
        rewind(original, written.settings, written.registry, batch=1, at_ms=None)
    assert time.monotonic() - began < written.kafka.request_timeout_s
    partitions = original.query.tasks + 1
    assert written.admin.ends(topic, partitions=partitions) == written.admin.stable_ends(topic, partitions=partitions)
    assert 4 == rewind(original, written.settings, written.registry, batch=1, at_ms=None).as_batch
