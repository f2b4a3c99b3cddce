"""A deployed windowed query of two tasks: its past as people read it, its clones, and going back."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from copy import deepcopy
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from ops.cli.past import time_ms
from pipelines.deploy import DeployedQuery
from pipelines.engine.statecodec import StateCodec
from pipelines.past import PastReader, past_version
from pipelines.rewind import rewind
from statestore.batches import BatchesLog, Order
from statestore.kafka.reader import Reader
from statestore.layouts.window import pack
from statestore.partitioner import task_of
from statestore.store import Isolation
from tests.ops.test_cli_broker import Cli
from tests.support.windows import Cell, TableModel
from tests.travel.test_pipelines import Model, Written

SQL = """CREATE STREAM s (k VARCHAR KEY, x INT) WITH (kafka_topic = '{topic}', value_format = 'json');
CREATE TABLE q AS SELECT k, COUNT(*) AS n, SUM(x) AS total FROM s
  WINDOW TUMBLING (SIZE 30 SECONDS, RETENTION 2 MINUTES, GRACE PERIOD 30 SECONDS) GROUP BY k EMIT CHANGES;
"""
SECOND, MINUTE = 1_000, 60_000
# Of today, at the beginning of a minute: records of long ago would be a segment of their own each, and be compacted.
BEGIN = int(time.time()) // 60 * MINUTE - 60 * MINUTE
Cells = dict[Cell, tuple[int, int]]
Input = tuple[str, int, int]


class Windows(Written):
    """Batches of records (key, number, time); `cells` and `orders` are what the model of a table has after each."""

    def __init__(self, kafka: str, name: str, home: Path) -> None:
        super().__init__(kafka, name, home, SQL)
        self.cells: list[Cells] = []
        self.orders: list[dict[int, Order]] = []
        self.table = TableModel(self.deployed)
        self._codec = StateCodec([pa.int64(), pa.int64()])

    def take(self, *records: Input, snapshot: bool = False) -> None:
        """Commit the next batch."""
        tasks, before = self.deployed.query.tasks, dict(self.table.cells)
        late = dict.fromkeys(range(tasks), 0)
        changed: dict[int, Model] = {}
        for key, x, time_of in records:
            dropped, task = self.table.dropped, task_of(key.encode(), tasks)
            self.table.take(key, x, time_of)
            late[task] += self.table.dropped - dropped
            changed.setdefault(task, {})
        for (key, start), values in self.table.cells.items():
            if before.get((key, start)) != values:
                assert start is not None
                task = task_of(key.encode(), tasks)
                changed[task][pack(key.encode(), start)] = self._state(values)
        self.commit(
            changed, {task: Order(self.table.stream_times[task], late[task]) for task in changed}, snapshot=snapshot
        )
        had = self.orders[-1] if self.orders else dict.fromkeys(range(tasks), Order())
        now = {task: Order(self.table.stream_times[task], had[task].dropped + late[task]) for task in changed}
        self.note(self.table.stored(), {**had, **now})

    def note(self, cells: Cells, orders: dict[int, Order]) -> None:
        """There is one batch more, with this version."""
        self.cells.append(deepcopy(cells))
        self.orders.append(orders)
        self.models.append({})

    def _state(self, values: tuple[int, int]) -> bytes:
        columns = [pa.array([value], pa.int64()) for value in values]
        state: bytes = self._codec.encode(pa.array([0], pa.int64()), columns)[0].as_py()
        return state[8:]

    def read(self, deployed: DeployedQuery, *, batch: int | None = None, at_ms: int | None = None) -> Cells:
        """What a version of the past gives."""
        with past_version(deployed, self.settings, batch=batch, at_ms=at_ms) as version:
            rows = list(PastReader(version, self.settings).scan(None, None, Isolation.READ_COMMITTED))
        found = {(row.key["K"], row.key["WINDOWSTART"]): tuple(row.value.values()) for row in rows}
        assert len(found) == len(rows)
        return found

    def standing(self, deployed: DeployedQuery) -> dict[int, Order | None]:
        """The orders that are committed now."""
        tasks = deployed.query.tasks
        log = BatchesLog(Reader(self.kafka), deployed.batches_topic, tasks=tasks)
        positions = {task: log.position(task) for task in range(tasks)}
        return {task: None if position is None else position.order for task, position in positions.items()}


@pytest.fixture
def windows(kafka: str, unique: str, tmp_path: Path) -> Iterator[Windows]:
    """Five batches, a snapshot at the second; the keys are of two tasks, whose times come on apart."""
    windows = Windows(kafka, unique, tmp_path / "home")
    at = [BEGIN + n * MINUTE for n in range(6)]
    assert [0, 1] == sorted(task_of(key, 2) for key in (b"k0", b"k1"))
    windows.take(("k0", 1, at[0]), ("k0", 2, at[0] + 40 * SECOND), ("k0", 3, at[1]))
    windows.take(("k1", 4, at[0]), ("k0", 5, at[2]), ("k0", 6, at[0]), snapshot=True)
    # The task's time is in the middle of the oldest segment: of its two windows one can be read.
    windows.take(("k0", 7, at[2] + 10 * SECOND))
    windows.take(("k0", 8, at[4]), ("k1", 9, at[1] + 5 * SECOND))
    windows.take(("k1", 10, at[5]), ("k1", 11, at[3]))
    yield windows
    windows.registry.close()


def test_every_batch_of_a_windowed_query_is_what_people_could_read_then(windows: Windows, tmp_path: Path) -> None:
    assert [3, 4, 4, 3, 2] == [len(cells) for cells in windows.cells]
    assert windows.cells == [windows.read(windows.deployed, batch=batch) for batch in range(5)]
    with past_version(windows.deployed, windows.settings, batch=2) as version:
        rows = PastReader(version, windows.settings).get(b"k1", Isolation.READ_COMMITTED)
        assert [("k1", BEGIN, 1)] == [(row.key["K"], row.key["WINDOWSTART"], row.value["N"]) for row in rows]


def test_a_windowed_query_is_copied_with_its_time_and_goes_back_with_it(windows: Windows, unique: str) -> None:
    original, before = windows.deployed, windows.log(windows.deployed)
    cloned, copy = windows.clone(f"{unique}_copy", batch=2)
    assert (2, windows.cells[2], windows.orders[2]) == (cloned.batch, windows.read(copy), windows.standing(copy))
    assert (2, 3) == (windows.log(copy).done, windows.group_offset(copy))
    assert len(windows.cells[2]) + 1 == cloned.keys, "a window out of retention is still there, as in the original"
    assert (before, windows.orders[4]) == (windows.log(original), windows.standing(original))
    # The time of a task that had no record yet is that of its beginning.
    _, copy = windows.clone(f"{unique}_first", batch=0)
    assert (windows.cells[0], windows.orders[0]) == (windows.read(copy), windows.standing(copy))

    looked = rewind(original, windows.settings, windows.registry, batch=2, at_ms=None, dry_run=True)
    assert (2, None, 2) == (looked.batch, looked.as_batch, looked.offsets_again)
    assert windows.orders[4] == windows.standing(original)
    went = rewind(original, windows.settings, windows.registry, batch=2, at_ms=None)
    assert (2, 5, 2) == (went.batch, went.as_batch, went.offsets_again)
    windows.note(windows.cells[2], windows.orders[2])
    assert windows.orders[2] == windows.standing(original)
    assert (5, 3) == (windows.log(original).done, windows.group_offset(original))
    assert windows.cells == [windows.read(original, batch=batch) for batch in range(6)]


def test_query_at_a_time_shows_the_windows_of_then(windows: Windows, kafka: str) -> None:
    name = windows.deployed.pipeline
    then, expected = time.time(), windows.cells[4]
    time.sleep(0.05)
    windows.take(("k0", 12, BEGIN + 9 * MINUTE), ("k1", 13, BEGIN + 9 * MINUTE))
    cli = Cli(windows.settings.home, kafka)
    cli.environment["ROLLFORWARD_SERVICE"] = windows.settings.service

    def asked(at: str) -> Cells:
        done = cli("query", f"{name}.q", "--all", "--json", "--at", at)
        assert 0 == done.returncode, done.stderr
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        return {(row["key"]["K"], row["key"]["WINDOWSTART"]): tuple(row["value"].values()) for row in rows}

    as_text = datetime.fromtimestamp(then, UTC).replace(tzinfo=None).isoformat(timespec="milliseconds")
    assert expected == asked(as_text) == windows.read(windows.deployed, at_ms=time_ms(as_text))
    assert expected == windows.read(windows.deployed, at_ms=time_ms(f"-{time.time() - then}"))
    assert windows.cells[5] == asked("-0")
    assert {} == windows.read(windows.deployed, at_ms=time_ms("-86400"))
