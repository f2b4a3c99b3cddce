"""Archived records of a partition as a part of a batch's input, read file by file in the worker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.archive import Archive, Piece, read_piece
from pipelines.engine.records import GivenRecords, Records
from statestore.batches import Range
from statestore.config import ObjectsConfig
from statestore.errors import Unrecoverable
from statestore.objects.open import open_objects

_BLOCK = 10_000


@dataclass(frozen=True)
class ArchivedPart:
    """A range of a partition, and the archive's files that hold it."""

    objects: ObjectsConfig
    range: Range
    pieces: tuple[Piece, ...]

    @property
    def size(self) -> int:
        return self.range.offsets

    def records(self) -> Iterator[Records]:
        objects = open_objects(self.objects)
        try:
            for piece in self.pieces:
                yield from self._blocks(read_piece(objects, piece))
        finally:
            objects.close()

    def _blocks(self, table: pa.Table) -> Iterator[Records]:
        offset = table.column("offset")
        wanted = table.filter(pc.and_(pc.greater_equal(offset, self.range.start), pc.less(offset, self.range.end)))
        for batch in wanted.combine_chunks().to_batches(max_chunksize=_BLOCK):
            keys, values, offsets, times = (batch.column(name) for name in ("key", "value", "offset", "timestamp_ms"))
            yield GivenRecords(self.range.partition, keys, values, offsets, times)


def archived_part(config: ObjectsConfig, archive: Archive, wanted: Range) -> ArchivedPart:
    """The archived records of the range. Raises `Unrecoverable` if the archive does not hold all of them."""
    pieces = archive.pieces(wanted.partition)
    if not pieces or pieces[0].start > wanted.start or pieces[-1].end < wanted.end:
        raise Unrecoverable(
            "archive does not hold the records",
            topic=wanted.topic,
            partition=wanted.partition,
            wanted=f"{wanted.start}-{wanted.end}",
            held=f"{pieces[0].start}-{pieces[-1].end}" if pieces else "nothing",
        )
    held = tuple(piece for piece in pieces if piece.end > wanted.start and piece.start < wanted.end)
    return ArchivedPart(config, wanted, held)
