"""A program with its own Kafka loop: counts records per key in one store of every mechanism.

As a module it is the child process of the crash test: it processes what the input holds, prints its stores and ends.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import confluent_kafka as ck

from statestore import stores
from statestore.cache.record_cache import RecordCache
from statestore.config import KafkaConfig, StreamConfig
from statestore.context import RecordContext
from statestore.errors import Unavailable
from statestore.kafka.admin import Admin
from statestore.kafka.reader import Reader, Record
from statestore.store import Isolation, TransactionalMechanism
from statestore.streamtask import StreamTask
from statestore.supplier import StoreSupplier
from statestore.typed.key_value import TypedKeyValueStore
from statestore.typed.serdes import LONG, STRING, ValueAndTimestamp
from tests.support.feed import read_topic

WINDOW_MS = 1_000
Mechanism = TransactionalMechanism
KINDS: dict[str, StoreSupplier[Any]] = {
    "direct": stores.persistent_key_value_store("direct", False),
    "indexed": stores.persistent_key_value_store("indexed", mechanism=Mechanism.INDEXED_BATCH),
    "secondary": stores.persistent_key_value_store("secondary", mechanism=Mechanism.SECONDARY_STORE),
    "auto": stores.persistent_key_value_store("auto", mechanism=Mechanism.AUTO),
    "memory": stores.in_memory_key_value_store("memory", True),
}
Counts = dict[str, int]


def config_for(bootstrap: str, application: str, folder: Path, **changed: Any) -> StreamConfig:
    """One task that reads partition 0 of `<application>-in`; its outputs go to `<application>-out`."""
    topics = (f"{application}-in",)
    return replace(
        StreamConfig(application, KafkaConfig(bootstrap), topics, 0, folder, commit_interval_ms=60_000), **changed
    )


@dataclass
class Counting:
    """The program. `of` names its key-value stores; the windowed and the cached one are always there.

    `options` are StreamTask's. After an `Unavailable` it goes on where the task says.
    """

    config: StreamConfig
    of: tuple[str, ...] = tuple(KINDS)
    options: dict[str, Any] = field(default_factory=dict)
    commit_every: int = 20
    unavailable: int = 0

    def __post_init__(self) -> None:
        self.counts: dict[str, TypedKeyValueStore[str, int]] = {
            name: stores.key_value_store_builder(KINDS[name], STRING, LONG).build() for name in self.of
        }
        windows = stores.persistent_transactional_window_store("windows", 3_600_000, WINDOW_MS)
        self.windows = stores.window_store_builder(windows, STRING, LONG).build()
        cached = stores.persistent_transactional_timestamped_key_value_store("cached")
        builder = stores.timestamped_key_value_store_builder(cached, STRING, LONG).with_caching_enabled()
        self.cached = builder.build(cache=RecordCache(10_000_000))
        self.task = StreamTask(self.config, [*self.counts.values(), self.windows, self.cached], **self.options)
        self.reader = Reader(self.config.kafka)

    @property
    def input(self) -> str:
        return self.config.inputs[0]

    def step(self, record: Record) -> None:
        """One record: every store counts, the first one's count goes out."""
        self.task.take(RecordContext(self.input, 0, record.offset, record.timestamp_ms))
        assert record.key is not None
        key, start = record.key.decode(), record.timestamp_ms - record.timestamp_ms % WINDOW_MS
        for store in self.counts.values():
            store.put(key, (store.get(key) or 0) + 1)
        self.windows.put(key, (self.windows.fetch_one(key, start) or 0) + 1, start)
        before = self.cached.get(key)
        self.cached.put(key, ValueAndTimestamp((before.value if before else 0) + 1, record.timestamp_ms))
        count = self.counts[self.of[0]].get(key)
        self.task.send(f"{self.config.application}-out", key=record.key, value=str(count).encode(), partition=0)

    def run(self) -> None:
        """Process what the input holds, and commit."""
        while True:
            try:
                if not self.task.is_open:
                    self.task.open()
                self.process()
                return
            except Unavailable:
                self.unavailable += 1

    def process(self) -> None:
        """`run` without going on after errors."""
        taken = 0
        for chunk in self.reader.read(self.input, 0, start=self.task.next_offset(self.input)):
            for record in chunk:
                self.step(record)
                taken += 1
                if taken % self.commit_every == 0:
                    self.task.commit()
        self.task.commit()

    def content(self, isolation: Isolation = Isolation.READ_COMMITTED) -> dict[str, Counts]:
        """What each store holds; the windowed one's counts are summed over the windows of a key."""
        found = {name: dict(store.all(isolation)) for name, store in self.counts.items()}
        windows: Counter[str] = Counter()
        for key, value in self.windows.all(isolation):
            windows[key.key] += value
        cached = {key: value.value for key, value in self.cached.all(isolation)}
        return {**found, "windows": dict(windows), "cached": cached}


@dataclass
class Input:
    """The program's topics and the model: how often each key was sent."""

    bootstrap: str
    application: str
    sent: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        admin = Admin(KafkaConfig(self.bootstrap))
        for suffix in ("in", "out"):
            admin.create(f"{self.application}-{suffix}", partitions=1, settings={"retention.ms": "-1"})
        self._first_ms = int(time.time()) * 1_000
        self._producer = ck.Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 5, "acks": "all"})

    def send(self, count: int, *, keys: int = 7) -> None:
        """So many records more, over `keys` keys in turn, half a second of event time apart.

        The first is of now: a windowed changelog is Kafka Streams', from which the broker deletes what is past retention
        by its own clock.
        """
        for _ in range(count):
            number = self.sent.total()
            key = f"k{number % keys}"
            self.sent[key] += 1
            self._producer.produce(f"{self.application}-in", b"", key, 0, None, None, self._first_ms + 500 * number)
        assert self._producer.flush(60) == 0

    def outputs(self) -> dict[str, list[int]]:
        """Committed outputs by key, in their order."""
        found: dict[str, list[int]] = {}
        for message in read_topic(self.bootstrap, f"{self.application}-out"):
            found.setdefault((message.key() or b"").decode(), []).append(int(message.value() or b""))
        return found

    def expected_outputs(self) -> dict[str, list[int]]:
        """Each count of each key, once, in order."""
        return {key: list(range(1, count + 1)) for key, count in self.sent.items()}

    def expected(self, program: Counting) -> dict[str, Counts]:
        """What every store of the program holds when all is processed."""
        return {name: dict(self.sent) for name in (*program.of, "windows", "cached")}


def main(bootstrap: str, application: str, folder: str, tell: Callable[[str], object] = print) -> None:
    """Process what the input holds; print the stores as JSON."""
    program = Counting(config_for(bootstrap, application, Path(folder)))
    program.run()
    tell(json.dumps(program.content()))
    program.task.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3])
