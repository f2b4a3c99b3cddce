"""A program's own stores beside a Kafka loop: they count records per key, each keeping its counts in a way of its own.

As a module it is the child process of the crash test: it processes what the input holds, prints its stores and ends.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

from statestore.context import ChangelogRecord, RecordContext, StoreContext
from statestore.kafka.reader import Reader
from statestore.store import StateStore
from statestore.stores import custom_store_builder
from statestore.streamtask import StreamTask
from tests.support.counting import config_for


class Counts(StateStore):
    """A dictionary. Its name is the way it is kept; with a changelog unless the task has none for it."""

    keeps = "memory"

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.context: StoreContext | None = None
        self.restored = 0

    @property
    def name(self) -> str:
        return self.keeps

    def init(self, context: StoreContext) -> None:
        context.register(self, self._restore)
        self.context, self.restored = context, 0
        self.counts = self._read(context.folder_of(self.name))

    def _read(self, folder: Path) -> dict[str, int]:
        return {}

    def persistent(self) -> bool:
        return False

    def is_open(self) -> bool:
        return self.context is not None

    def flush(self) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        self.context = None

    def put(self, key: str, count: int) -> None:
        """Set a count and log it."""
        assert self.context is not None
        self._set(key, count)
        self.context.log(ChangelogRecord(self.name, key.encode(), str(count).encode(), 0))

    def _set(self, key: str, count: int) -> None:
        self.counts[key] = count

    def _restore(self, records: Sequence[ChangelogRecord]) -> None:
        self.restored += len(records)
        for record in records:
            assert record.value is not None
            self._set(record.key.decode(), int(record.value))


class Appended(Counts):
    """Every put is a line of a file at once, committed or not: what the wipe is for."""

    keeps = "appended"
    file: TextIO | None = None

    def _read(self, folder: Path) -> dict[str, int]:
        path = folder / "lines"
        lines = path.read_text().splitlines() if path.exists() else []
        self.file = path.open("a", buffering=1)
        return {key: int(count) for key, count in (line.split() for line in lines)}

    def persistent(self) -> bool:
        return True

    def _set(self, key: str, count: int) -> None:
        assert self.file is not None
        super()._set(key, count)
        self.file.write(f"{key} {count}\n")

    def flush(self) -> None:
        assert self.file is not None
        self.file.flush()

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
        super().close()


class Replaced(Counts):
    """Transactional: a commit is one new file with its offset in it."""

    keeps = "replaced"

    def _read(self, folder: Path) -> dict[str, int]:
        self.path, self.offset = folder / "counts.json", None
        if not self.path.exists():
            return {}
        found = json.loads(self.path.read_text())
        self.offset = found["offset"]
        counts: dict[str, int] = found["counts"]
        return counts

    def transactional(self) -> bool:
        return True

    def persistent(self) -> bool:
        return True

    def commit(self, offset: int | None) -> None:
        unnamed = self.path.with_suffix(".tmp")
        unnamed.write_text(json.dumps({"offset": offset, "counts": self.counts}))
        unnamed.rename(self.path)

    def recover(self, offset: int | None) -> int | None:
        return self.offset


KINDS: dict[str, Callable[[], Counts]] = {"memory": Counts, "appended": Appended, "replaced": Replaced}


class CustomProgram:
    """Counts the input in each of its stores, commits every 20 records, and sends the count of the first."""

    def __init__(self, bootstrap: str, application: str, folder: Path, **changed: object) -> None:
        self.config = config_for(bootstrap, application, folder, **changed)
        self.task = StreamTask(self.config, [custom_store_builder(name, make) for name, make in KINDS.items()])
        self.stores: list[Counts] = [self.task.store(name) for name in KINDS]

    def process(self, *, commit: bool = True) -> None:
        """What the input holds; the task is open."""
        source = self.config.inputs[0]
        for chunk in Reader(self.config.kafka).read(source, 0, start=self.task.next_offset(source)):
            for number, record in enumerate(chunk, 1):
                self._step(source, record.offset, (record.key or b"").decode())
                if commit and number % 20 == 0:
                    self.task.commit()
        if commit:
            self.task.commit()

    def _step(self, source: str, offset: int, key: str) -> None:
        self.task.take(RecordContext(source, 0, offset, 0))
        for store in self.stores:
            store.put(key, store.counts.get(key, 0) + 1)
        count = str(self.stores[0].counts[key]).encode()
        self.task.send(f"{self.config.application}-out", key=key.encode(), value=count, partition=0)

    def content(self) -> dict[str, dict[str, int]]:
        """What each store holds."""
        return {store.name: dict(store.counts) for store in self.stores}

    def restored(self) -> dict[str, int]:
        """How many records each store has taken from its changelog since it was opened."""
        return {store.name: store.restored for store in self.stores}


def main(bootstrap: str, application: str, folder: str) -> None:
    """Process what the input holds; print the stores as JSON."""
    program = CustomProgram(bootstrap, application, Path(folder))
    with program.task:
        program.process()
        print(json.dumps(program.content()))


if __name__ == "__main__":
    main(*sys.argv[1:4])
