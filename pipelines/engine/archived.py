"""Archived records as a Spark frame of the same columns as Kafka's, read file by file in the workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from pipelines.archive import Archive, Piece, read_piece
from statestore.batches import Range
from statestore.config import ObjectsConfig
from statestore.errors import Unrecoverable
from statestore.objects.open import open_objects

COLUMNS = ("key", "value", "partition", "offset", "timestamp")
_DDL = "key binary, value binary, partition int, offset bigint, timestamp timestamp"
_PIECES_DDL = "file string, partition int, start bigint, end bigint, low bigint, high bigint"


def archived_frame(
    session: SparkSession, config: ObjectsConfig, archive: Archive, ranges: Sequence[Range]
) -> DataFrame:
    """The archived records of the ranges. Raises `Unrecoverable` if the archive does not hold all of them."""
    wanted = [(*astuple(piece), r.start, r.end) for r in ranges for piece in _pieces(archive, r)]
    files = session.createDataFrame(wanted, _PIECES_DDL).repartition(max(1, len(wanted)))

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        objects = open_objects(config)
        try:
            for row in (row for batch in batches for row in batch.to_pylist()):
                piece = Piece(row["file"], row["partition"], row["start"], row["end"])
                yield from _kafka_like(read_piece(objects, piece), row["partition"], row["low"], row["high"])
        finally:
            objects.close()

    return files.mapInArrow(read, _DDL)


def _pieces(archive: Archive, wanted: Range) -> list[Piece]:
    pieces = archive.pieces(wanted.partition)
    if not pieces or pieces[0].start > wanted.start or pieces[-1].end < wanted.end:
        raise Unrecoverable(
            "archive does not hold the records",
            topic=wanted.topic,
            partition=wanted.partition,
            wanted=f"{wanted.start}-{wanted.end}",
            held=f"{pieces[0].start}-{pieces[-1].end}" if pieces else "nothing",
        )
    return [piece for piece in pieces if piece.end > wanted.start and piece.start < wanted.end]


def _kafka_like(table: pa.Table, partition: int, low: int, high: int) -> Iterator[pa.RecordBatch]:
    offset = table.column("offset")
    table = table.filter(pc.and_(pc.greater_equal(offset, low), pc.less(offset, high)))
    times = pc.multiply(table.column("timestamp_ms"), 1000).cast(pa.timestamp("us", tz="UTC"))
    columns = [table.column("key"), table.column("value"), pa.repeat(pa.scalar(partition, pa.int32()), table.num_rows)]
    found = pa.table([*columns, table.column("offset"), times], names=list(COLUMNS))
    yield from found.combine_chunks().to_batches(max_chunksize=20_000)
