"""Any order of writing, snapshots, collections, crashes and recoveries, over storage that fails, against a model of
all committed versions.

After every step: each manifest that reads back restores to exactly its batch. A stale listing may show what is gone
for a while, so listings are stale by one call at most and collections look again.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from statestore.config import ObjectsConfig, RocksConfig, SnapshotConfig
from statestore.errors import DataCorrupted, RollforwardError
from statestore.objects.base import ObjectMissing
from statestore.objects.local import LocalObjects
from statestore.snapshots.collect import collect
from statestore.snapshots.hashes import Hashes
from statestore.snapshots.layout import TaskLayout
from statestore.snapshots.manifest import Manifest
from statestore.snapshots.repository import Repository, Unreadable
from statestore.snapshots.restore import restore_snapshot
from statestore.snapshots.take import take_snapshot
from statestore.spaces.base import Changes
from statestore.version import ChangelogPosition, Checkpoint, TaskDatabase
from tests.support.faulty import KINDS, FaultyObjects

LIFE_S, AGE_S = 300.0, 1_000.0
CONFIG = SnapshotConfig(ObjectsConfig("file:///x"), keep=2, retention_s=500.0, minimum_age_s=AGE_S, pin_life_s=LIFE_S)
ROCKS = RocksConfig(write_buffer_bytes=64 * 1024, block_cache_bytes=1024 * 1024)
Model = dict[bytes, bytes]


class SnapshotMachine(RuleBasedStateMachine):
    """One task's store, its snapshots, and the model: every committed version by batch."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="snapshots-"))
        self.objects = FaultyObjects(LocalObjects(self.folder / "objects"))
        self.repository = Repository(self.objects, TaskLayout("p/q/id/0/", "id"))
        self.models: dict[int, Model] = {-1: {}}
        self.batch = -1
        self.hashes = Hashes()
        self.database = self._open()
        self.number = 0

    def _open(self) -> TaskDatabase:
        return TaskDatabase(self.folder / "0", ["s"], ROCKS)

    def teardown(self) -> None:
        self.database.close()
        shutil.rmtree(self.folder)

    @rule(changes=st.dictionaries(st.binary(min_size=1, max_size=1), st.one_of(st.none(), st.binary(max_size=3))))
    def write(self, changes: dict[bytes, bytes | None]) -> None:
        """A batch commits and is applied."""
        self.batch += 1
        self._apply(changes.items())
        model = {**self.models[self.batch - 1], **changes}
        self.models[self.batch] = {key: value for key, value in model.items() if value is not None}

    def _apply(self, changes: Changes) -> None:
        checkpoint = Checkpoint(self.batch, {"s": ChangelogPosition("t", self.batch)})
        space, entries = self.database.entries(checkpoint)
        self.database.database.write({"s": changes, space: entries})

    @precondition(lambda self: self.batch >= 0)
    @rule(faults=st.sets(st.sampled_from(KINDS)), seed=st.integers(0, 2**16))
    def snapshot(self, faults: set[str], seed: int) -> None:
        """The newest version is snapshotted, or the attempt fails somewhere."""
        copy = self.folder / "copy"
        self.database.database.copy_to(copy)
        about = Manifest(
            "p", "q", 0, 1, "id", 1, "plan", 1, self.batch, 0, int(self.objects.now_s * 1000),
            {"s": ChangelogPosition("t", self.batch)}, (), "",
        )  # fmt: skip
        self._attempt(faults, seed, lambda: take_snapshot(self.repository, about, copy, self.hashes, CONFIG))
        shutil.rmtree(copy)

    @rule(faults=st.sets(st.sampled_from(KINDS)), seed=st.integers(0, 2**16))
    def collect(self, faults: set[str], seed: int) -> None:
        """A collection, or a part of one."""
        self._attempt(faults, seed, lambda: collect(self.repository, CONFIG))

    def _attempt(self, faults: set[str], seed: int, work: object) -> None:
        self.objects.faults, self.objects._random = frozenset(faults), random.Random(seed)
        try:
            work()  # type: ignore[operator]
        except (RollforwardError, ValueError):
            # It failed; what it has left behind is what this test is about.
            pass
        finally:
            self.objects.faults = frozenset()

    @rule()
    def late_requests_land(self) -> None:
        self.objects.land()

    @rule(seconds=st.sampled_from([1.0, LIFE_S, AGE_S / 2, AGE_S, 10 * AGE_S]))
    def time_passes(self, seconds: float) -> None:
        self.objects.advance(seconds)

    @rule()
    def crash_and_reopen(self) -> None:
        """The store comes back as it was: what was applied is there."""
        self.database.close()
        self.hashes = Hashes()
        self.database = self._open()
        assert self.models[self.batch] == self._content(self.database)

    @rule(seed=st.integers(0, 2**16), faults=st.sets(st.sampled_from(("before", "truncated"))))
    def lose_the_disk(self, seed: int, faults: set[str]) -> None:
        """Restore the newest that can be, and apply the batches after it, as the changelog gives them."""
        self.database.close()
        self.hashes = Hashes()
        shutil.rmtree(self.folder / "0")
        self._attempt(faults, seed, self._restore_newest)
        self.database = self._open()
        stands = self.database.checkpoint()
        if stands is not None:
            assert self.models[stands.batch] == self._content(self.database)
        before = {} if stands is None else self.models[stands.batch]
        gone = dict.fromkeys(set(before) - set(self.models[self.batch]))
        self._apply([*gone.items(), *self.models[self.batch].items()])
        assert self.models[self.batch] == self._content(self.database)

    def _restore_newest(self) -> None:
        for manifest in self.repository.newest_first():
            if isinstance(manifest, Unreadable):
                continue
            try:
                restore_snapshot(self.repository, manifest, self.folder / "0", pin_life_s=LIFE_S)
                return
            except (ObjectMissing, DataCorrupted):
                assert not (self.folder / "0").exists(), "a failed restore leaves no folder"

    def _content(self, database: TaskDatabase) -> Model:
        return dict(database.database.scan("s"))

    @invariant()
    def every_manifest_restores_to_its_batch(self) -> None:
        inner = Repository(self.objects.inner, self.repository.layout)
        for manifest in inner.newest_first():
            assert isinstance(manifest, Manifest), manifest
            folder = self.folder / "check"
            restore_snapshot(inner, manifest, folder, pin_life_s=LIFE_S)
            database = TaskDatabase(folder, ["s"], ROCKS)
            assert self.models[manifest.batch] == self._content(database)
            assert manifest.batch == database.checkpoint().batch  # type: ignore[union-attr]
            database.close()
            shutil.rmtree(folder)


