"""Input for crash tests: seeded JSON records and the result a correct pipeline must have for them."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.present import present
from tests.support.transactions import await_ended

SQL = """
CREATE STREAM bids (auction BIGINT, price BIGINT) WITH (kafka_topic='{topic}', value_format='json');
CREATE TABLE totals AS
  SELECT auction, COUNT(*) AS n, SUM(price) AS total, MAX(price) AS top
  FROM bids GROUP BY auction EMIT CHANGES;
"""


def create_topic(bootstrap: str, topic: str, partitions: int = 4) -> None:
    """A source topic that keeps records of any age."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    new = NewTopic(topic, partitions, 1, config={"retention.ms": "-1"})
    admin.create_topics([new])[topic].result()


@dataclass
class Feed:
    """Produces records and keeps the model: per auction the count, sum and maximum of price; bad records apart."""

    bootstrap: str
    topic: str
    seed: int
    keys: int = 500
    bad_every: int = 97
    totals: dict[int, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0, 0]))
    bad: list[bytes | None] = field(default_factory=list)
    sent: int = 0
    client: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._producer = ck.Producer(
            {"bootstrap.servers": self.bootstrap, "linger.ms": 5, "acks": "all", **self.client}
        )

    def send(self, count: int) -> None:
        """Produce `count` more records and wait until the broker has them."""
        for _ in range(count):
            self.sent += 1
            value = self._next()
            self._producer.produce(
                self.topic, value, None, self._random.randrange(4), None, None, 1_700_000_000_000 + self.sent
            )
            self._producer.poll(0)
        assert self._producer.flush(60) == 0

    def _next(self) -> bytes | None:
        if self.sent % self.bad_every == 0:
            value = self._random.choice([b"nonsense", None, b'{"auction":"x"}', b'{"price":1}', b""])
            self.bad.append(value)
            return value
        auction, price = self._random.randrange(self.keys), self._random.randrange(1_000)
        total = self.totals[auction]
        total[0] += 1
        total[1] += price
        total[2] = max(total[2], price)
        return json.dumps({"auction": auction, "price": price}).encode()

    def delete_all(self) -> dict[int, int]:
        """Delete every record from the topic, as retention would; gives the partitions' ends."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        everything = [ck.TopicPartition(self.topic, partition, ck.OFFSET_END) for partition in range(4)]
        deleted = admin.delete_records(everything)
        return {place.partition: future.result().low_watermark for place, future in deleted.items()}

    def expected(self) -> dict[int, dict[str, int]]:
        """The result table."""
        return {key: {"N": n, "TOTAL": total, "TOP": top} for key, (n, total, top) in self.totals.items()}


def read_topic(
    bootstrap: str, topic: str, isolation: str = "read_committed", client: Mapping[str, str] | None = None
) -> list[ck.Message]:
    """Every record of a topic up to its end, partition by partition, in offset order within one.

    What was committed before the call is among them, but for what lies behind a transaction that stays open.
    """
    consumer = ck.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "test-reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "auto.offset.reset": "earliest",
            # The broker tells a partition's end when it answers, and it waits so long for more.
            "fetch.wait.max.ms": 2,
            **(client or {}),
        }
    )
    try:
        partitions = len(consumer.list_topics(topic, timeout=20).topics[topic].partitions)
        if isolation == "read_committed":
            await_ended(bootstrap, topic, partitions=partitions, client=client)
        consumer.assign([ck.TopicPartition(topic, number, ck.OFFSET_BEGINNING) for number in range(partitions)])
        return [message for message in to_the_ends(consumer, partitions) if message.error() is None]
    finally:
        consumer.close()


def to_the_ends(consumer: ck.Consumer, partitions: int) -> Iterator[ck.Message]:
    """Messages and errors until each of so many partitions, which are assigned, has told its end."""
    ended: set[int] = set()
    while len(ended) < partitions:
        # It waits for all that it is asked for: for the first, and then for none.
        found = consumer.consume(1, timeout=1.0)
        for message in found + (consumer.consume(9_999, timeout=0.001) if found else []):
            error = message.error()
            if error is not None and error.code() == ck.KafkaError._PARTITION_EOF:
                ended.add(present(message.partition()))
            else:
                yield message


def headers_of(message: ck.Message) -> dict[str, bytes]:
    """The headers of a message that was read, without those that are null."""
    found = message.headers() or []
    assert isinstance(found, list)
    return {name: value for name, value in found if isinstance(value, bytes)}


def differences(bootstrap: str, pipeline: str, feed: Feed, client: Mapping[str, str] | None = None) -> list[str]:
    """What is wrong with the outputs of the pipeline of `SQL`; empty if they equal the model exactly."""
    problems: list[str] = []
    table: dict[int, dict[str, int]] = {}
    # The count of a key grows with every result: a doubled or lost batch shows in it, a repeated result by itself.
    for message in read_topic(bootstrap, f"{pipeline}-totals", client=client):
        key = int.from_bytes(present(message.key()), "big", signed=True)
        value = json.loads(present(message.value()))
        if key in table and value["N"] <= table[key]["N"]:
            problems.append(f"key {key}: count went from {table[key]['N']} to {value['N']}")
        table[key] = value
    problems += compare(table, feed.expected(), "output")
    dead = sorted(
        b"<null>" if (letter := m.value()) is None else letter
        for m in read_topic(bootstrap, f"{pipeline}-dead-letters", client=client)
    )
    expected_dead = sorted((value if value is not None else b"<null>") for value in feed.bad)
    if dead != expected_dead:
        problems.append(f"dead letters: {len(dead)} instead of {len(expected_dead)}")
    changelog: dict[bytes, bytes | None] = {}
    for message in read_topic(bootstrap, f"{pipeline}-totals-changelog", client=client):
        changelog[present(message.key())] = message.value()
    if len(changelog) != len(feed.totals):
        problems.append(f"changelog: {len(changelog)} keys instead of {len(feed.totals)}")
    return problems


def compare(found: dict[int, dict[str, int]], expected: dict[int, dict[str, int]], where: str) -> list[str]:
    """Differences of two tables."""
    return [
        f"{where} key {key}: {found.get(key)} instead of {expected.get(key)}"
        for key in sorted(set(found) | set(expected))
        if found.get(key) != expected.get(key)
    ]
