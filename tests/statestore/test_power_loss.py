"""What power loss and failing disks leave: an older version, complete, with its offset; or a clear error, never a mixture.

After power loss a log is shorter than it was written, cut anywhere behind its last sync. Beyond that, files are cut and
bytes flipped that no power loss would touch.
"""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from statestore.errors import DataCorrupted, FormatUnsupported, TaskCorrupted
from statestore.kinds.key_value import KeyValue
from statestore.kinds.window import Window
from statestore.rocks import files
from statestore.rocks.errors import LockHeld
from statestore.store import Isolation, TransactionalMechanism
from statestore.taskstores import TaskStores
from tests.statestore.crashes import Killed, dying, photograph
from tests.statestore.test_state_machine import chosen_seed

INDEXED = TransactionalMechanism.INDEXED_BATCH
SECONDARY = TransactionalMechanism.SECONDARY_STORE
Content = list[tuple[object, bytes]]
BLOCK = 32 * 1024
DAMAGED = "damaged"


def keys() -> list[bytes]:
    return [b"%03d" % number for number in range(120)]


class Task:
    """Two stores, and what each held at each of its commits."""

    def __init__(self, folder: Path, mechanism: TransactionalMechanism) -> None:
        self.folder, self.mechanism = folder, mechanism
        self.versions: dict[tuple[str, int | None], Content] = {("s", None): [], ("w", None): []}
        self.task, self.commits = TaskStores(folder, copy_bytes_max=500), 0
        self.stores = self._opened(self.task)

    def _opened(self, task: TaskStores) -> tuple[KeyValue, Window]:
        lengths: dict[str, Any] = {"retention_ms": 100, "window_size_ms": 10, "segment_interval_ms": 50}
        stores = KeyValue("s", mechanism=self.mechanism), Window("w", **lengths, mechanism=self.mechanism)
        for store in stores:
            store.init(task)
        return stores

    def reopen(self, folder: Path) -> None:
        """Go on with a photograph, as another process does after a kill."""
        self.task.close()
        shutil.rmtree(self.folder)
        shutil.move(folder, self.folder)
        self.task = TaskStores(self.folder, copy_bytes_max=500)
        self.stores = self._opened(self.task)

    def write(self) -> None:
        """One transaction of both stores: not committed yet, but already a version."""
        self.commits += 1
        choose = random.Random(self.commits)
        totals, windows = self.stores
        for key in choose.sample(keys(), 40):
            totals.put(key, None if choose.random() < 0.2 else b"%d:" % self.commits + choose.randbytes(30))
            windows.put(key[:2], b"%d" % self.commits, self.commits * 20)
        totals.transaction.delete_range("s", b"%03d" % (self.commits * 7), b"%03d" % (self.commits * 7 + 3))
        for store in self.stores:
            self.versions[store.name, self.commits] = list(store.all())

    def commit(self) -> None:
        for store in self.stores:
            store.commit(self.commits)

    def found(self, folder: Path) -> tuple[int | None, ...] | str:
        """Open what is there and read everything in every way; the offsets of the stores, or that damage was told."""
        task = TaskStores(folder)
        try:
            offsets = []
            for store in self._opened(task):
                offset = store.recover(None)
                expected = self.versions[store.name, offset]
                assert expected == list(store.all(Isolation.READ_COMMITTED))
                if isinstance(store, KeyValue):
                    assert expected == list(store.reverse_all())[::-1]
                    values = [dict(expected).get(key) for key in keys()]
                    assert values == store.transaction.get_many("s", keys())
                    assert values == [store.get(key) for key in keys()]
                offsets.append(offset)
            return tuple(offsets)
        except (TaskCorrupted, DataCorrupted, FormatUnsupported):
            return DAMAGED
        finally:
            task.close()
            shutil.rmtree(folder)


def damaged(folder: Path, name: str, content: bytes) -> Path:
    """A copy of the folder with one file's content replaced."""
    copy = folder.with_name("damaged")
    shutil.copytree(folder, copy)
    (copy / name).write_bytes(content)
    return copy


def logs(folder: Path) -> list[Path]:
    """RocksDB's write-ahead logs of the committed data, oldest first."""
    return sorted((folder / "committed").glob("*.log"))


