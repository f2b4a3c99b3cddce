"""Ranges of a log read in large blocks, as fast as Python can: what Spark's workers read their input with.

Besides `kafka.py` the only file that imports the client. A range is read whole or not at all: `read` gives exactly the
committed records from its start to its end, or raises.

    at the end     a record at or past it, or the partition's end event there: markers of transactions, aborted and
                   compacted records take offsets and are not delivered
    too short      the log ends before the range does: an error, since what there is would pass for all of it
    gone           the log begins behind the next offset to read

A consumer is kept for the next range, so that a batch makes no connection. Between ranges it has no partition, so it
fetches nothing; after any error it is closed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from functools import cached_property
from typing import Any

import confluent_kafka as ck

from statestore.config import KafkaConfig
from statestore.errors import InvariantBroken, Unavailable
from statestore.kafka import _DEFINITE, END_WAIT_MS, OffsetsGone, Reader, _client, _unavailable

Headers = list[tuple[str, bytes | None]]
# Larger blocks decode no faster, and their columns leave the processor's cache.
_BLOCK = 10_000
_BLOCK_BYTES = 16 * 1024 * 1024
# The client waits its whole time for a full block, also where the range's last offsets hold no records.
_WAIT_S = 0.01
# Consumers of this process that read nothing just now, by their configuration.
_idle: dict[str, list[ck.Consumer]] = {}


class Block:
    """A run of committed records of one partition, as columns, each made when it is first asked for.

    `keys` and `values` are None where a record has none, and a header's value may be None. Offsets grow, with holes
    where a log has them.
    """

    def __init__(self, messages: list[ck.Message]) -> None:
        self._messages = messages

    def __len__(self) -> int:
        return len(self._messages)

    @cached_property
    def keys(self) -> list[bytes | None]:
        """The keys."""
        return list(map(ck.Message.key, self._messages))

    @cached_property
    def values(self) -> list[bytes | None]:
        """The values."""
        return list(map(ck.Message.value, self._messages))

    @cached_property
    def offsets(self) -> list[int]:
        """The offsets."""
        return list(map(ck.Message.offset, self._messages))  # type: ignore[arg-type]

    @cached_property
    def times_ms(self) -> list[int]:
        """Each record's time, of its creation or its arrival as the topic has it."""
        return [time_ms for _, time_ms in map(ck.Message.timestamp, self._messages)]

    @cached_property
    def headers(self) -> list[Headers]:
        """The headers, in their order."""
        return [list(message.headers() or ()) for message in self._messages]  # type: ignore[arg-type]


class BlockReader:
    """Reads ranges with a consumer of this process, one range at a time. Belongs to no group and commits nothing."""

    def __init__(self, config: KafkaConfig) -> None:
        self._config = config

    def read(self, topic: str, partition: int, *, start: int, end: int) -> Iterator[Block]:
        """The committed records from `start`, included, to `end`, not included.

        Raises `OffsetsGone` where the log begins behind the next of them, and `Unavailable` when the log ends before
        `end` or Kafka stays silent for the time limit.
        """
        if start >= end:
            return
        kept = _idle.setdefault(json.dumps(asdict(self._config), sort_keys=True), [])
        try:
            consumer = kept.pop()
        except IndexError:
            consumer = self._consumer()
        with ExitStack() as lost:
            lost.callback(consumer.close)
            yield from _Range(consumer, self._config, topic, partition, start, end).blocks()
            consumer.unassign()
            lost.pop_all()
        kept.append(consumer)

    def _consumer(self) -> ck.Consumer:
        settings = {
            "group.id": "rollforward-reader",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "allow.auto.create.topics": False,
            # What is fetched past a range's end is thrown away, parsed in vain: so a fetch, in compressed bytes, and what
            # is held are no more than keep the reader busy.
            "queued.min.messages": 10_000,
            "queued.max.messages.kbytes": 32 * 1024,
            "fetch.message.max.bytes": 256 * 1024,
            "fetch.wait.max.ms": END_WAIT_MS,
            # With a full queue the client pauses for a second by default, in which the reader empties it.
            "fetch.queue.backoff.ms": 5,
            "reconnect.backoff.max.ms": 1_000,
        }
        return ck.Consumer({**_client(self._config), **settings})


