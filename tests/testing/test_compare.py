"""What counts as the same record, and what is told of the first that is not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pipelines.testing.compare import difference, equal
from pipelines.testing.records import Delimited, Number, Record, Window, read_records
from statestore.errors import InvalidInput

ONE = Record("t", 1, {"A": 1}, 10, None, None)


@pytest.mark.parametrize(
    ("wanted", "actual"),
    [
        (1, 1),
        (1, Number("1.0")),
        (Number("1.50"), Number("1.5")),
        ("10.10", Number("10.100")),
        (Number("0.3"), Number("0.30000000000000004")),
        ([1, {"a": None}], [1, {"a": None}]),
        ("-1,b", Delimited('"-1",b', ",")),
        ('"-1"', Delimited("-1", ",")),
    ],
)
def test_equal(wanted: object, actual: object) -> None:
    assert equal(wanted, actual)


@pytest.mark.parametrize(
    ("wanted", "actual"),
    [
        (1, 2),
        (1, True),
        (0, None),
        (9007199254740993, 9007199254740992),
        ("x", Number("1.0")),
        ({"A": 1}, {"A": 1, "B": 2}),
        ({"A": 1}, {"a": 1}),
        ([1, 2], [2, 1]),
        ("a,b", Delimited('"a,b"', ",")),
        ("a,b", Delimited('a,"b"', ",")),
        ('a"', Delimited('"a"""', "|")),
        ("", Delimited('""', ",")),
        (Number("1.01"), Number("1.02")),
    ],
)
def test_not_equal(wanted: object, actual: object) -> None:
    assert not equal(wanted, actual)


@pytest.mark.parametrize(
    "found",
    [
        [],
        [ONE, ONE],
        [replace(ONE, key=2)],
        [replace(ONE, value=None)],
        [replace(ONE, timestamp=11)],
        [replace(ONE, window=Window(0, 10))],
    ],
)
def test_a_difference_is_told(found: list[Record]) -> None:
    assert difference([ONE], {"t": found}) is not None


def test_a_time_that_is_not_expected_does_not_count() -> None:
    assert difference([replace(ONE, timestamp=None)], {"t": [ONE]}) is None


def test_the_order_counts_within_a_topic_and_not_between_topics() -> None:
    two, other = replace(ONE, key=2), replace(ONE, topic="u")
    assert difference([ONE, other, two], {"u": [other], "t": [ONE, two]}) is None
    assert difference([ONE, other, two], {"u": [other], "t": [two, ONE]}) is not None


def test_the_first_difference_of_a_topic_is_shown_with_both_records() -> None:
    expected = [ONE, replace(ONE, value={"A": 2}, window=Window(0, 5))]
    told = difference(expected, {"t": [ONE, ONE]})
    assert told is not None
    assert [
        "topic t: record 2 differs (2 expected, 2 found)",
        '  expected: {"key": 1, "value": {"A": 2}, "timestamp": 10, "window": {"start": 0, "end": 5, "type": "time"}}',
        '  found:    {"key": 1, "value": {"A": 1}, "timestamp": 10}',
    ] == told.splitlines()


@pytest.mark.parametrize("content", ["", "[]", '{"inputs": 1}', '{"inputs": [{"key": 1}]}', '{"inputs": [1]}'])
def test_a_file_of_another_format_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "input.json").write_text(content)
    with pytest.raises(InvalidInput):
        read_records(tmp_path / "input.json", "inputs")


def test_records_are_read(tmp_path: Path) -> None:
    fields = {"topic": "t", "value": 1, "window": {"start": 1, "end": 2, "type": "time"}}
    fields["headers"] = [{"KEY": "h", "VALUE": "YQ=="}]
    (tmp_path / "input.json").write_text(json.dumps({"inputs": [fields]}))
    assert [Record("t", None, 1, None, Window(1, 2), (("h", "YQ=="),))] == read_records(
        tmp_path / "input.json", "inputs"
    )
