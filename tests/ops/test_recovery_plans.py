"""What a dry run says of a task that nobody owns, over logs in memory."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from ops.recovery_plans import UNRECOVERABLE, _plan
from statestore.batches import DONE, POSITION, BatchesLog, Position, encode, encode_fields
from statestore.config import StoreSpec, TaskSpec
from statestore.version import ChangelogPosition
from tests.support.memory_log import MemoryLogs


def planned(folder: Path, logs: MemoryLogs, *, transactions: bool = True) -> dict[str, Any]:
    spec = TaskSpec("p", "q", 0, 1, "batches", "out", "dead", StoreSpec("s", "changes", "c"), folder / "0")
    log = BatchesLog(logs, "batches", tasks=1)  # type: ignore[arg-type]
    return _plan(spec, log, logs, logs, None, transactions=transactions)  # type: ignore[arg-type]


def logs_of(batches: int, *, with_position: int) -> MemoryLogs:
    """So many batches that are done, of one record each, and of them the first positions."""
    logs = MemoryLogs({"changes": "c", "batches": "b"}, time.time, retention_s=3_600)
    for batch in range(batches):
        logs.transaction({("changes", 0): [(b"k", b"%d" % batch)]})
        at = ChangelogPosition("c", logs.end("changes", 0) - 1)
        if batch < with_position:
            logs.transaction({("batches", 0): [(POSITION, encode(Position(batch, 1, "plan", {"s": at})))]})
        logs.transaction({("batches", 1): [(DONE, encode_fields(batch=batch))]})
    return logs


def test_records_behind_the_position_of_a_task_are_told(tmp_path: Path) -> None:
    logs = logs_of(3, with_position=1)
    plan = planned(tmp_path, logs)
    assert (UNRECOVERABLE, 0) == (plan["way"], plan["batch"])
    assert plan["reason"].startswith("kafka has lost committed batches of this task")
    assert "record_behind=`2`" in plan["reason"]


@pytest.mark.parametrize(("batches", "transactions"), [(1, True), (3, False)])
def test_nothing_behind_it_is_told_where_nothing_was_lost(tmp_path: Path, batches: int, transactions: bool) -> None:
    plan = planned(tmp_path, logs_of(batches, with_position=1), transactions=transactions)
    assert ("full replay", 0) == (plan["way"], plan["batch"])
