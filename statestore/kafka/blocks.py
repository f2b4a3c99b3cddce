"""Ranges of a log read in large blocks, as fast as the client can: what Spark's workers read their input with.

A range is read whole or not at all: `read` gives exactly the committed records from its start to its end, or raises.

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
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import pyarrow as pa

from statestore.columns import Headers
from statestore.config import KafkaConfig
from statestore.errors import InvariantBroken, Unavailable
from statestore.kafka.connection import DEFINITE, LOST_ITS_PLACE, PARTITION_END, client_settings, unavailable
from statestore.kafka.librdkafka import Consumer, Event, Records
from statestore.kafka.reader import END_WAIT_MS, OffsetsGone, Reader

# Larger blocks decode no faster, and their columns leave the processor's cache.
BLOCK_RECORDS = 10_000
_BLOCK_BYTES = 16 * 1024 * 1024
# The client waits its whole time for a full block, also where the range's last offsets hold no records.
_WAIT_S = 0.01
# Consumers of this process that read nothing just now, by their configuration.
_idle: dict[str, list[Consumer]] = {}


@dataclass(frozen=True)
class Block:
    """A run of committed records of one partition, as columns.

    `keys` and `values` are null where a record has none. Offsets grow, with holes where a log has them.
    """

    runs: Sequence[Records]

    def __len__(self) -> int:
        return sum(map(len, self.runs))

    @property
    def partition(self) -> int:
        """The partition of all of them."""
        return self.runs[0].partition

    @property
    def next_offset(self) -> int:
        """The offset after the last of them."""
        return int(self.runs[-1].offsets[-1]) + 1

    @property
    def headers(self) -> Iterator[Headers]:
        """Of those that have any, in their order."""
        return chain.from_iterable(run.headers for run in self.runs)

    @cached_property
    def keys(self) -> pa.BinaryArray:
        """The keys."""
        return self._column(lambda run: run.keys)

    @cached_property
    def values(self) -> pa.BinaryArray:
        """The values."""
        return self._column(lambda run: run.values)

    @cached_property
    def offsets(self) -> pa.Int64Array:
        """The offsets."""
        return self._column(lambda run: pa.array(run.offsets))

    @cached_property
    def times(self) -> pa.Int64Array:
        """Each record's time in ms since the epoch, of its creation or its arrival as the topic has it."""
        return self._column(lambda run: pa.array(run.times_ms))

    def _column(self, of: Callable[[Records], pa.Array]) -> pa.Array:
        found = [of(run) for run in self.runs]
        return found[0] if len(found) == 1 else pa.concat_arrays(found)


class BlockReader:
    """Reads ranges with a consumer of this process, one range at a time. Belongs to no group and commits nothing."""

    def __init__(self, config: KafkaConfig) -> None:
        self._config = config

    def read(self, topic: str, partition: int, *, start: int, end: int) -> Iterator[Block]:
        """The committed records from `start`, included, to `end`, not included. Nobody looks at their headers.

        Raises `OffsetsGone` where the log begins behind the next of them, and `Unavailable` when the log ends before
        `end` or Kafka stays silent for the time limit.
        """
        if start >= end:
            return
        kept = _idle.setdefault(json.dumps(asdict(self._config), sort_keys=True), [])
        try:
            consumer = kept.pop()
        except IndexError:
            # What is fetched past a range's end is thrown away, parsed in vain: so a fetch, in compressed bytes, and what
            # is held are no more than keep the reader busy.
            consumer = self._consumer({"queued.min.messages": 30_000, "fetch.message.max.bytes": 512 * 1024})
        with ExitStack() as lost:
            lost.callback(consumer.close)
            yield from _Range(consumer, self._config, topic, partition, start, end).blocks()
            consumer.unassign()
            lost.pop_all()
        kept.append(consumer)

    def read_once(self, topic: str, partition: int, *, start: int, end: int, headers: bool = False) -> Iterator[Block]:
        """`read` of a range that may be long, by a consumer of its own; with `headers` if asked for."""
        if start >= end:
            return
        consumer = self._consumer({"fetch.message.max.bytes": 4 * 1024 * 1024}, headers=headers)
        try:
            yield from _Range(consumer, self._config, topic, partition, start, end).blocks()
        finally:
            consumer.close()

    def _consumer(self, fetching: dict[str, object], *, headers: bool = False) -> Consumer:
        settings = {
            "group.id": "rollforward-reader",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "allow.auto.create.topics": False,
            "queued.max.messages.kbytes": 32 * 1024,
            "fetch.wait.max.ms": END_WAIT_MS,
            # With a full queue the client pauses for a second by default, in which the reader empties it.
            "fetch.queue.backoff.ms": 5,
            "reconnect.backoff.max.ms": 1_000,
            **fetching,
        }
        return Consumer({**client_settings(self._config), **settings}, headers=headers)


