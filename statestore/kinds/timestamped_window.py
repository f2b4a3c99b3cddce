"""A window store whose values carry a time in front (`statestore.layouts.timestamped`).

The changelog has values without it and it as the record's time. A store that was plain before is upgraded when it is
opened: each plain segment is copied with unknown times, and dropped when its copy is complete. Nothing is written to
the store before all segments are, so a copy that a crash cut short is simply made again.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import ClassVar

import pyarrow as pa

from statestore.columns import Columns
from statestore.context import ChangelogRecord
from statestore.kinds.window import Window
from statestore.layouts import timestamped
from statestore.layouts.segments import Segments
from statestore.spaces.base import Change
from statestore.store import TransactionalMechanism

_SUFFIX = ".timestamped"
_CHUNK = 10_000


class TimestampedWindow(Window):
    """Values given and read are an 8-byte time and the value."""

    layout: ClassVar[str] = "timestamped-window/1"
    reads_layouts: ClassVar[frozenset[str]] = frozenset({Window.layout})

    def __init__(
        self,
        name: str,
        *,
        retention_ms: int,
        window_size_ms: int,
        retain_duplicates: bool = False,
        segment_interval_ms: int | None = None,
        mechanism: TransactionalMechanism | None = TransactionalMechanism.INDEXED_BATCH,
        persistent: bool = True,
        logged: bool = True,
    ) -> None:
        super().__init__(
            name,
            retention_ms=retention_ms,
            window_size_ms=window_size_ms,
            retain_duplicates=retain_duplicates,
            segment_interval_ms=segment_interval_ms,
            segment_suffix=_SUFFIX,
            mechanism=mechanism,
            persistent=persistent,
            logged=logged,
        )

    def _log_write(self, stored_key: bytes, value: bytes | None) -> None:
        if value is None:
            self._log(stored_key, None, self._record_time_ms())
        else:
            self._log(stored_key, *timestamped.unpack(value))

    def _loaded_values(self, records: Columns) -> pa.LargeBinaryArray:
        return records.stamped()

    def _restored_value(self, record: ChangelogRecord) -> bytes | None:
        return None if record.value is None else timestamped.pack(record.value, record.timestamp_ms)

    def _opened(self) -> None:
        plain = Segments(self.name, self._segments.retention_ms, self._segments.interval_ms)
        for number in plain.numbers(self.transaction.base_spaces()):
            self._upgrade(number, plain.space(number))
        super()._opened()

    def _upgrade(self, number: int, space: str) -> None:
        base = self.transaction.base
        entries: Iterator[Change] = (
            (key, timestamped.pack(value, timestamped.UNKNOWN)) for key, value in base.scan(space)
        )
        while chunk := list(islice(entries, _CHUNK)):
            base.write({self._segments.space(number): chunk})
        base.drop(space)
