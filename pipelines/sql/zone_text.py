"""Letters of a time pattern that show the zone: its name `VV`, its short name `z`, its offset `X`, `x` or `Z`.

Spark shows a moment of another zone as if that were UTC, so these letters are computed here from the moment's offset.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from pipelines.sql.quoting import string_literal

# Runs of letters, of which those of a zone are named; text in quotes and all else.
_PART = re.compile(r"'(?:[^']|'')*'|(?P<zone>VV|z{1,3}(?!z)|X{1,3}(?!X)|x{1,3}(?!x)|Z{1,3}(?!Z))|.", re.DOTALL)
_YEARS, _MONTHS = range(1970, 2038), (1, 7)


def shows_zone(pattern: str) -> bool:
    """Whether the pattern has a letter of this file's."""
    return any(found["zone"] for found in _PART.finditer(pattern))


def zoned_text(moment: str, ms: str, pattern: str, zone: str) -> str:
    """`moment`, which shows the zone's clock, in the pattern. `ms` is the moment itself."""
    offset = f"CAST((unix_millis({moment}) - {ms}) div 60000 AS INT)"
    texts, plain = [], ""
    for found in _PART.finditer(pattern):
        if not found["zone"]:
            plain += found.group()
            continue
        if plain:
            texts.append(f"date_format({moment}, {string_literal(plain)})")
        texts.append(_zone(found["zone"], offset, zone))
        plain = ""
    if plain:
        texts.append(f"date_format({moment}, {string_literal(plain)})")
    return f"concat({', '.join(texts)})"


def _zone(letters: str, offset: str, zone: str) -> str:
    if letters == "VV":
        return f"CASE WHEN {offset} IS NOT NULL THEN {string_literal(zone)} END"
    if letters[0] == "z":
        return _short_name(offset, zone)
    minutes = f"lpad(CAST(abs({offset}) % 60 AS STRING), 2, '0')"
    hours = f"concat(CASE WHEN {offset} < 0 THEN '-' ELSE '+' END, lpad(CAST(abs({offset}) div 60 AS STRING), 2, '0'))"
    if letters in ("X", "x"):
        text = f"CASE WHEN {offset} % 60 = 0 THEN {hours} ELSE concat({hours}, {minutes}) END"
    else:
        text = f"concat({hours}, '{':' if letters in ('XXX', 'xxx') else ''}', {minutes})"
    return f"CASE WHEN {offset} = 0 THEN 'Z' ELSE {text} END" if letters[0] == "X" else text


def _short_name(offset: str, zone: str) -> str:
    """The newest name that the zone has had at each offset."""
    names: dict[int, str] = {}
    for year in _YEARS:
        for month in _MONTHS:
            clock = datetime(year, month, 1, tzinfo=UTC).astimezone(ZoneInfo(zone))
            apart = clock.utcoffset()
            if apart is not None:
                names[int(apart.total_seconds()) // 60] = clock.tzname() or zone
    whens = " ".join(f"WHEN {minutes} THEN {string_literal(name)}" for minutes, name in names.items())
    return f"CASE {offset} {whens} END"
