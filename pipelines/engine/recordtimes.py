"""Where a partition's records come to a time, by looking at a few of them: as if their times went on and never back."""

from __future__ import annotations

from statestore.kafka.reader import Reader, Record


class RecordTimes:
    """Of one topic. Remembers the records that it has looked at, as long as the question begins at the same offsets."""

    def __init__(self, reader: Reader, topic: str) -> None:
        self._reader = reader
        self._topic = topic
        self._starts: dict[int, int] = {}
        self._seen: dict[int, dict[int, Record | None]] = {}

    def first(self, partition: int, start: int, end: int, time_ms: int) -> int:
        """The first offset from `start` on whose record is of that time or later, by halving; `end` where none is."""
        if self._starts.get(partition) != start:
            self._starts[partition], self._seen[partition] = start, {}
        low, high, looked = start, end, start
        with self._reader.kept():
            while low < high:
                record = self._record(partition, looked, end)
                if record is None or record.offset >= high or record.timestamp_ms >= time_ms:
                    high = looked
                else:
                    low = record.offset + 1
                looked = (low + high) // 2
        return low

    def _record(self, partition: int, offset: int, end: int) -> Record | None:
        """The first one from `offset` on and before `end`."""
        seen = self._seen[partition]
        if offset not in seen:
            chunks = self._reader.read(self._topic, partition, start=offset, end=end)
            seen[offset] = next((chunk[0] for chunk in chunks if chunk), None)
        return seen[offset]
