"""An archive of source topics: their records as Parquet files in object storage, for when Kafka has deleted them.

    <archive_url>/<topic>/<topic id>/<partition>/<start:020>.parquet

A file holds the committed records of its offsets from `start`, included, to the end that its metadata tells, not
included. Files of a partition lie side by side: the next begins where one ends. A file is put only if none begins there, so
of two archivers that run at once one wins, and a killed one leaves whole files or none. Nothing is ever replaced.
"""

from __future__ import annotations

import io
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, TypeVar

import pyarrow as pa
import structlog

from statestore.config import KafkaConfig, ObjectsConfig
from statestore.errors import DataCorrupted, InvalidConfig, RollforwardError, Unrecoverable
from statestore.failpoints import reach
from statestore.kafka.admin import Admin, Topic
from statestore.kafka.reader import OffsetsGone, Reader, Record
from statestore.objects.base import ObjectStore
from statestore.objects.open import open_objects

log = structlog.get_logger()
SCHEMA = pa.schema(
    [
        ("offset", pa.int64()),
        ("timestamp_ms", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))),
    ]
)
_DIGITS = 20
# Of values in one file: all of it is in memory as it is made, and as it is read.
_FILE_BYTES = 128 * 1024 * 1024
# A leader that is just being replaced may tell of an old end, as to the queries that read the topic.
_LOOK_AGAIN_S = 1.0
_END = b"rollforward.end"
_WRITER = b"rollforward.writer"
Progress = Callable[[str, str], None]
# First and end of the offsets that an archive holds, by partition.
Spans = dict[int, tuple[int, int]]
Part = TypeVar("Part")


@dataclass(frozen=True)
class Piece:
    """One file: offsets of one partition from `start`, included, to `end`, not included."""

    key: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True)
class Archived:
    """What one run has added to a partition; the archive holds the offsets from `first` to `end` now."""

    topic: str
    partition: int
    first: int
    end: int
    records: int
    files: int

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


class Archive:
    """The archive of one topic, as it is now: one made again under its name has another."""

    def __init__(self, objects: ObjectStore, topic: Topic) -> None:
        self.topic = topic
        self._objects = objects

    def pieces(self, partition: int) -> list[Piece]:
        """The files of a partition, oldest first. Raises `DataCorrupted` if one is no file of ours."""
        prefix = f"{self._folder(partition)}/"
        keys = [info.key for info in self._objects.list(prefix) if info.key.endswith(".parquet")]
        if not keys:
            return []
        starts = [_start_of(key, prefix) for key in keys]
        ends = [*(after for _, after in pairwise(starts)), self._end(keys[-1])]
        return [Piece(*found) for found in zip(keys, [partition] * len(keys), starts, ends, strict=True)]

    def spans(self) -> Spans:
        """The offsets that the archive holds of each partition, first and end; partitions without any are left out."""
        found = {partition: self.pieces(partition) for partition in range(self.topic.partitions)}
        return {partition: (pieces[0].start, pieces[-1].end) for partition, pieces in found.items() if pieces}

    def last(self, pieces: list[Piece], begin: int) -> Record | None:
        """The last record of these files, without its headers; None if none has an offset from `begin` on."""
        for piece in reversed(pieces):
            if piece.end <= begin:
                break
            table = read_piece(self._objects, piece).select(["offset", "timestamp_ms", "key", "value"])
            if len(table):
                [row] = table.slice(len(table) - 1).to_pylist()
                found = Record(row["key"], row["value"], row["offset"], row["timestamp_ms"])
                return found if found.offset >= begin else None
        return None

    def put(self, partition: int, start: int, end: int, records: list[Record]) -> bool:
        """Add a file; False if somebody else has put one that begins there."""
        # Parquet's part of Arrow is for those who use an archive.
        import pyarrow.parquet as pq

        table = pa.Table.from_pydict(
            {
                "offset": [record.offset for record in records],
                "timestamp_ms": [record.timestamp_ms for record in records],
                "key": [record.key for record in records],
                "value": [record.value for record in records],
                "headers": [[{"name": n, "value": v} for n, v in record.headers] for record in records],
            },
            schema=SCHEMA.with_metadata({_END: str(end).encode(), _WRITER: uuid.uuid4().bytes.hex().encode()}),
        )
        body = io.BytesIO()
        pq.write_table(table, body, compression="zstd")
        reach("archive.before-put")
        return self._objects.put_if_absent(f"{self._folder(partition)}/{start:0{_DIGITS}}.parquet", body.getvalue())

    def _end(self, key: str) -> int:
        import pyarrow.parquet as pq

        return _end_of(pq.read_schema(io.BytesIO(self._objects.get(key))), key)

    def _folder(self, partition: int) -> str:
        # Kafka's ids are base64, whose signs would be folders and more.
        topic_id = self.topic.topic_id.replace("/", "_").replace("+", "-").rstrip("=")
        return f"{self.topic.name}/{topic_id}/{partition}"


