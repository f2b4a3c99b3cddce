"""Waiting for what must happen, with a time limit that tells a slow machine from a wrong result."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Literal, TypeVar

Answer = TypeVar("Answer")
EVERY_S = 0.05


def end_beside(work: Callable[[], object], again: Callable[[], object], timeout_s: float = 60) -> bool:
    """Whether `work` ends in that time, and then `again`, which another thread does over and over meanwhile."""
    over = threading.Event()

    def repeat() -> None:
        while not over.is_set():
            again()

    threads = [threading.Thread(target=target, daemon=True) for target in (repeat, work)]
    for thread in threads:
        thread.start()
    threads[1].join(timeout_s)
    over.set()
    threads[0].join(10)
    return not any(thread.is_alive() for thread in threads)


class TooLate(TimeoutError):
    """Something did not happen in time. `make test` runs such a test once more."""


def await_(
    what: str,
    found: Callable[[], Answer | Literal[False] | None],
    timeout_s: float = 120,
    *,
    tail: Callable[[], str] = str,
) -> Answer:
    """The first true answer of `found`. Raises `TooLate` with `tail`, such as the end of a log, behind `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not (answer := found()):
        if time.monotonic() > deadline:
            raise TooLate(f"{what} did not happen in {timeout_s} s\n{tail()}")
        time.sleep(EVERY_S)
    return answer


def require_within(limit_s: float, started: float) -> None:
    """Raises `TooLate` if more than `limit_s` have gone by since `started`, a monotonic time."""
    took_s = time.monotonic() - started
    if took_s >= limit_s:
        raise TooLate(f"took {took_s:.1f} s, and not less than {limit_s}")
