"""Any order of writing, snapshots, collections, crashes and recoveries, to the newest version and to those of the
past, over storage that fails, against a model of all committed versions.

Storage is a folder or a real S3 server; a changelog in memory follows Kafka's rules. Recovery is the product's own:
planner, restore, replay, and the way to a batch of the past. After every step: each manifest that reads back restores
to exactly its batch. While a request is delayed, somebody else collects, or takes a snapshot.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from infra.s3 import BUCKET
from statestore.batches import DONE, POSITION, BatchesLog, Position, encode, encode_fields
from statestore.bring_up import BringUp
from statestore.clock import Moment
from statestore.config import ObjectsConfig, RocksConfig, SnapshotConfig, StoreSpec, TaskSpec
from statestore.errors import RollforwardError, Unrecoverable
from statestore.layouts.timestamped import pack
from statestore.listener import RestoreListener
from statestore.objects.base import ObjectMissing, ObjectStore
from statestore.objects.local import LocalObjects
from statestore.objects.s3 import S3Objects
from statestore.planning.facts import gather, with_done, with_snapshots
from statestore.planning.plan import patience_with_snapshots_s
from statestore.planning.rates import Rates
from statestore.snapshots.collect import collect
from statestore.snapshots.copy import Steps, describe
from statestore.snapshots.hashes import Hashes
from statestore.snapshots.manifest import Manifest
from statestore.snapshots.repository import Repository
from statestore.snapshots.restore import restore_snapshot
from statestore.snapshots.service import Snapshots
from statestore.snapshots.take import take_snapshot
from statestore.travel.cut import Cut, look_back
from statestore.travel.past import OutOfReach
from statestore.version import ChangelogPosition, Checkpoint, TaskDatabase
from tests.support.faulty import KINDS, FaultyObjects
from tests.support.memory_log import MemoryLogs
from tests.support.s3 import RunningServer, SlowDowns

LIFE_S, AGE_S, DELETIONS_S = 300.0, 1_000.0, 2_000.0
CONFIG = SnapshotConfig(ObjectsConfig("file:///x"), keep=2, retention_s=500.0, minimum_age_s=AGE_S, pin_life_s=LIFE_S)
ROCKS = RocksConfig(write_buffer_bytes=64 * 1024, block_cache_bytes=1024 * 1024)
CHANGES, BATCHES = ("changes", 0), ("batches", 0)
Model = dict[bytes, bytes]
Changes = dict[bytes, bytes | None]

some_changes = st.dictionaries(
    st.sampled_from([b"a", b"b", b"c", b"d", b"e"]), st.one_of(st.none(), st.binary(max_size=3)), max_size=4
)
some_faults = st.sets(st.sampled_from(KINDS))
# Of those who only read.
reading_faults = st.sets(st.sampled_from(("before", "truncated", "delayed", "throttled")))
some_seed = st.integers(0, 2**16)


class SnapshotMachine(RuleBasedStateMachine):
    """One task's store, its changelog, its snapshots, and the model: every committed version by batch."""

    parallel = 1

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="snapshots-"))
        self.objects = FaultyObjects(self.make_objects(), parallel=self.parallel)
        self.spec = TaskSpec(
            "p", "q", 0, 1, "batches", "out", "dead", StoreSpec("s", "changes", "c"), self.folder / "0"
        )
        self.logs = MemoryLogs({"changes": "c", "batches": "b"}, lambda: self.objects.now_s, retention_s=DELETIONS_S)
        self.snapshots = Snapshots(CONFIG, self.objects)
        self.repository = self.snapshots.repository(self.spec, "b")
        self.models: dict[int, Model] = {-1: {}}
        self.position: Position | None = None
        self.steps, self.hashes = Steps(), Hashes()
        self.database = self._open()
        self.is_compacted = False
        self.checked: list[object] = []
        # Leases end by the clock that the delays move.
        self.clock = patch("statestore.snapshots.leases.Moment", self.objects.moment)
        self.clock.start()

    def make_objects(self) -> ObjectStore:
        return LocalObjects(self.folder / "objects")

    def _open(self) -> TaskDatabase:
        return TaskDatabase(self.folder / "0", ["s"], ROCKS)

    @property
    def batch(self) -> int:
        return -1 if self.position is None else self.position.batch

    @property
    def now_ms(self) -> int:
        return int(self.objects.now_s * 1000)

    def teardown(self) -> None:
        self.clock.stop()
        self.database.close()
        self.objects.inner.close()
        shutil.rmtree(self.folder)

    # Writing.

    @rule(changes=some_changes)
    def write(self, changes: Changes) -> None:
        """A batch commits and is applied."""
        position = self._commit(changes)
        written = {key: None if value is None else pack(value, self.now_ms) for key, value in changes.items()}
        space, entries = self.database.entries(Checkpoint(position.batch, position.stores, self.now_ms))
        self.database.database.write({"s": written.items(), space: entries})
        self.steps.add(position)

    def _commit(self, changes: Changes) -> Position:
        """In Kafka alone. A batch ends behind its last record, where its marker stands."""
        offset = 0 if self.position is None else self.position.stores["s"].offset
        if changes:
            offset = self.logs.end(*CHANGES) + len(changes)
        batch = self.batch + 1
        self.position = Position(batch, 1, "plan", {"s": ChangelogPosition("c", offset)}, {"0": batch + 1})
        record = (POSITION, encode(self.position))
        self.logs.transaction({CHANGES: list(changes.items()), BATCHES: [record]})
        self.logs.transaction({("batches", 1): [(DONE, encode_fields(batch=batch))]})
        model = {**self.models[batch - 1], **changes}
        self.models[batch] = {key: value for key, value in model.items() if value is not None}
        return self.position

    @rule(changes=some_changes)
    def give_up(self, changes: Changes) -> None:
        """A transaction is aborted."""
        self.logs.transaction({CHANGES: list(changes.items())}, commits=False)

    @rule(seed=some_seed)
    def compact(self, seed: int) -> None:
        """The broker compacts the changelog."""
        self.logs.compact(*CHANGES, random.Random(seed))
        self.is_compacted = True

    # Snapshots.

    @precondition(lambda self: self.batch >= 0)
    @rule(faults=some_faults, seed=some_seed)
    def snapshot(self, faults: set[str], seed: int) -> None:
        """The newest version is snapshotted, or the attempt fails somewhere; a collection may come in between."""
        self._attempt(faults, seed, lambda: self._take("copy", self.hashes), self._collect)

    def _take(self, name: str, hashes: Hashes) -> None:
        copy = self.folder / name
        self.database.database.copy_to(copy)
        try:
            checkpoint = self.database.checkpoint()
            assert checkpoint is not None and self.position is not None
            about = describe(self.spec, "b", self.position, checkpoint, self.steps.since_last())
            about = replace(about, taken_at_ms=self.now_ms)
            take_snapshot(self.repository, about, copy, hashes, CONFIG)
            self.steps.forget(about.batch)
        finally:
            shutil.rmtree(copy)

    @rule(faults=some_faults, seed=some_seed)
    def collect(self, faults: set[str], seed: int) -> None:
        """A collection, or a part of one; a snapshot may be begun in between."""
        beside = (lambda: self._take("beside", Hashes())) if self.batch >= 0 else None
        self._attempt(faults, seed, self._collect, beside)

    def _collect(self) -> None:
        collect(self.repository, CONFIG)

    def _attempt(
        self, faults: set[str], seed: int, work: Callable[[], None], beside: Callable[[], None] | None
    ) -> None:
        """What an attempt that fails has left behind is what this test is about."""
        with self._failing(faults, seed, beside), suppress(RollforwardError, ValueError):
            work()

    @contextmanager
    def _failing(self, faults: set[str], seed: int, beside: Callable[[], None] | None) -> Iterator[None]:
        """Storage fails within; `beside` happens while a request is delayed."""

        def quietly() -> None:
            assert beside is not None
            with suppress(RollforwardError):
                beside()

        self.objects.begin(faults, seed)
        self.objects.meanwhile = quietly if beside else None
        try:
            yield
        finally:
            self.objects.begin((), 0)
            self.objects.meanwhile = None

    @rule()
    def late_requests_land(self) -> None:
        self.objects.land()

    @rule(seconds=st.sampled_from([1.0, LIFE_S, AGE_S / 2, AGE_S, DELETIONS_S, 10 * AGE_S]))
    def time_passes(self, seconds: float) -> None:
        self.objects.advance(seconds)

    # Recovery.

    @rule(
        unapplied=st.lists(some_changes, max_size=2),
        loses_disk=st.booleans(),
        prefers_snapshots=st.booleans(),
        faults=reading_faults,
        seed=some_seed,
    )
    def crash_and_recover(
        self, unapplied: list[Changes], loses_disk: bool, prefers_snapshots: bool, faults: set[str], seed: int
    ) -> None:
        """The owner dies, the disk with it or not, after batches that committed and were not applied."""
        self.database.close()
        self.hashes, self.steps = Hashes(), Steps()
        for changes in unapplied:
            self._commit(changes)
        if loses_disk:
            shutil.rmtree(self.folder / "0")
        with self._failing(faults, seed, self._collect):
            self._recover(prefers_snapshots=prefers_snapshots)
        assert self.models[self.batch] == self._content(self.database)
        self.steps.begin(self.position, self.database.checkpoint())

    def _recover(self, *, prefers_snapshots: bool, transactions: bool = True) -> None:
        """As an opened task does."""
        database = self._open() if (self.folder / "0").exists() else None
        checkpoint = None if database is None else database.checkpoint()
        standing = BatchesLog(self.logs, "batches", tasks=1).standing(0)  # type: ignore[arg-type]
        found = gather(self.spec, self.logs, self.logs, standing.position, checkpoint, "", Moment())  # type: ignore[arg-type]
        found = with_done(found, self.spec, self.logs, standing.done, transactions=transactions)  # type: ignore[arg-type]
        rates = Rates(replay_records_per_s=1.0) if prefers_snapshots else Rates()
        found = replace(found, now_ms=self.now_ms, rates=rates)
        if patience_with_snapshots_s(self.spec, found):
            found = with_snapshots(found, self.repository)
        way = BringUp(self.spec, self.logs, self.repository, self._open, ROCKS, RestoreListener())  # type: ignore[arg-type]
        way.pin_life_s = LIFE_S
        with ExitStack() as undo:
            undo.callback(way.close)
            self.database = way.run(found, database).database
            undo.pop_all()
        stands = self.database.checkpoint()
        assert self.batch == (-1 if stands is None else stands.batch)

    @precondition(lambda self: self.batch >= 0)
    @rule(back=st.integers(0, 12), faults=reading_faults, seed=some_seed)
    def recover_to_the_past(self, back: int, faults: set[str], seed: int) -> None:
        """Any older version is exactly what it was, or refused with the nearest ones that can be had."""
        batch = max(0, self.batch - back)
        with self._failing(faults, seed, self._collect):
            try:
                assert self.models[batch] == self._past(self._look_back(batch))
                return
            except OutOfReach:
                assert self.is_compacted or faults, "everything is there"
            except RollforwardError:
                assert faults
                return
        cut = self._look_back(batch)
        try:
            assert self.models[batch] == self._past(cut)
        except OutOfReach as error:
            assert batch not in self.repository.batches()
            told = cut.out_of_reach(error).fields
            for nearest in (told["nearest_before"], told["nearest_after"]):
                if nearest is not None:
                    assert isinstance(nearest, int)
                    assert self.models[nearest] == self._past(self._look_back(nearest))

    def _look_back(self, batch: int) -> Cut:
        return look_back([self.spec], self.logs, self.logs, self.snapshots, batch=batch)  # type: ignore[arg-type]

    def _past(self, cut: Cut) -> Model:
        folder = self.folder / "past"
        _, database = cut.tasks[0].build(cut.batch, folder, ROCKS, pin_life_s=LIFE_S)
        try:
            return self._content(database)
        finally:
            database.close()
            shutil.rmtree(folder)

    def _content(self, database: TaskDatabase) -> Model:
        """Without times."""
        return {key: value[8:] for key, value in database.database.scan("s")}

    @invariant()
    def every_manifest_restores_to_its_batch(self) -> None:
        inner = Repository(self.objects.inner, self.repository.layout)
        layout = inner.layout
        there = [(o.key, o.bytes) for at in (layout.manifests, layout.files) for o in inner.objects.list(at)]
        if there == self.checked:
            return
        for manifest in inner.newest_first():
            assert isinstance(manifest, Manifest), manifest
            folder = self.folder / "check"
            restore_snapshot(inner, manifest, folder, pin_life_s=LIFE_S)
            database = TaskDatabase(folder, ["s"], ROCKS)
            assert self.models[manifest.batch] == self._content(database)
            assert manifest.batch == database.checkpoint().batch  # type: ignore[union-attr]
            database.close()
            shutil.rmtree(folder)
        self.checked = list(there)


