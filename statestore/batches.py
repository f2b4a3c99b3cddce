"""The batches topic of a query: who owns it, what is planned, what is done, and where each task stands.

One compacted topic of N + 1 partitions for N tasks, JSON values, a few keys each:

    partition n   position          the newest batch that task n committed, with its stores' changelog offsets
    partition N   driver            a driver started; the record's offset is that driver's epoch
                  plan-<hash>       the text of a plan, kept as long as a batch may have to run under it
                  planned           the newest planned batch: number, plan hash, source ranges
                  done              the newest finished batch
                  origin            of a clone: whose version it was given, and whether all of it is there

The driver has a partition of its own because a `read_committed` reader waits for the transactions open on a partition:
shared with a task, a server killed in a commit would hide the newest driver until its transaction times out.

The driver writes its keys in transactions of its own; each position is written by the task's server inside the
transaction that commits the batch, so it is there exactly when the batch's records are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from statestore.errors import FormatUnsupported
from statestore.kafka.reader import Reader, Record
from statestore.version import ChangelogPosition, Checkpoint

VERSION = 1
DRIVER = b"driver"
PLANNED = b"planned"
DONE = b"done"
POSITION = b"position"
PLAN_PREFIX = b"plan-"
ORIGIN = b"origin"
# Offsets of one transaction on a partition of positions: its record, and the marker of its end.
OFFSETS_A_COMMIT = 2
# States of an origin: while the version is not there yet, and since it is.
COPYING, COPIED = "copying", "copied"


@dataclass(frozen=True)
class Range:
    """Source offsets of one partition in a batch: `start` included, `end` not."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int

    @property
    def offsets(self) -> int:
        """How many there are."""
        return self.end - self.start


def count_offsets(ranges: Sequence[Range]) -> int:
    """How many offsets all of them have."""
    return sum(r.offsets for r in ranges)


@dataclass(frozen=True)
class Refused:
    """One source record of a batch that goes to the dead letters, because the query cannot be computed with it."""

    partition: int
    offset: int
    reason: str


@dataclass(frozen=True)
class Recompute:
    """A period of a query's result that a batch computes again, from `from_ms`, included, to `to_ms`, not included.

    `ranges` are the source's offsets that it is computed from, up to where the batch before it ended.
    """

    request: str
    from_ms: int
    to_ms: int
    ranges: tuple[Range, ...]


@dataclass(frozen=True)
class Planned:
    """A batch with its fixed input. `plan` is the hash of the plan that it runs under.

    `lost` are source records that were deleted before they were read, and that an operator has given up. `refused` are
    in the plan because a batch that runs again must leave out the same records. A batch with `recompute` takes no input:
    its `ranges` are empty, and say where the stream stands. `restarts` counts drivers that began it again, without Spark
    or with its `recompute`: what ended one may end the next. `floor` is the newest batch up to this one that wrote results which no records behind
    an older one write again: a reset, a period before this batch that was computed again, or a batch whose `lost` names
    records that were read. The query cannot be brought back to what was before it. Positions of batches before `cut` may
    lie among such records, whose offsets others have now: nothing may read on from there.
    """

    batch: int
    plan: str
    ranges: tuple[Range, ...]
    lost: tuple[Range, ...] = ()
    refused: tuple[Refused, ...] = ()
    recompute: Recompute | None = None
    restarts: int = 0
    floor: int = 0
    cut: int = 0

    @property
    def floor_behind(self) -> int:
        """The `floor` of the batches that follow. A period that is given up is no batch of its kind any more."""
        return self.floor if self.recompute is None else self.batch


@dataclass(frozen=True)
class Order:
    """How far a task's stream time has come, in ms, -1 before its first record, and how many came too late so far."""

    stream_time_ms: int = -1
    dropped: int = 0


@dataclass(frozen=True)
class Position:
    """The newest batch that a task has committed. `stores` gives each changelog's next offset after it.

    `ends` says where the input stood: source partition (as text) and the offset after the batch's last record of it.
    `order` is there for tasks that take their records one after the other. `digest` is the store's after the batch; None
    where the version that it was made from had none.
    """

    batch: int
    epoch: int
    plan: str
    stores: dict[str, ChangelogPosition] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    order: Order | None = None
    digest: str | None = None

    def checkpoint(self, tasks: int, at_ms: int) -> Checkpoint:
        """What a store that stands here says of itself; `tasks` is how many the query has, `at_ms` its `written_at_ms`."""
        return Checkpoint(self.batch, self.stores, at_ms, plan=self.plan, tasks=tasks, digest=self.digest)


@dataclass(frozen=True)
class Standing:
    """The epoch of the newest driver that started, the newest batch that is done, and where one task stands.

    Both numbers are -1 where there is none.
    """

    newest_epoch: int
    done: int
    position: Position | None


@dataclass(frozen=True)
class Recorded:
    """A position with its record's offset and CreateTime in ms.

    `follows` is whether nothing was committed between it and the one recorded before it, or before it at all.
    """

    position: Position
    offset: int
    at_ms: int
    follows: bool


@dataclass(frozen=True)
class DriverLog:
    """What the driver's partition says. `epoch` is -1 and the rest empty before the first driver.

    `origin` is empty but for a clone: `state`, `pipeline`, `batch`, `keys`.
    """

    epoch: int
    planned: Planned | None
    done: int
    plans: dict[str, str]
    origin: dict[str, Any] = field(default_factory=dict)


