"""SIGTERM and SIGINT as the wish to stop, heard whatever they interrupt."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable


class StopSignals:
    """Calls `on_asked` for each, in a thread of its own.

    The handler only writes to a pipe: it comes in the middle of anything, also of what holds a lock that it would need.
    """

    def __init__(self, on_asked: Callable[[], None]) -> None:
        self._on_asked = on_asked
        self._heard, self._pipe = os.pipe()
        threading.Thread(target=self._hear, daemon=True, name="signals").start()

    def listen(self) -> None:
        """Take the signals; again where somebody else has taken them since. Only the main thread may."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: os.write(self._pipe, b"."))

    def _hear(self) -> None:
        while os.read(self._heard, 1):
            self._on_asked()
