"""Holding a table's changes back until they are final, or until enough time has passed (KIP-328).

Each change goes into a `SuppressionBuffer`; what has waited long enough leaves it, oldest first. A limit by records
or bytes makes changes leave early, or stops the task. For the final result of a window the buffer time is the
window's end, the wait its grace, and deletions need not be sent.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from statestore.context import RecordContext
from statestore.errors import InvalidStateStore
from statestore.kinds.buffered import Change
from statestore.kinds.suppression import Eviction, SuppressionBuffer


class WhenFull(Enum):
    """What happens when the buffer is over its limits."""

    EMIT = "emit"
    SHUT_DOWN = "shut_down"


def record_time(key: bytes, context: RecordContext) -> int:
    """The buffer time of a suppression by time: that of the record."""
    return context.timestamp_ms


class Suppression:
    """A processor over a buffer. `forward` gets what leaves it."""

    def __init__(
        self,
        buffer: SuppressionBuffer,
        forward: Callable[[Eviction], None],
        *,
        wait_ms: int,
        max_records: int | None = None,
        max_bytes: int | None = None,
        when_full: WhenFull = WhenFull.EMIT,
        buffer_time: Callable[[bytes, RecordContext], int] = record_time,
        final_results: bool = False,
    ) -> None:
        """`final_results`: only the last change of a key counts, so a deletion of what never left is not sent."""
        self._buffer = buffer
        self._forward = forward
        self._wait_ms = wait_ms
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._when_full = when_full
        self._buffer_time = buffer_time
        self._final_results = final_results

    def process(self, key: bytes, change: Change, context: RecordContext) -> None:
        """Take a change in, then let out what is due.

        Raises `InvalidStateStore` if the buffer is over its limits and may not emit early.
        """
        due_ms = self._buffer.observe(context.timestamp_ms) - self._wait_ms
        self._buffer.put(self._buffer_time(key, context), key, change, context)
        self._buffer.evict_while(lambda: self._buffer.min_timestamp_ms <= due_ms, self._emit)
        if self._over_limit() and self._when_full is WhenFull.SHUT_DOWN:
            raise InvalidStateStore(
                "suppression buffer is full",
                store=self._buffer.name,
                records=self._buffer.num_records,
                bytes=self._buffer.size_bytes,
                hint="raise its limits, or let it emit early",
            )
        self._buffer.evict_while(self._over_limit, self._emit)

    def _over_limit(self) -> bool:
        too_many = self._max_records is not None and self._buffer.num_records > self._max_records
        return too_many or (self._max_bytes is not None and self._buffer.size_bytes > self._max_bytes)

    def _emit(self, eviction: Eviction) -> None:
        if eviction.change.new is not None or not self._final_results:
            self._forward(eviction)