def run(machine: type[SnapshotMachine], **changed: Any) -> None:
    """Any order of steps; what fails is printed with what repeats it."""
    base = {"deadline": None, "suppress_health_check": list(HealthCheck), "print_blob": True}
    run_state_machine_as_test(machine, settings=settings(**{**base, **changed}))


def over(server: RunningServer) -> type[SnapshotMachine]:
    """The machine on an S3 server, transfers at once, and one answer in twenty says that there are too many requests."""

    class OverS3(SnapshotMachine):
        parallel = 4

        def make_objects(self) -> ObjectStore:
            store = S3Objects(BUCKET, uuid.uuid4().hex, server.config)
            SlowDowns(store, chance=0.05)
            return store

    return OverS3


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The S3 client's pauses take no time; that it makes them is tested elsewhere."""
    monkeypatch.setattr("botocore.endpoint.time", SimpleNamespace(sleep=lambda _seconds: None))


def test_any_order_of_steps_over_failing_storage() -> None:
    run(SnapshotMachine, max_examples=25, stateful_step_count=25)


@pytest.mark.usefixtures("impatient")
def test_any_order_of_steps_over_a_failing_s3_server(s3proxy: RunningServer) -> None:
    run(over(s3proxy), max_examples=10, stateful_step_count=20)


