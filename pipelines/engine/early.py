"""Steps of a start that are taken beside others, before anybody needs them.

What registers itself for both sides of a fork is imported here: between the two of one, in another thread, it would make
Python complain.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401
import threading
from collections.abc import Callable

import structlog

log = structlog.get_logger()


def early(name: str, step: Callable[[], object]) -> threading.Thread:
    """Take `step` in a thread of its own, which is given.

    Whatever it fails of is told and nothing more: who needs the step takes it again, or meets the same.
    """

    def run() -> None:
        try:
            step()
        except Exception as error:
            log.info("step was not taken ahead", step=name, error=str(error)[:500])

    thread = threading.Thread(target=run, daemon=True, name=name)
    thread.start()
    return thread