def encode(value: object) -> bytes:
    """A dataclass of this file as a record's value; what is None is left out, as it was before there was any."""
    fields = {name: found for name, found in asdict(value).items() if found is not None}  # type: ignore[call-overload]
    return json.dumps({"version": VERSION, **fields}, separators=(",", ":")).encode()


def encode_fields(**fields: object) -> bytes:
    """Plain fields as a record's value."""
    return json.dumps({"version": VERSION, **fields}, separators=(",", ":")).encode()


def _fields(record: Record, topic: str) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(record.value or b"{}")
    version = fields.pop("version", None)
    if version != VERSION:
        raise FormatUnsupported(
            "batches topic has records of another version", topic=topic, found=version, supported=VERSION
        )
    return fields


def _recompute(fields: dict[str, Any] | None) -> Recompute | None:
    if fields is None:
        return None
    ranges = tuple(Range(**r) for r in fields.pop("ranges"))
    return Recompute(**fields, ranges=ranges)


def _epoch(newest: Mapping[bytes, Record]) -> int:
    driver = newest.get(DRIVER)
    return -1 if driver is None else driver.offset


class BatchesLog:
    """Reads the batches topic of one query."""

    def __init__(self, reader: Reader, topic: str, *, tasks: int) -> None:
        self.topic = topic
        self.driver_partition = tasks
        self._reader = reader

    def _newest(self, partition: int, *, uncommitted: bool = False) -> dict[bytes, Record]:
        return self._reader.newest(self.topic, [partition], uncommitted=uncommitted)[partition]

    def newest_epoch(self) -> int:
        """Epoch of the newest driver that started; -1 if none ever did."""
        return _epoch(self._newest(self.driver_partition))

    def position(self, task: int) -> Position | None:
        """Where the task stands; None if it never committed. Call after `init_transactions` of the task's id."""
        return self._position_in(self._newest(task))

    def standing(self, task: int) -> Standing:
        """`newest_epoch`, what is done, and `position` with one reading."""
        newest = self._reader.newest(self.topic, [self.driver_partition, task])
        driver = newest[self.driver_partition]
        return Standing(_epoch(driver), self._done_in(driver), self._position_in(newest[task]))

    def _done_in(self, newest: Mapping[bytes, Record]) -> int:
        done: int = _fields(newest[DONE], self.topic)["batch"] if DONE in newest else -1
        return done

    def _position_in(self, newest: Mapping[bytes, Record]) -> Position | None:
        record = newest.get(POSITION)
        return None if record is None else self._position(record)

    def _position(self, record: Record) -> Position:
        fields = _fields(record, self.topic)
        stores = {name: ChangelogPosition(**at) for name, at in fields.pop("stores").items()}
        order = fields.pop("order", None)
        return Position(**fields, stores=stores, order=None if order is None else Order(**order))

    def is_marked(self, key: bytes) -> bool | None:
        """Whether the driver's partition has a record of this key, in open transactions too; None if it is empty.

        It waits for nobody: what an owner that was killed has left open is looked at as well.
        """
        keys = self._newest(self.driver_partition, uncommitted=True)
        return key in keys if keys else None

    def positions(self, task: int, *, start: int = 0) -> list[Recorded]:
        """Every position of the task from offset `start` that compaction has left, oldest first; the last is the newest.

        A transaction takes two offsets, its record's and its end's. What lies between two positions besides was given up
        if its record is still there, with the end behind it; anything else may have been a position.
        """
        first = max(start, self._reader.begin_and_end(self.topic, task)[0])
        records = self._all(task, first)
        given_up: set[int] | None = None
        found, end = list[Recorded](), 0
        for r in records:
            if r.key != POSITION or not r.value:
                continue
            if end < r.offset and given_up is None:
                present = {record.offset for record in self._all(task, first, uncommitted=True)}
                given_up = present | {offset + 1 for offset in present}
            follows = end == r.offset or (given_up or set[int]()).issuperset(range(end, r.offset))
            found.append(Recorded(self._position(r), r.offset, r.timestamp_ms, follows))
            end = r.offset + OFFSETS_A_COMMIT
        return found

    def _all(self, task: int, first: int, *, uncommitted: bool = False) -> list[Record]:
        chunks = self._reader.read(self.topic, task, start=first, uncommitted=uncommitted)
        return [record for chunk in chunks for record in chunk]

    def driver_log(self, *, uncommitted: bool = False) -> DriverLog:
        """What drivers have recorded. Call after `init_transactions` of the driver's id.

        With `uncommitted` also what an owner has left open or given up: for those who only look and must not wait.
        """
        newest = self._newest(self.driver_partition, uncommitted=uncommitted)
        planned = None
        if PLANNED in newest:
            fields = _fields(newest[PLANNED], self.topic)
            ranges, lost = (tuple(Range(**r) for r in fields.get(name, ())) for name in ("ranges", "lost"))
            refused = tuple(Refused(**r) for r in fields.get("refused", ()))
            recompute = _recompute(fields.get("recompute"))
            counts = (fields.get("restarts", 0), fields.get("floor", 0), fields.get("cut", 0))
            planned = Planned(fields["batch"], fields["plan"], ranges, lost, refused, recompute, *counts)
        return DriverLog(
            epoch=newest[DRIVER].offset if DRIVER in newest else -1,
            planned=planned,
            done=self._done_in(newest),
            plans={
                key[len(PLAN_PREFIX) :].decode(): (record.value or b"").decode()
                for key, record in newest.items()
                if key.startswith(PLAN_PREFIX) and record.value
            },
            origin=_fields(newest[ORIGIN], self.topic) if ORIGIN in newest else {},
        )