@pytest.mark.slow
def test_any_order_of_steps_over_failing_storage_at_length() -> None:
    run(SnapshotMachine, max_examples=400, stateful_step_count=40)


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("name", ["s3proxy", "ministack"])
def test_any_order_of_steps_over_a_failing_s3_server_at_length(name: str, request: pytest.FixtureRequest) -> None:
    run(over(request.getfixturevalue(name)), max_examples=60, stateful_step_count=30)


@pytest.mark.parametrize("bug", ["whatever is listed is deleted", "half uploaded counts"])
def test_the_machine_finds_a_planted_bug(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it could not, passing would mean nothing."""
    if bug == "half uploaded counts":
        monkeypatch.setattr("statestore.snapshots.take._upload", lambda *_: {})
    else:
        monkeypatch.setattr("statestore.snapshots.collect._is_garbage", lambda *_: True)
        monkeypatch.setattr("statestore.snapshots.collect._is_still_old", lambda *_: True)
    # A file is gone, or with it a version that there must be. Found after some tens of examples, whichever come first.
    with pytest.raises((ObjectMissing, AssertionError)):
        run(
            SnapshotMachine,
            max_examples=500,
            stateful_step_count=15,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            report_multiple_bugs=False,
        )


@pytest.fixture
def machine() -> Iterator[SnapshotMachine]:
    """One whose steps a test chooses: a search would meet these rarely."""
    machine = SnapshotMachine()
    yield machine
    machine.teardown()


@pytest.mark.parametrize("is_planted", [False, True])
def test_the_machine_sees_a_deletion_come_back(
    machine: SnapshotMachine, is_planted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were a snapshot taken that is older than the changelog keeps deletions; as it is, another way is taken."""
    if is_planted:
        forever = {"cleanup.policy": "compact", "delete.retention.ms": str(1 << 62)}
        monkeypatch.setattr(MemoryLogs, "configs", lambda *_: forever)
    machine.write({b"a": b"1", b"b": b"1"})
    machine.snapshot(set(), 0)
    machine.write({b"a": None})
    machine.time_passes(2 * DELETIONS_S)
    for seed in range(5):
        machine.compact(seed)
    with pytest.raises(AssertionError) if is_planted else nullcontext():
        machine.crash_and_recover([{b"c": b"1"}], loses_disk=True, prefers_snapshots=True, faults=set(), seed=0)


@pytest.mark.parametrize("is_planted", [False, True])
def test_the_machine_sees_a_version_that_never_was(
    machine: SnapshotMachine, is_planted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were a tail that compaction has cut taken for a whole one; as it is, the version is refused."""
    if is_planted:
        monkeypatch.setattr("statestore.travel.past._first_lost", lambda *_: None)
    machine.write({b"a": b"1"})
    machine.snapshot(set(), 0)
    machine.write({b"a": b"2"})
    machine.write({b"a": b"3"})
    for seed in range(5):
        machine.compact(seed)
    with pytest.raises(AssertionError) if is_planted else nullcontext():
        machine.recover_to_the_past(back=1, faults=set(), seed=0)


# What Kafka has lost: a search would leave nothing to compare with.

# Offsets of one batch in its logs.
A_BATCH = 2


@pytest.mark.parametrize("holds", ["store", "snapshot", "snapshot and older store"])
@pytest.mark.parametrize("kept", [0, 1])
@pytest.mark.parametrize("unfinished", [0, 1])
def test_committed_batches_that_kafka_has_lost_of_one_task_alone_are_not_given_up(
    machine: SnapshotMachine, unfinished: int, kept: int, holds: str
) -> None:
    """The driver's partition says that they are done, so nobody runs them again: what is ahead is their last copy."""
    folder, older = machine.spec.folder, machine.folder / "older"
    for number in range(3):
        machine.write({b"a": b"%d" % number})
        if number == 0:
            machine.database.database.copy_to(older)
    if holds != "store":
        machine.snapshot(set(), 0)
    machine.logs.lose(*BATCHES, end=kept * A_BATCH)
    machine.logs.lose("batches", 1, end=(3 - unfinished) * A_BATCH)
    # Else it shows in the changelog.
    machine.logs.lose(*CHANGES, end=kept * A_BATCH)
    machine.database.close()
    if holds != "store":
        shutil.rmtree(folder)
    if holds == "snapshot and older store":
        # The machine has lost its power as well, and what had not been synced.
        shutil.copytree(older, folder)
    with pytest.raises(Unrecoverable, match="kafka has lost committed batches of this task") as raised:
        machine._recover(prefers_snapshots=True)
    # Only what has them is to be moved away.
    is_local_ahead = holds == "store" or (holds == "snapshot and older store" and kept == 0)
    assert (folder if is_local_ahead else None) == raised.value.fields.get("local")
    assert "move away" in raised.value.hint
    if holds != "store":
        assert [2] == machine.repository.batches()
    machine.database = machine._open()
    assert holds != "store" or machine.models[2] == machine._content(machine.database)


def test_records_of_a_changelog_behind_the_position_tell_that_positions_were_lost(machine: SnapshotMachine) -> None:
    """A next batch would come behind them, and whoever replays it would apply them. So there is no way on."""
    for number in range(3):
        machine.write({b"a": b"%d" % number})
    machine.logs.lose(*BATCHES, end=A_BATCH)
    machine.database.close()
    shutil.rmtree(machine.spec.folder)
    with pytest.raises(Unrecoverable, match="kafka has lost committed batches of this task") as raised:
        machine._recover(prefers_snapshots=False)
    assert A_BATCH == raised.value.fields["record_behind"]
    assert "move away" not in raised.value.hint
    machine.database = machine._open()


@pytest.mark.parametrize("transactions", [True, False])
def test_a_task_without_rows_of_late_has_lost_nothing(machine: SnapshotMachine, transactions: bool) -> None:
    """What was given up lies behind its position; without transactions, too, what a crash has left of a batch."""
    machine.write({b"a": b"0"})
    machine.logs.transaction({CHANGES: [(b"a", b"1")]}, commits=not transactions)
    machine.logs.transaction({("batches", 1): [(DONE, encode_fields(batch=2))]})
    machine.database.close()
    machine._recover(prefers_snapshots=False, transactions=transactions)
    assert machine.models[0] == machine._content(machine.database)


def test_committed_batches_that_kafka_has_lost_as_a_whole_come_again(machine: SnapshotMachine) -> None:
    for number in range(3):
        machine.write({b"a": b"%d" % number})
    machine.snapshot(set(), 0)
    for where in (BATCHES, CHANGES, ("batches", 1)):
        machine.logs.lose(*where, end=A_BATCH)
    machine.database.close()
    machine.models = {batch: model for batch, model in machine.models.items() if batch < 1}
    machine.position = BatchesLog(machine.logs, "batches", tasks=1).position(0)  # type: ignore[arg-type]
    machine._recover(prefers_snapshots=True)
    assert machine.models[0] == machine._content(machine.database)
    assert [] == machine.repository.batches()