def test_any_order_of_steps_over_failing_storage() -> None:
    run_state_machine_as_test(
        SnapshotMachine,
        settings=settings(
            max_examples=25,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )


@pytest.mark.slow
def test_any_order_of_steps_over_failing_storage_at_length() -> None:
    run_state_machine_as_test(
        SnapshotMachine,
        settings=settings(
            max_examples=400,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )


@pytest.mark.parametrize("bug", ["whatever is listed is deleted", "half uploaded counts"])
def test_the_machine_finds_a_planted_bug(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it could not, passing would mean nothing."""
    import statestore.snapshots.collect as collecting
    import statestore.snapshots.take as taking

    if bug == "half uploaded counts":
        monkeypatch.setattr(taking, "_upload", lambda *_: {})
    else:
        monkeypatch.setattr(collecting, "_is_garbage", lambda *_: True)
        monkeypatch.setattr(collecting, "_is_still_old", lambda *_: True)
    with pytest.raises(ObjectMissing):
        run_state_machine_as_test(
            SnapshotMachine,
            settings=settings(
                max_examples=30,
                stateful_step_count=15,
                deadline=None,
                suppress_health_check=list(HealthCheck),
                database=None,
                derandomize=True,
                phases=[Phase.generate],
                report_multiple_bugs=False,
            ),
        )
