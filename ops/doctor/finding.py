"""One thing that was looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

from infra.errors import InfraError
from pipelines.settings import Settings
from statestore.errors import RollforwardError


class Level(Enum):
    """`WARNING` works and will hurt one day; `ERROR` does not work."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True)
class Finding:
    """What was looked at, what was seen, and the fix where one is due."""

    what: str
    level: Level
    text: str
    fix: str = ""


Check = Callable[[Settings], Iterator[Finding]]


def ok(what: str, text: str) -> Finding:
    """As it should be."""
    return Finding(what, Level.OK, text)


def warning(what: str, text: str, fix: str) -> Finding:
    """Will hurt one day."""
    return Finding(what, Level.WARNING, text, fix)


def error(what: str, text: str, fix: str) -> Finding:
    """Does not work."""
    return Finding(what, Level.ERROR, text, fix)


def told(what: str, raised: RollforwardError | InfraError | OSError) -> Finding:
    """An error that looking has met, as a finding."""
    fix = "" if isinstance(raised, OSError) else raised.hint
    return error(what, str(raised).partition("; hint: ")[0].partition(" hint: ")[0], fix or "see the message")
