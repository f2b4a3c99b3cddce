"""What the matrix runs: three queries over one topic, a bank over another, and the model of all four.

    hot       few keys, every batch changes all of them          uniq    every record a key of its own
    cheap     stateless: filter and projection                   balances   the bank: the sum of each account's legs

Records are made from a seed and sent all the time, at a rate, by two threads. A transfer is two legs that cancel each
other out, written in one transaction to one partition, so the sum over all accounts is 0 in every view that holds only
whole batches.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import confluent_kafka as ck

from tests.support.feed import create_topic
from tests.support.present import present

SQL = """
CREATE STREAM events (id BIGINT, grp BIGINT, price BIGINT) WITH (kafka_topic='{topic}', value_format='json');
CREATE STREAM legs (account BIGINT, amount BIGINT) WITH (kafka_topic='{topic}_legs', value_format='json');
CREATE TABLE hot AS SELECT grp, COUNT(*) AS n, SUM(price) AS total, MAX(price) AS top FROM events
  GROUP BY grp EMIT CHANGES;
CREATE TABLE uniq AS SELECT id, COUNT(*) AS n, SUM(price) AS total FROM events GROUP BY id EMIT CHANGES;
CREATE STREAM cheap AS SELECT id, price FROM events WHERE price < 500 EMIT CHANGES;
CREATE TABLE balances AS SELECT account, COUNT(*) AS n, SUM(amount) AS balance FROM legs GROUP BY account EMIT CHANGES;
"""
PARTITIONS = 4
HOT_KEYS = 10
ACCOUNTS = 50
_BAD = [b"nonsense", b'{"id":"x"}', b"", b"[1]"]
# By account: how many legs, and what they add up to.
Balances = dict[int, tuple[int, int]]
# Queries over `events`: each of them sends a bad record to the dead letters.
EVENT_QUERIES = ("hot", "uniq", "cheap")


class Leg(NamedTuple):
    """One leg of a transfer, where it lies in the log."""

    partition: int
    offset: int
    account: int
    amount: int


class Book:
    """The bank's model at any place of its log, which may be between the two legs of a transfer."""

    def __init__(self, legs: Sequence[Leg]) -> None:
        self._legs = legs

    def balances(self, ends: Mapping[int, int]) -> Balances:
        """Each account's number of legs and balance, of the legs before these offsets of the partitions."""
        found: Balances = {}
        for leg in self._legs:
            if leg.offset < ends.get(leg.partition, 0):
                count, balance = found.get(leg.account, (0, 0))
                found[leg.account] = (count + 1, balance + leg.amount)
        return found


class Workload:
    """Sends and models. Use `pause` and `resume` around anything that needs the input to stand still."""

    def __init__(self, bootstrap: str, topic: str, seed: int, *, per_second: int = 200) -> None:
        self.topic, self.legs = topic, f"{topic}_legs"
        for name in (self.topic, self.legs):
            create_topic(bootstrap, name, PARTITIONS)
        self.hot: dict[int, list[int]] = defaultdict(lambda: [0, 0, 0])
        self.uniq: dict[int, int] = {}
        self.cheap: dict[int, int] = {}
        self.balances: dict[int, list[int]] = defaultdict(lambda: [0, 0])
        self._booked: list[Leg] = []
        self.bad: list[bytes] = []
        self.error: BaseException | None = None
        self._sent = 0
        self._pause_s = 1.0 / per_second
        self._random, self._bank = random.Random(seed), random.Random(seed + 1)
        # Long time-outs: a record is sent once and arrives once, however long the broker is away.
        patient = {"bootstrap.servers": bootstrap, "message.timeout.ms": 900_000, "linger.ms": 5, "log_level": 0}
        self._producer = ck.Producer({**patient, "enable.idempotence": True})
        self._banker = ck.Producer({**patient, "transactional.id": f"{topic}-bank", "transaction.timeout.ms": 900_000})
        self._banker.init_transactions(60)
        self._going, self._ended = threading.Event(), threading.Event()
        self._busy = [threading.Lock(), threading.Lock()]
        self._threads = [
            threading.Thread(target=self._run, args=(lock, step), daemon=True)
            for lock, step in zip(self._busy, (self.send_event, self._transfer), strict=True)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, lock: threading.Lock, step: Callable[[], object]) -> None:
        try:
            while not self._ended.is_set():
                self._going.wait()
                with lock:
                    if self._going.is_set() and not self._ended.is_set():
                        step()
                time.sleep(self._pause_s)
        except BaseException as error:
            self.error = error

    def resume(self) -> None:
        """Send again."""
        self._going.set()

    def pause(self) -> None:
        """Return when nothing is under way and the broker has everything."""
        self._going.clear()
        for lock in self._busy:
            with lock:
                pass
        assert self.error is None, self.error
        assert self._producer.flush(120) == 0

    def close(self) -> None:
        """End the threads."""
        self._ended.set()
        self._going.set()
        for thread in self._threads:
            thread.join(30)

    def send_event(self, *, counts: bool = True) -> None:
        """One record. With `counts` false the model does not know it."""
        self._sent += 1
        if counts and self._sent % 101 == 0:
            value = self._random.choice(_BAD)
            self.bad.append(value)
        else:
            group, price = self._random.randrange(HOT_KEYS), self._random.randrange(1_000)
            value = json.dumps({"id": self._sent, "grp": group, "price": price}).encode()
            if counts:
                self._count(self._sent, group, price)
        self._producer.produce(self.topic, value, partition=self._random.randrange(PARTITIONS))
        self._producer.poll(0)

    def _count(self, number: int, group: int, price: int) -> None:
        total = self.hot[group]
        total[0], total[1], total[2] = total[0] + 1, total[1] + price, max(total[2], price)
        self.uniq[number] = price
        if price < 500:
            self.cheap[number] = price

    def _transfer(self) -> None:
        source, target = self._bank.sample(range(ACCOUNTS), 2)
        amount, partition = self._bank.randrange(1, 100), self._bank.randrange(PARTITIONS)
        legs = [(source, -amount), (target, amount)]
        while not self._send_legs(legs, partition):
            time.sleep(0.2)
        for account, moved in legs:
            balance = self.balances[account]
            balance[0], balance[1] = balance[0] + 1, balance[1] + moved

    def book(self, timeout_s: float) -> Book | None:
        """The legs of all transfers that are in the log; None if one is under way for longer than that."""
        if not self._busy[1].acquire(timeout=timeout_s):
            return None
        try:
            return Book(tuple(self._booked))
        finally:
            self._busy[1].release()

    def _send_legs(self, legs: list[tuple[int, int]], partition: int) -> bool:
        """Whether the transaction was committed; it was aborted otherwise."""
        placed: list[Leg] = []

        def delivered(account: int, moved: int) -> Callable[[object, ck.Message], None]:
            return lambda error, message: placed.append(Leg(partition, present(message.offset()), account, moved))

        try:
            self._banker.begin_transaction()
            for account, moved in legs:
                value = json.dumps({"account": account, "amount": moved})
                self._banker.produce(self.legs, value, partition=partition, on_delivery=delivered(account, moved))
            while self._banker.flush(30):
                pass
            self._insist(self._banker.commit_transaction)
        except ck.KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            self._insist(self._banker.abort_transaction)
            return False
        assert len(placed) == len(legs)
        self._booked += placed
        return True

    def _insist(self, call: Callable[[float], object]) -> None:
        while True:
            try:
                call(30)
                return
            except ck.KafkaException as error:
                if not error.args[0].retriable():
                    raise