def open_archive(config: ObjectsConfig | None, topic: Topic) -> Archive:
    """The archive of a topic. Raises `InvalidConfig` where archiving is turned off."""
    if config is None:
        raise InvalidConfig("archive is turned off", hint="set archive_url in rollforward.toml: s3://… or file:///…")
    return Archive(open_objects(config), topic)


def archived_spans(config: ObjectsConfig | None, topic: Topic) -> Spans:
    """What the archive has of a topic; empty where archiving is turned off."""
    return {} if config is None else open_archive(config, topic).spans()


def holds(spans: Spans, partition: int, start: int, end: int) -> bool:
    """Whether an archive has every record of a partition from `start`, included, to `end`, not included."""
    first, until = spans.get(partition, (start, start))
    return first <= start and end <= until


def archive_topic(
    name: str,
    kafka: KafkaConfig,
    config: ObjectsConfig | None,
    *,
    records_max: int,
    tell: Progress = lambda _step, _detail: None,
) -> list[Archived]:
    """Add what the topic has got since the last time, up to what is committed now, of every partition that can be.

    Raises `Unrecoverable` where records were deleted before they were archived, or where the log has lost some that were,
    also if others have their offsets now.
    """
    admin = Admin(kafka)
    topic = admin.describe([name]).get(name)
    if topic is None:
        raise InvalidConfig("source topic does not exist", topic=name)
    archive, reader = open_archive(config, topic), Reader(kafka)
    begins = admin.begins(name, partitions=topic.partitions)
    ends = admin.stable_ends(name, partitions=topic.partitions)

    def one(partition: int) -> list[Archived]:
        begin, end = begins[partition], ends[partition]
        return [_archive(archive, admin, reader, partition, begin, end, records_max, tell)]

    return archive_each(sorted(begins), one)


def archive_each(parts: Iterable[Part], work: Callable[[Part], list[Archived]]) -> list[Archived]:
    """Archive topics, or partitions. What one fails of is raised when the others have had their turn."""
    done: list[Archived] = []
    failed: list[RollforwardError] = []
    for part in parts:
        try:
            done += work(part)
        except RollforwardError as error:
            failed.append(error)
    for other in failed[1:]:
        log.error("archiving failed as well", error=str(other))
    if failed:
        raise failed[0]
    return done


def _archive(
    archive: Archive,
    admin: Admin,
    reader: Reader,
    partition: int,
    begin: int,
    end: int,
    records_max: int,
    tell: Progress,
) -> Archived:
    name, pieces = archive.topic.name, archive.pieces(partition)
    first, at = (pieces[0].start, pieces[-1].end) if pieces else (begin, begin)
    if at < begin:
        raise Unrecoverable(
            "source records were deleted before they were archived",
            topic=name,
            partition=partition,
            archived_to=at,
            first=begin,
            hint="archive more often than the topic's retention; to begin anew set another archive_url",
        )
    if at > end:
        _require_whole(archive.topic, admin, partition, at)
    total = files = 0
    if at >= end:
        return Archived(name, partition, first, at, total, files)
    _require_same(archive, admin, reader, pieces, begin)
    for until, records in _cut(reader.read(name, partition, start=at, end=end), end, records_max):
        tell(f"{name} {partition}", f"{until:,} of {end:,}")
        if not archive.put(partition, at, until, records):
            # Another archiver is at it, and goes on from here.
            break
        reach("archive.put")
        at, total, files = until, total + len(records), files + 1
    return Archived(name, partition, first, at, total, files)


