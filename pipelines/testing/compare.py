"""Expected and found records: compared topic by topic, in order; the first difference as a text for people."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

from pipelines.testing.records import Delimited, Number, Record

RELATIVE = 1e-9


def difference(expected: Sequence[Record], found: Mapping[str, Sequence[Record]]) -> str | None:
    """The first record of each topic that differs, None if there is none.

    `found` are the records of every topic that queries write; a topic of them that is not expected must be empty,
    unless it is no expected record's topic at all: then nothing is said of it.
    """
    topics = dict.fromkeys(record.topic for record in expected)
    told = [_of_topic(topic, [r for r in expected if r.topic == topic], found.get(topic, ())) for topic in topics]
    if not topics and any(found.values()):
        topic = next(topic for topic, records in found.items() if records)
        told.append(_of_topic(topic, [], found[topic]))
    return "\n".join(text for text in told if text is not None) or None


def _of_topic(topic: str, expected: Sequence[Record], found: Sequence[Record]) -> str | None:
    for number in range(max(len(expected), len(found))):
        wanted = expected[number] if number < len(expected) else None
        actual = found[number] if number < len(found) else None
        if wanted is None or actual is None or not same(wanted, actual):
            lines = [
                f"topic {topic}: record {number + 1} differs ({len(expected)} expected, {len(found)} found)",
                f"  expected: {_shown(wanted, wanted)}",
                f"  found:    {_shown(actual, wanted)}",
            ]
            return "\n".join(lines)
    return None


def _shown(record: Record | None, wanted: Record | None) -> str:
    if record is None:
        return "no record"
    fields = record.to_json()
    del fields["topic"]
    if wanted is not None and wanted.timestamp is None:
        fields.pop("timestamp", None)
    return json.dumps(fields, ensure_ascii=False)


def same(wanted: Record, actual: Record) -> bool:
    """Whether the record is the expected one. Timestamp and headers count where the test says them."""
    return (
        equal(wanted.key, actual.key)
        and equal(wanted.value, actual.value)
        and wanted.window == actual.window
        and (wanted.timestamp is None or wanted.timestamp == actual.timestamp)
        and (wanted.headers is None or wanted.headers == (actual.headers or ()))
    )


def equal(wanted: Any, actual: Any) -> bool:
    """Whether two JSON values are the same: numbers as numbers, 1 as 1.0, and a decimal also as its text.

    Versions of Commons CSV differ in whether a line's first field is in quotes that it does not need.
    """
    if isinstance(wanted, dict) and isinstance(actual, dict):
        return wanted.keys() == actual.keys() and all(equal(wanted[name], actual[name]) for name in wanted)
    if isinstance(wanted, list) and isinstance(actual, list):
        return len(wanted) == len(actual) and all(map(equal, wanted, actual))
    if _is_number(wanted) and _is_number(actual):
        return _numbers_equal(wanted, actual)
    if isinstance(wanted, str) and _is_number(actual):
        return _decimal(wanted) == _decimal(getattr(actual, "text", str(actual))) is not None
    if isinstance(wanted, str) and isinstance(actual, Delimited):
        return Delimited(wanted, actual.delimiter).bare == actual.bare
    return type(wanted) is type(actual) and bool(wanted == actual)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _numbers_equal(wanted: Any, actual: Any) -> bool:
    if isinstance(wanted, int) and isinstance(actual, int):
        return wanted == actual
    texts = [value.text if isinstance(value, Number) else repr(value) for value in (wanted, actual)]
    return _decimal(texts[0]) == _decimal(texts[1]) or math.isclose(wanted, actual, rel_tol=RELATIVE)


def _decimal(text: str) -> Decimal | None:
    try:
        return Decimal(text)
    except InvalidOperation:
        return None
