"""Java's patterns of dates and times: read here for TIMESTAMP_FORMAT of a source, and by Spark in functions and results."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

_LETTERS = re.compile(r"'(?P<quoted>(?:[^']|'')*)'|(?P<letter>[A-Za-z])(?P=letter)*|(?P<other>.)", re.DOTALL)
_PYTHON = {"M": "%m", "d": "%d", "H": "%H", "m": "%M", "s": "%S", "S": "%f", "X": "%z", "x": "%z", "Z": "%z"}
_PYTHON |= {"y": "%Y", "u": "%Y", "a": "%p", "h": "%I", "E": "%a", "D": "%j"}
_LONG = {"MMM": "%b", "MMMM": "%B", "EEEE": "%A", "yy": "%y"}
_FRACTION_MAX = 6
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Letters that Spark takes for nothing, and those that it only writes (`DateTimeFormatterHelper`). It would say so at each record.
_NOT_SPARKS = frozenset("bcefijlnoprtwABCIJNPRTUWY#{}")
_ONLY_WRITTEN = frozenset("EFqQ")


def python_pattern(pattern: str) -> str:
    """Python's pattern for Java's. Raises ValueError for a letter that has none."""
    out = []
    for match in _LETTERS.finditer(pattern):
        text = match.group()
        if (quoted := match.group("quoted")) is not None:
            out.append((quoted.replace("''", "'") or "'").replace("%", "%%"))
        elif match.group("letter") is None:
            out.append(text.replace("%", "%%"))
        elif text[0] in "zV":
            # Their names mean what the machine's zone makes of them.
            raise ValueError(f"pattern letter {text[0]} is not supported: a zone is written as an offset, by X, x or Z")
        elif text[0] not in _PYTHON:
            raise ValueError(f"pattern letter {text[0]} is not supported")
        elif text[0] == "S" and len(text) > _FRACTION_MAX:
            raise ValueError(f"pattern {text} is not supported: at most {_FRACTION_MAX} digits of a second")
        else:
            out.append(_LONG.get(text, _PYTHON[text[0]]))
    return "".join(out)


def spark_problem(pattern: str, *, reads: bool) -> str:
    """Why Spark does not take the pattern, to read or to write text; empty if it does."""
    found = {match["letter"] or match["other"] for match in _LETTERS.finditer(pattern)} - {None}
    wrong = sorted(found & (_NOT_SPARKS | _ONLY_WRITTEN if reads else _NOT_SPARKS))
    return f"pattern letter {wrong[0]} is not supported{' where text is read' if reads else ''}" if wrong else ""


def time_reader(pattern: str | None) -> Callable[[Any], int]:
    """A function from a column's value to ms since 1970, which are not negative. Raises ValueError for no time."""
    python = None if pattern is None else python_pattern(pattern)

    def read(value: Any) -> int:
        if value is None:
            raise ValueError("it is null")
        time_ms = _milliseconds(value, python) if python is not None else int(value)
        if time_ms < 0:
            raise ValueError(f"{time_ms} is negative")
        return time_ms

    return read


def _milliseconds(text: str, pattern: str) -> int:
    moment = datetime.strptime(text, pattern)  # noqa: DTZ007  # a pattern may have no zone; then it is UTC
    known = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    # Downwards, as Spark and Java have it: half a millisecond more would be the next window.
    return (known - _EPOCH) // timedelta(milliseconds=1)
