"""Where archived records come to a time, as brokers tell it of those that they still have."""

from __future__ import annotations

import io
from typing import cast

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from pipelines.archive import Archive, Piece, open_archive
from statestore.config import ObjectsConfig
from statestore.kafka.admin import Topic
from statestore.objects.open import open_objects

_Ints = npt.NDArray[np.int64]


class ArchivedTimes:
    """Of one topic. Who asks goes forward, as batches do: the times of files that lie behind are forgotten."""

    def __init__(self, config: ObjectsConfig, topic: Topic) -> None:
        self.topic = topic
        self._config = config
        self._archive: Archive = open_archive(config, topic)
        self._pieces: dict[int, list[Piece]] = {}
        self._read: dict[Piece, tuple[_Ints, _Ints]] = {}

    def first(self, partition: int, start: int, end: int, time_ms: int) -> int | None:
        """The first offset from `start` on and before `end` whose record is of that time or later; None where none is."""
        for piece in self._between(partition, start, end):
            offsets, times = self._times(piece)
            looked = slice(*np.searchsorted(offsets, [start, end]))
            late = np.flatnonzero(times[looked] >= time_ms)
            if len(late):
                return int(offsets[looked][late[0]])
        return None

    def _between(self, partition: int, start: int, end: int) -> list[Piece]:
        pieces = self._pieces.get(partition, [])
        if not pieces or pieces[0].start > start or pieces[-1].end < end:
            # Files are added, and none is ever changed. A batch that is cut short goes back to some that lay behind.
            pieces = self._archive.pieces(partition)
        self._pieces[partition] = pieces = [piece for piece in pieces if piece.end > start]
        for behind in [piece for piece in self._read if piece.partition == partition and piece.end <= start]:
            del self._read[behind]
        return [piece for piece in pieces if piece.start < end]

    def _times(self, piece: Piece) -> tuple[_Ints, _Ints]:
        if piece not in self._read:
            objects = open_objects(self._config)
            try:
                table = pq.read_table(io.BytesIO(objects.get(piece.key)), columns=["offset", "timestamp_ms"])
            finally:
                objects.close()
            offsets, times = (cast(_Ints, column.to_numpy()) for column in table.columns)
            self._read[piece] = offsets, times
        return self._read[piece]