def record_ends(log: bytes) -> Iterator[int]:
    """Where the physical records of a log end: 7 bytes of checksum, length and type, then the data; none spans a block."""
    at = 0
    while at + 7 <= len(log):
        length, kind = struct.unpack_from("<HB", log, at + 4)
        if kind == 0 or BLOCK - at % BLOCK < 7:
            at += BLOCK - at % BLOCK
            continue
        at += 7 + length
        yield at


@pytest.fixture
def indexed(tmp_path: Path) -> Iterator[tuple[Task, Path]]:
    """Twelve commits, the first four of them flushed to files, and the folder as power loss finds it."""
    task, copy = Task(tmp_path / "task", INDEXED), tmp_path / "copy"
    for number in range(12):
        task.write()
        task.commit()
        if number == 3:
            task.task.database.flush()
    photograph(task.folder, copy)
    task.task.close()
    yield task, copy


def test_a_log_cut_at_or_in_any_record_is_an_older_version(indexed: tuple[Task, Path]) -> None:
    task, folder = indexed
    (*_, path) = logs(folder)
    log, name = path.read_bytes(), str(path.relative_to(folder))
    ends = list(record_ends(log))
    assert ends[-1] == len(log)
    seen = []
    for start, end in zip([0, *ends], ends, strict=False):
        for cut in {start + 3, (start + end) // 2, end - 1, end}:
            found = task.found(damaged(folder, name, log[:cut]))
            assert DAMAGED != found
            seen.append((cut, found))
    offsets = [found for _, found in sorted(seen)]
    assert offsets == sorted(offsets)
    assert (12, 12) == offsets[-1]
    assert len(set(offsets)) > 3


def test_a_byte_flipped_in_the_log_is_an_older_version(indexed: tuple[Task, Path]) -> None:
    task, folder = indexed
    (*_, path) = logs(folder)
    log, name = path.read_bytes(), str(path.relative_to(folder))
    choose = random.Random(chosen_seed())
    for at in choose.sample(range(len(log)), 20):
        assert (4, 4) <= task.found(damaged(folder, name, flipped(log, at)))  # type: ignore[operator]


def flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :]


def without_spares(folder: Path) -> None:
    """What RocksDB deletes some time after it is of no use any more, deleted now: logs that are in files."""
    manifest = files.read_manifest(folder / "committed")
    for path in logs(folder):
        if int(path.stem) < manifest.keep:
            path.unlink()


