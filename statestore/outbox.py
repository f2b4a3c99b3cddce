"""What a task's open transaction sends: changelog records and outputs, in the order in which they were made.

Records wait here until the commit, so that a Kafka transaction lasts as long as sending takes and not as long as the
program thinks; past `bytes_max` of them the transaction begins early.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from statestore.context import ChangelogRecord, Headers
from statestore.failpoints import reach
from statestore.kafka.producer import TransactionalProducer
from statestore.kafka.reader import Reader

# What CPython spends on a record and on each of its headers beside their bytes. Measured, rounded up.
RECORD_OVERHEAD_BYTES = 250
HEADER_OVERHEAD_BYTES = 150


@dataclass(frozen=True)
class Output:
    """One record for a topic of the program's own. A `partition` of -1 is chosen by the key, as Java clients do."""

    topic: str
    key: bytes | None
    value: bytes | None
    partition: int
    timestamp_ms: int
    headers: Headers = ()


@dataclass
class Outbox:
    """`changelogs` is the topic of each store; `offsets` their next offsets, moved by `deliver`.

    bytes: an upper estimate of what waits, objects included.
    """

    producer: TransactionalProducer
    reader: Reader
    partition: int
    changelogs: dict[str, str]
    offsets: dict[str, int]
    bytes: int = 0
    begun: bool = False
    _waiting: list[ChangelogRecord | Output] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, record: ChangelogRecord | Output) -> None:
        """Send it with the transaction."""
        self._waiting.append(record)
        self.bytes += RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")
        for _, value in record.headers:
            self.bytes += HEADER_OVERHEAD_BYTES + len(value)

    def send(self) -> None:
        """Begin the transaction if it has not begun, and hand over all that waits.

        Raises `Unavailable` before it begins if brokers have lost changelog records that were committed.
        """
        if not self.begun:
            reach("program.before-begin")
            self.reader.require_reach(
                {(self.changelogs[store], self.partition): offset for store, offset in self.offsets.items()}
            )
            self.producer.begin()
            self.begun = True
            reach("program.begun")
        for record in self._waiting:
            if isinstance(record, Output):
                self._produce(record.topic, record, record.partition)
            else:
                self._produce(self.changelogs[record.store], record, self.partition, store=record.store)
            reach("program.in-send")
        self._waiting.clear()
        self.bytes = 0

    def deliver(self) -> None:
        """`send`, and wait until Kafka has everything."""
        self.send()
        reach("program.sent")
        self.producer.flush()
        reach("program.delivered")

    def ended(self) -> None:
        """The transaction was committed."""
        self.begun = False

    def _produce(self, topic: str, record: ChangelogRecord | Output, partition: int, store: str = "") -> None:
        def delivered(offset: int) -> None:
            self.offsets[store] = offset + 1

        self.producer.produce(
            topic,
            key=record.key,
            value=record.value,
            partition=partition,
            timestamp_ms=record.timestamp_ms,
            headers=list(record.headers) or None,
            on_offset=delivered if store else None,
        )