class _Range:
    """One range on its way."""

    def __init__(
        self, consumer: Consumer, config: KafkaConfig, topic: str, partition: int, start: int, end: int
    ) -> None:
        self._consumer, self._config = consumer, config
        self._topic, self._partition = topic, partition
        self._next, self._end = start, end
        self._ended = False

    def blocks(self) -> Iterator[Block]:
        self._assign()
        deadline = self._deadline()
        held: list[Records] = []
        count = size = 0
        while not self._ended:
            before = self._next
            for records in self._consumed(min(BLOCK_RECORDS - count, self._end - before)):
                held.append(records)
                count += len(records)
                size += records.bytes
            if held and (self._ended or count == BLOCK_RECORDS or size >= _BLOCK_BYTES):
                yield Block(held)
                held, count, size, deadline = [], 0, 0, self._deadline()
            elif self._next > before:
                deadline = self._deadline()
            elif time.monotonic() >= deadline:
                raise unavailable("read of a range", "time-out", self._config, **self._where())

    def _deadline(self) -> float:
        return time.monotonic() + self._config.request_timeout_s

    def _assign(self) -> None:
        self._consumer.assign(self._topic, self._partition, self._next)

    def _consumed(self, most: int) -> Iterator[Records]:
        """The range's records of one call. Goes on from behind them, and notes the range's end."""
        for found in self._consumer.consume(most, _WAIT_S):
            if self._ended:
                return
            if isinstance(found, Event):
                self._heed(found)
                continue
            self._require_mine(found, int(found.offsets[0]))
            self._advance(int(found.offsets[-1]) + 1)
            records = found.until(self._end)
            if len(records):
                yield records

    def _require_mine(self, found: Records | Event, offset: int) -> None:
        """The client forgets what it had fetched for the range before. If it did not, a hole would look right."""
        where = (found.topic, found.partition)
        if where != (self._topic, self._partition) or offset < self._next:
            raise InvariantBroken(
                "client gives a record of another range",
                **self._where(),
                wanted=self._next,
                found=f"{where[0]}-{where[1]}@{offset}",
            )

    def _advance(self, to: int) -> None:
        self._next = to
        self._ended = to >= self._end

    def _heed(self, event: Event) -> None:
        """Note the log's end, or raise what will not pass. A broken connection may: the deadline bounds it."""
        if event.code == PARTITION_END:
            self._require_mine(event, event.offset)
            self._ended = event.offset >= self._end
            if not self._ended:
                self._require_there()
        elif event.code == LOST_ITS_PLACE:
            # The client gives its place up too when a broker comes back; only the log can tell.
            self._require_there()
            self._assign()
        elif event.code in DEFINITE:
            raise unavailable("read of a range", event.text, self._config, **self._where())

    def _require_there(self) -> None:
        """Raise unless the log has all offsets that are left of the range."""
        first, last = Reader(self._config).begin_and_end(self._topic, self._partition)
        if self._next < first:
            raise OffsetsGone("records are gone from the log", **self._where(), wanted=self._next, first=first)
        if last < self._end:
            raise Unavailable("log ends too early", **self._where(), last=last, wanted=self._end, hint="ask again")

    def _where(self) -> dict[str, Any]:
        return {"topic": self._topic, "partition": self._partition}