@pytest.mark.parametrize("kind", ["running", "reopened", "flushed"])
def test_a_manifest_cut_at_or_in_any_record_is_told_or_an_older_version(tmp_path: Path, kind: str) -> None:
    """Its newer records tell of files whose logs are gone, of spaces that came or went, and of what opening found.

    Without a record after the last flush, RocksDB opens some of what is left as a version that never was.
    """
    task, copy = Task(tmp_path / "task", INDEXED), tmp_path / "copy"
    for number in range(16):
        task.write()
        task.commit()
        if number in (5, 10) or (kind == "flushed" and number == 15):
            task.task.database.flush()
        if kind == "reopened" and number in (2, 8):
            photograph(task.folder, copy)
            task.reopen(copy)
    photograph(task.folder, copy)
    task.task.close()
    without_spares(copy)
    (path,) = (copy / "committed").glob("MANIFEST-*")
    manifest, name = path.read_bytes(), str(path.relative_to(copy))
    ends = list(record_ends(manifest))
    assert (16, 16) == task.found(damaged(copy, name, manifest))
    outcomes = [
        task.found(damaged(copy, name, manifest[:cut]))
        for start, end in zip([0, *ends], ends, strict=False)
        for cut in ({end} if kind == "flushed" else {(start + end) // 2, end})
    ]
    assert outcomes.count(DAMAGED) > len(ends) // 2


def test_an_older_log_that_is_cut_damaged_or_lost_is_told_or_an_older_version(indexed: tuple[Task, Path]) -> None:
    task, folder = indexed
    choose = random.Random(chosen_seed())
    outcomes = []
    for path in logs(folder)[:-1]:
        log, name = path.read_bytes(), str(path.relative_to(folder))
        ends = list(record_ends(log))
        for cut in {0, *(cut for end in ends for cut in (end, end - 2))} - {len(log)}:
            outcomes.append(task.found(damaged(folder, name, log[:cut])))
        for at in choose.sample(range(len(log)), min(len(log), 10)):
            outcomes.append(task.found(damaged(folder, name, flipped(log, at))))
        copy = damaged(folder, name, log)
        (copy / name).unlink()
        outcomes.append(task.found(copy))
    assert DAMAGED in outcomes


def test_a_folder_with_holes_that_another_owner_writes_is_locked(indexed: tuple[Task, Path]) -> None:
    """What one sees of a folder that is being written may not fit together: that is no damage."""
    _, folder = indexed
    owner = TaskStores(folder)
    assert owner.database.is_open
    (manifest,) = (folder / "committed").glob("MANIFEST-*")
    content = manifest.read_bytes()
    for end in record_ends(content):
        manifest.write_bytes(content[:end])
        if files.problem(folder / "committed"):
            break
    assert files.problem(folder / "committed")
    with pytest.raises(LockHeld):
        assert TaskStores(folder).database
    owner.close()


def state_files(folder: Path) -> list[Path]:
    """Everything but info logs and the lock."""
    return [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith("LOG") and path.name != "LOCK"
    ]


def test_a_data_file_cut_or_lost_is_told(indexed: tuple[Task, Path]) -> None:
    task, folder = indexed
    for path in [*sorted((folder / "committed").glob("*.sst")), folder / "committed" / "CURRENT"]:
        content, name = path.read_bytes(), str(path.relative_to(folder))
        for cut in (0, 1, len(content) // 2, len(content) - 1):
            assert DAMAGED == task.found(damaged(folder, name, content[:cut])), (name, cut)
        copy = damaged(folder, name, content)
        (copy / name).unlink()
        assert DAMAGED == task.found(copy), name


@pytest.mark.parametrize("pattern", ["*.sst", "MANIFEST-*"])
def test_a_flipped_byte_is_told_or_changes_nothing(indexed: tuple[Task, Path], pattern: str) -> None:
    task, folder = indexed
    choose = random.Random(chosen_seed())
    told = 0
    for path in sorted((folder / "committed").glob(pattern)):
        content, name = path.read_bytes(), str(path.relative_to(folder))
        for at in choose.sample(range(len(content)), 25):
            found = task.found(damaged(folder, name, flipped(content, at)))
            assert found in ((12, 12), DAMAGED), (name, at)
            told += found == DAMAGED
    assert told > 0


SECONDARY_POINTS = {
    "secondary.synced": 1,
    "secondary.commit-file-unnamed": 1,
    "secondary.commit-file-written": 2,
    "secondary.in-copy": 2,
    "secondary.before-last-write": 2,
    "secondary.copied": 2,
    "secondary.dropped": 2,
}


@pytest.mark.parametrize("point", SECONDARY_POINTS)
def test_power_loss_while_a_secondary_store_is_copied_leaves_the_old_or_the_new_version(
    tmp_path: Path, point: str
) -> None:
    """The log is cut anywhere behind its last sync, which was at the end of the commit before."""
    task, copy = Task(tmp_path / "task", SECONDARY), tmp_path / "copy"
    task.write()
    task.commit()
    (path,) = logs(task.folder)
    synced = path.stat().st_size
    task.write()
    with pytest.raises(Killed), dying([point], task.folder, copy):
        task.commit()
    task.task.close()
    log, name = (copy / "committed" / path.name).read_bytes(), f"committed/{path.name}"
    ends = [end for end in record_ends(log) if end >= synced]
    for cut in {synced, *ends, *(end - 2 for end in ends if end - 2 > synced)}:
        assert (SECONDARY_POINTS[point], 1) == task.found(damaged(copy, name, log[:cut])), cut


def test_a_committed_secondary_store_that_is_damaged_is_told(tmp_path: Path) -> None:
    task, copy = Task(tmp_path / "task", SECONDARY), tmp_path / "copy"
    task.write()
    with pytest.raises(Killed), dying(["secondary.commit-file-written"], task.folder, copy):
        task.commit()
    task.task.close()
    choose = random.Random(chosen_seed())
    outcomes = set()
    for path in state_files(copy / "s.uncommitted"):
        content, name = path.read_bytes(), str(path.relative_to(copy))
        for cut in {0, len(content) // 2}:
            outcomes.add(task.found(damaged(copy, name, content[:cut])))
        for at in choose.sample(range(len(content)), min(len(content), 10)):
            outcomes.add(task.found(damaged(copy, name, flipped(content, at))))
    assert {DAMAGED, (1, None)} == outcomes
