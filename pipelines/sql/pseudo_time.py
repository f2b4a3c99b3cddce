"""A literal string beside ROWTIME, WINDOWSTART or WINDOWEND in WHERE: the moment that it begins, in ms.

`2020`, `2020-02`, `2020-02-10`, each also with `T` and a time of as many parts as are given, and behind it `Z` or a
zone like `+0100`. Without a zone it is UTC.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

from pipelines.sql.error import Refusal
from pipelines.sql.functions import Value
from pipelines.sql.names import ROWTIME, WINDOW_BOUNDS
from pipelines.sql.nodes import Column, Node, unwrapped
from pipelines.sql.types import BIGINT

_DATE = r"(?P<year>\d{4})(?:-(?P<month>\d{1,2})(?:-(?P<day>\d{1,2}))?)?"
_TIME = r"(?:(?P<hour>\d{1,2})(?::(?P<minute>\d{1,2})(?::(?P<second>\d{1,2})(?:\.(?P<fraction>\d{1,3}))?)?)?)?"
_ZONE = r"(?:Z|(?P<sign>[+-])(?P<hours>\d{2}):?(?P<minutes>\d{2}))?"
_MOMENT = re.compile(f"{_DATE}(?:T{_TIME}{_ZONE})?")
HINT = "yyyy-MM-ddTHH:mm:ss.SSS, with a zone like +0100 behind it or without"


def with_moments(nodes: Sequence[Node], values: Sequence[Value]) -> list[Value]:
    """The values that are compared; if one of them is a row's own time, literal strings are read as moments."""
    if not any(_is_time(node) for node in nodes):
        return list(values)
    return [value if value.words is None else _moment(value, value.words) for value in values]


def _is_time(node: Node) -> bool:
    bare = unwrapped(node)
    return isinstance(bare, Column) and bare.name.text in (ROWTIME, *WINDOW_BOUNDS)


def _moment(value: Value, words: str) -> Value:
    found = _MOMENT.fullmatch(words)
    try:
        ms = _milliseconds(found) if found is not None else None
    except ValueError:
        ms = None
    if ms is None:
        raise Refusal(value.at, f"Failed to parse timestamp '{words[:50]}'", HINT)
    return replace(value, text=f"{ms}L", type=BIGINT, literal=ms, words=None)


def _milliseconds(found: re.Match[str]) -> int:
    def part(name: str, default: int = 0) -> int:
        return int(found[name]) if found[name] else default

    zone = UTC
    if found["sign"]:
        offset = timedelta(hours=part("hours"), minutes=part("minutes"))
        zone = timezone(offset if found["sign"] == "+" else -offset)
    date = part("year"), part("month", 1), part("day", 1)
    moment = datetime(*date, part("hour"), part("minute"), part("second"), tzinfo=zone)
    fraction = int((found["fraction"] or "").ljust(3, "0"))
    return int(moment.timestamp()) * 1000 + fraction
