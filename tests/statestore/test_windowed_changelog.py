"""Golden records: what windowed stores write to their changelogs, byte by byte, worked out by hand from the layouts.

A window's key is key, start, sequence; a session's is key, end, start. Numbers are big-endian, 8 bytes for a time and
4 for a sequence. 59,996 is ea5c, 120,000 is 1d4c0, 97 is 61.
"""

from __future__ import annotations

from typing import Any

import pytest

from statestore.kinds.session import Session
from statestore.kinds.timestamped_window import TimestampedWindow
from statestore.kinds.window import Window
from statestore.windows import Windowed
from tests.statestore.conftest import TaskUnderTest

LENGTHS: dict[str, Any] = {"retention_ms": 120_000, "window_size_ms": 3}


def golden(*records: tuple[str, str | None, int]) -> list[tuple[bytes, bytes | None, int]]:
    return [(bytes.fromhex(key), None if value is None else bytes.fromhex(value), at) for key, value, at in records]


@pytest.mark.case("W-37")
def test_window(task: TaskUnderTest) -> None:
    store = task.open(Window("s", **LENGTHS, **task.setup.options))
    task.at(1, time_ms=60_001)
    store.put(b"key", b"one", 59_996)
    store.put(b"", b"", 0)
    store.put(b"key", None, 59_996)
    expected = golden(
        ("6b6579 000000000000ea5c 00000000", "6f6e65", 60_001),
        ("0000000000000000 00000000", "", 60_001),
        ("6b6579 000000000000ea5c 00000000", None, 60_001),
    )
    assert expected == task.records()


@pytest.mark.case("W-35", "W-36")
def test_window_with_duplicates(task: TaskUnderTest) -> None:
    store = task.open(Window("s", **LENGTHS, retain_duplicates=True, **task.setup.options))
    task.at(1, time_ms=7)
    for value in (b"one", b"one", None, b"two"):
        store.put(b"key", value, 59_996)
    expected = golden(
        ("6b6579 000000000000ea5c 00000001", "6f6e65", 7),
        ("6b6579 000000000000ea5c 00000002", "6f6e65", 7),
        ("6b6579 000000000000ea5c 00000003", None, 7),
        ("6b6579 000000000000ea5c 00000004", "74776f", 7),
    )
    assert expected == task.records()


@pytest.mark.case("TW-01")
def test_timestamped_window(task: TaskUnderTest) -> None:
    store = task.open(TimestampedWindow("s", **LENGTHS, **task.setup.options))
    task.at(1, time_ms=7)
    store.put(b"key", bytes.fromhex("0000000000000061") + b"there", 120_000)
    store.put(b"key", None, 120_000)
    expected = golden(
        ("6b6579 000000000001d4c0 00000000", "7468657265", 97),
        ("6b6579 000000000001d4c0 00000000", None, 7),
    )
    assert expected == task.records()


@pytest.mark.case("TW-02")
def test_timestamped_window_with_duplicates(task: TaskUnderTest) -> None:
    store = task.open(TimestampedWindow("s", **LENGTHS, retain_duplicates=True, **task.setup.options))
    for _ in range(2):
        store.put(b"key", bytes.fromhex("0000000000000061") + b"there", 120_000)
    expected = golden(
        ("6b6579 000000000001d4c0 00000001", "7468657265", 97),
        ("6b6579 000000000001d4c0 00000002", "7468657265", 97),
    )
    assert expected == task.records()


@pytest.mark.case("S-29")
def test_session(task: TaskUnderTest) -> None:
    store = task.open(Session("s", retention_ms=120_000, **task.setup.options))
    task.at(1, time_ms=60_001)
    store.put(Windowed(b"key", 97, 59_996), b"one")
    store.remove(Windowed(b"key", 97, 59_996))
    expected = golden(
        ("6b6579 000000000000ea5c 0000000000000061", "6f6e65", 60_001),
        ("6b6579 000000000000ea5c 0000000000000061", None, 60_001),
    )
    assert expected == task.records()


def test_no_record_has_headers_unless_positions_are_asked_for(task: TaskUnderTest) -> None:
    store = task.open(Window("s", **LENGTHS, **task.setup.options))
    store.put(b"key", b"one", 0)
    assert [()] == [record.headers for record in task.logged]
