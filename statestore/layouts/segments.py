"""How a windowed store is cut into segments, so that expiry deletes files instead of searching for entries.

A segment is a space of its own, named `<store>.<start>` by the first time it can hold; segment `n` holds the times
from `n` times the interval. A segment is live while its number is at least (stream time - retention) / interval, so
entries outlive the retention by up to an interval: reads therefore start at stream time - retention + 1, exactly.
Rules and names are Kafka Streams'.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from statestore.columns import Entries

MIN_INTERVAL_MS = 60_000


def default_interval_ms(retention_ms: int) -> int:
    """Half the retention, at least a minute: two to three segments are live."""
    return max(retention_ms // 2, MIN_INTERVAL_MS)


@dataclass(frozen=True)
class Segments:
    """The segments of one store. `suffix` tells stores apart whose values have another format."""

    store: str
    retention_ms: int
    interval_ms: int
    suffix: str = ""

    def __post_init__(self) -> None:
        if self.retention_ms < 0:
            raise ValueError(f"retention must not be negative: {self.retention_ms} ms")
        if self.interval_ms < 1:
            raise ValueError(f"segment interval must be 1 ms or more: {self.interval_ms} ms")

    def number(self, time_ms: int) -> int:
        """The segment of a time."""
        return time_ms // self.interval_ms

    def space(self, number: int) -> str:
        """The name of a segment's space."""
        return f"{self.store}.{number * self.interval_ms}{self.suffix}"

    def placed(self, entries: Entries, times_ms: npt.NDArray[Any]) -> dict[str, Entries]:
        """Entries of these times by the space of their segment, in their order."""
        rows = self.rows(times_ms)
        if len(rows) == 1:
            return dict.fromkeys(rows, entries)
        return {space: entries.taken(mine) for space, mine in rows.items()}

    def rows(self, times_ms: npt.NDArray[Any]) -> dict[str, npt.NDArray[np.intp]]:
        """The indexes of the times in the segment of each space, ascending; a space without any is left out."""
        numbers = times_ms.astype(np.int64) // self.interval_ms
        order = np.argsort(numbers, kind="stable")
        found, firsts = np.unique(numbers[order], return_index=True)
        parts = np.split(order, firsts[1:]) if len(found) else []
        return {self.space(number): mine for number, mine in zip(found.tolist(), parts, strict=True)}

    def numbers(self, spaces: list[str]) -> list[int]:
        """The segments among `spaces`, ascending; other spaces are left out."""
        before, after = len(self.store) + 1, len(self.suffix)
        starts = (space[before : len(space) - after] for space in spaces if self._mine(space))
        return sorted(int(start) // self.interval_ms for start in starts if start.isdecimal())

    def _mine(self, space: str) -> bool:
        return space.startswith(f"{self.store}.") and space.endswith(self.suffix)

    def oldest_live(self, stream_time_ms: int) -> int:
        """The first segment that is kept at that stream time."""
        return max(stream_time_ms - self.retention_ms, 0) // self.interval_ms

    def readable_from(self, stream_time_ms: int) -> int:
        """The first time that reads give at that stream time."""
        return max(stream_time_ms - self.retention_ms + 1, 0)
