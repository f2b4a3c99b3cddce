"""Waiting for a call that cannot be told how long it may take."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar("Answer")


def within(seconds: float, what: str, call: Callable[[], Answer]) -> Answer:
    """What comes of the call. Raises `TimeoutError` where it takes longer: it goes on then, and keeps no process alive."""
    answers: list[Answer] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(call())
        except BaseException as error:
            # Whatever it is, it is raised to who waits.
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True, name=what)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError(f"{what} takes longer than {seconds:.1f} s")
    if raised:
        # Left in the list it would be in a cycle with what the call holds.
        raise raised.pop()
    return answers[0]