def _require_whole(topic: Topic, admin: Admin, partition: int, at: int) -> None:
    """Raises `Unrecoverable` if the log ends before what is archived: what is written next has the lost records' offsets."""
    time.sleep(_LOOK_AGAIN_S)
    # Of all records: an open transaction hides some, which are not lost.
    end = admin.ends(topic.name, partitions=topic.partitions)[partition]
    if end < at:
        raise Unrecoverable(
            "source topic has lost records that were archived: it ends before the archive",
            topic=topic.name,
            partition=partition,
            archived_to=at,
            end=end,
            hint="the archive has records that Kafka has no more; to begin anew set another archive_url",
        )


def _require_same(archive: Archive, admin: Admin, reader: Reader, pieces: list[Piece], begin: int) -> None:
    """Raises `Unrecoverable` if Kafka has another record, or none, where the last archived one of those from `begin` on was.

    A log that has lost its end and got new records since is as long as before. Compaction takes records that were not lost.
    """
    last = archive.last(pieces, begin)
    if last is None or admin.is_compacted(archive.topic.name):
        return
    name, partition, at = archive.topic.name, pieces[-1].partition, last.offset
    try:
        found = [record for chunk in reader.read(name, partition, start=at, end=at + 1) for record in chunk]
    except OffsetsGone:
        # Retention has taken it since the beginning was asked for.
        return
    if [_identity(record) for record in found] != [_identity(last)]:
        raise Unrecoverable(
            "source topic has lost records that were archived: others have their offsets now",
            topic=name,
            partition=partition,
            offset=at,
            archived_to=pieces[-1].end,
            hint="the archive has records that Kafka has no more; to begin anew set another archive_url",
        )


def _identity(record: Record) -> tuple[int, int, bytes | None, bytes | None]:
    return record.offset, record.timestamp_ms, record.key, record.value


def _cut(chunks: Iterable[list[Record]], end: int, records_max: int) -> Iterator[tuple[int, list[Record]]]:
    """Files' records, each with the offset where its file ends; offsets without records belong to the file before them.

    Where nothing but such has come, as of aborted transactions, they make a file without records: retention may delete
    them before the next one, and nobody could tell any more that nothing is missing.
    """
    held: list[Record] = []
    held_bytes = 0
    for chunk in chunks:
        for record in chunk:
            if len(held) >= records_max or held_bytes >= _FILE_BYTES:
                yield record.offset, held
                held, held_bytes = [], 0
            held.append(record)
            held_bytes += len(record.value or b"")
    yield end, held


# Reading.


def read_piece(objects: ObjectStore, piece: Piece) -> pa.Table:
    """The records of one file. Raises `DataCorrupted` if it is not what its neighbours say."""
    import pyarrow.parquet as pq

    table = pq.read_table(io.BytesIO(objects.get(piece.key)))
    if _end_of(table.schema, piece.key) != piece.end or not table.schema.equals(SCHEMA):
        raise DataCorrupted("archive has a file that does not fit", key=piece.key, expected_end=piece.end)
    return table


def _start_of(key: str, prefix: str) -> int:
    start = key.removeprefix(prefix).removesuffix(".parquet")
    if not (start.isdecimal() and len(start) == _DIGITS):
        raise DataCorrupted("archive has a file that is not ours", key=key, hint="take it away")
    return int(start)


def _end_of(schema: pa.Schema, key: str) -> int:
    end = (schema.metadata or {}).get(_END)
    if end is None:
        raise DataCorrupted("archive has a file that is not ours", key=key, hint="take it away")
    return int(end)