class _Range:
    """One range on its way."""

    def __init__(
        self, consumer: ck.Consumer, config: KafkaConfig, topic: str, partition: int, start: int, end: int
    ) -> None:
        self._consumer, self._config = consumer, config
        self._topic, self._partition = topic, partition
        self._next, self._end = start, end
        self._ended = False

    def blocks(self) -> Iterator[Block]:
        self._assign()
        deadline = self._deadline()
        held: list[ck.Message] = []
        held_bytes = 0
        while not self._ended:
            before = self._next
            taken = self._taken(self._consumer.consume(min(_BLOCK - len(held), self._end - before), timeout=_WAIT_S))
            held += taken
            held_bytes += sum(map(len, taken))
            if held and (self._ended or len(held) == _BLOCK or held_bytes >= _BLOCK_BYTES):
                yield Block(held)
                held, held_bytes, deadline = [], 0, self._deadline()
            elif self._next > before:
                deadline = self._deadline()
            elif time.monotonic() >= deadline:
                raise _unavailable("read of a range", "time-out", self._config, **self._where())

    def _deadline(self) -> float:
        return time.monotonic() + self._config.request_timeout_s

    def _assign(self) -> None:
        self._consumer.assign([ck.TopicPartition(self._topic, self._partition, self._next)])

    def _taken(self, messages: list[ck.Message]) -> list[ck.Message]:
        """The range's records among messages. Goes on from behind them, and notes the range's end."""
        # An error is true, whatever it says.
        if not messages or any(map(ck.Message.error, messages)) or messages[-1].offset() >= self._end:  # type: ignore[operator]
            return self._sifted(messages)
        self._require_mine(messages[0])
        self._advance(messages[-1].offset() + 1)  # type: ignore[operator]
        return messages

    def _sifted(self, messages: list[ck.Message]) -> list[ck.Message]:
        taken: list[ck.Message] = []
        for message in messages:
            error = message.error()
            if error is not None:
                self._heed(error, message)
            else:
                self._require_mine(message)
                if message.offset() < self._end:  # type: ignore[operator]
                    taken.append(message)
                self._advance(message.offset() + 1)  # type: ignore[operator]
            if self._ended:
                break
        return taken

    def _require_mine(self, message: ck.Message) -> None:
        """The client forgets what it had fetched for the range before. If it did not, a hole would look right."""
        where = (message.topic(), message.partition())
        if where != (self._topic, self._partition) or message.offset() < self._next:  # type: ignore[operator]
            raise InvariantBroken(
                "client gives a record of another range",
                **self._where(),
                wanted=self._next,
                found=f"{where[0]}-{where[1]}@{message.offset()}",
            )

    def _advance(self, to: int) -> None:
        self._next = to
        self._ended = to >= self._end

    def _heed(self, error: ck.KafkaError, message: ck.Message) -> None:
        """Note the log's end, or raise what will not pass. A broken connection may: the deadline bounds it."""
        code = error.code()
        if code == ck.KafkaError._PARTITION_EOF:
            self._require_mine(message)
            self._ended = message.offset() >= self._end  # type: ignore[operator]
            if not self._ended:
                self._require_there()
        elif code == ck.KafkaError._AUTO_OFFSET_RESET:
            # The client gives its place up too when a broker comes back; only the log can tell.
            self._require_there()
            self._assign()
        elif code in _DEFINITE or error.fatal():
            raise _unavailable("read of a range", error.str(), self._config, **self._where())

    def _require_there(self) -> None:
        """Raise unless the log has all offsets that are left of the range."""
        first, last = Reader(self._config).begin_and_end(self._topic, self._partition)
        if self._next < first:
            raise OffsetsGone("records are gone from the log", **self._where(), wanted=self._next, first=first)
        if last < self._end:
            raise Unavailable("log ends too early", **self._where(), last=last, wanted=self._end, hint="ask again")

    def _where(self) -> dict[str, Any]:
        return {"topic": self._topic, "partition": self._partition}
