"""One bound on what all tasks of a process keep in memory before they commit."""

from __future__ import annotations

from threading import Lock


class UncommittedBudget:
    """`bytes_max` in equal shares, a share a task; who has more than that commits early. Safe for any thread."""

    def __init__(self, bytes_max: int) -> None:
        if bytes_max < 1:
            raise ValueError(f"bytes_max must be positive: {bytes_max}")
        self.bytes_max = bytes_max
        self._tasks: set[object] = set()
        self._lock = Lock()

    def join(self, task: object) -> None:
        """One more to share with. Twice is once."""
        with self._lock:
            self._tasks.add(task)

    def leave(self, task: object) -> None:
        """One less."""
        with self._lock:
            self._tasks.discard(task)

    @property
    def share_bytes(self) -> int:
        """What each task may have now."""
        with self._lock:
            return self.bytes_max // max(1, len(self._tasks))
