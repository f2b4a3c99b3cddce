"""A broker of a test's own, which may lose something."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from infra.stack import Stack


@contextmanager
def own_broker(home: Path) -> Iterator[Stack]:
    """A local stack with a broker, gone behind it."""
    stack = Stack(home)
    stack.up(components=["kafka"])
    yield stack
    stack.down(wipe=True)


def kill(stack: Stack) -> None:
    """Kill the broker, and wait until it has ended."""
    broker = psutil.Process(stack.status().component("kafka").pid)
    broker.kill()
    broker.wait(60)


def lose_end(stack: Stack, segment: Path, size: int) -> None:
    """Cut a log to this size in bytes: what a killed broker had not yet brought to its disk. It runs again then."""
    kill(stack)
    os.truncate(segment, size)
    stack.up(components=["kafka"])
