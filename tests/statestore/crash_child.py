"""The process that crash tests kill: `python -m tests.statestore.crash_child <folder> <mechanism> <seed> <rounds>`.

It lives one task with a key-value and a window store, round by round. Kafka is played by a folder: before it commits,
a round is written there and synced (what it sends to the changelogs, what the stores hold after it), and from then on
it is committed, whatever the stores know of it. A new process brings its stores there by the changelog and goes on.

    <folder>/task/             the task
    <folder>/rounds/<round>    the committed rounds, JSON
"""

from __future__ import annotations

import json
import os
import random
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from statestore.context import ChangelogRecord
from statestore.errors import TaskCorrupted
from statestore.kinds.base import Kind
from statestore.kinds.key_value import KeyValue
from statestore.kinds.window import Window
from statestore.store import TransactionalMechanism
from statestore.taskstores import TaskStores

STORES = ("totals", "visits")
RETENTION_MS, INTERVAL_MS = 100, 50
# A large round spills, a small one does not.
BYTES_MAX = 20_000
Content = list[list[str]]


@dataclass
class Round:
    """`records` are the round's own; offsets and contents are those of the stores after it."""

    number: int = 0
    records: list[tuple[str, str, str | None]] = field(default_factory=list)
    offsets: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STORES, 0))
    contents: dict[str, Content] = field(default_factory=lambda: {store: [] for store in STORES})


def committed_rounds(folder: Path) -> list[Round]:
    """From round 0, which is empty, to the last committed one."""
    paths = sorted(path for path in (folder / "rounds").glob("*") if path.suffix != ".tmp")
    return [Round(), *(Round(**json.loads(path.read_text())) for path in paths)]


def commit_round(folder: Path, done: Round) -> None:
    """The stand-in for Kafka's commit: the file appears whole, and is on the disk when this returns."""
    path = folder / "rounds" / f"{done.number:06}"
    with path.with_suffix(".tmp").open("w") as file:
        json.dump(done.__dict__, file)
        file.flush()
        os.fsync(file.fileno())
    path.with_suffix(".tmp").rename(path)


def stores(mechanism: TransactionalMechanism | None) -> dict[str, Kind]:
    """The two stores, not opened."""
    lengths: dict[str, Any] = {"retention_ms": RETENTION_MS, "window_size_ms": 10, "segment_interval_ms": INTERVAL_MS}
    return {
        "totals": KeyValue("totals", mechanism=mechanism),
        "visits": Window("visits", **lengths, mechanism=mechanism),
    }


def content(store: Kind) -> Content:
    """Everything in a store, as texts."""
    assert isinstance(store, KeyValue | Window)
    return [[str(key), value.hex()] for key, value in store.all()]


class Life:
    """One process."""

    def __init__(self, folder: Path, mechanism: TransactionalMechanism | None, seed: int) -> None:
        self.folder, self.seed = folder, seed
        self.sent: list[ChangelogRecord] = []
        bounds: dict[str, Any] = {"uncommitted_bytes_max": BYTES_MAX, "copy_bytes_max": BYTES_MAX // 10}
        self.task = TaskStores(folder / "task", sink=self.sent.append, **bounds)
        self.stores = stores(mechanism)

    def recover(self) -> Round:
        """Open both stores and bring them to the last committed round."""
        rounds = committed_rounds(self.folder)
        for name, store in self.stores.items():
            try:
                store.init(self.task)
            except TaskCorrupted:
                assert not store.transactional()
                self.task.wipe(name)
                store.init(self.task)
            at = store.recover(None) or 0
            for done in rounds[1:]:
                records = [
                    ChangelogRecord(name, bytes.fromhex(key), None if value is None else bytes.fromhex(value), 0)
                    for its_store, key, value in done.records
                    if its_store == name
                ]
                if done.offsets[name] > at:
                    store.restore(records, offset=done.offsets[name])
            if not store.transactional():
                store.commit(rounds[-1].offsets[name])
        return rounds[-1]

    def round(self, last: Round) -> Round:
        """Write, commit in the stand-in for Kafka, commit in the stores."""
        number = last.number + 1
        choose = random.Random(f"{self.seed} {number}")
        self.sent.clear()
        totals, visits = self.stores["totals"], self.stores["visits"]
        assert isinstance(totals, KeyValue) and isinstance(visits, Window)
        # Segments expire one by one, and now and then several at once.
        begin_ms = number * 20 + number // 4 * 3 * INTERVAL_MS
        for _ in range(choose.choice((5, 30, 300))):
            key = b"%03d" % choose.randrange(200)
            totals.put(key, None if choose.random() < 0.2 else choose.randbytes(choose.choice((0, 10, 100))))
            visits.put(key[:1], b"%d" % number, begin_ms + choose.randrange(60))
        done = Round(
            number,
            [(r.store, r.key.hex(), None if r.value is None else r.value.hex()) for r in self.sent],
            {name: last.offsets[name] + sum(r.store == name for r in self.sent) for name in STORES},
            {name: content(store) for name, store in self.stores.items()},
        )
        commit_round(self.folder, done)
        for name, store in self.stores.items():
            store.commit(done.offsets[name])
        return done


def main() -> None:
    folder, mechanism, seed, rounds = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    (folder / "rounds").mkdir(exist_ok=True)
    life = Life(folder, None if mechanism == "direct" else TransactionalMechanism(mechanism), seed)
    done = life.recover()
    print("recovered", flush=True)
    for _ in range(rounds):
        done = life.round(done)
    life.task.close()


if __name__ == "__main__":
    main()
