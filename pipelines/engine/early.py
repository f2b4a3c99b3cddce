"""Work in a thread of its own: a step of a start before anybody needs it, or what somebody waits for.

What registers itself for both sides of a fork is imported here: between the two of one, in another thread, it would make
Python complain.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, TypeVar

import structlog

from statestore.errors import text_of

log = structlog.get_logger()
Done = TypeVar("Done")


def early(name: str, step: Callable[[], object]) -> threading.Thread:
    """Take `step` in a thread of its own, which is given.

    Whatever it fails of is told and nothing more: who needs the step takes it again, or meets the same.
    """

    def run() -> None:
        try:
            step()
        except Exception as error:
            log.info("step was not taken ahead", step=name, error=text_of(error)[:500])

    thread = threading.Thread(target=run, daemon=True, name=name)
    thread.start()
    return thread


def beside(name: str, work: Callable[[], Done], into: Future[Done] | None = None) -> Future[Done]:
    """What comes of `work`, done in a thread that keeps no process alive. What `into` has been told before that stays."""
    future: Future[Done] = Future() if into is None else into

    def run() -> None:
        tell: Callable[[Any], None] = future.set_result
        try:
            outcome: object = work()
        except BaseException as error:
            # Whatever it is, it is raised to who waits, who would wait for ever for what a thread ended of.
            tell, outcome = future.set_exception, error
        with suppress(InvalidStateError):
            tell(outcome)

    threading.Thread(target=run, daemon=True, name=name).start()
    return future
