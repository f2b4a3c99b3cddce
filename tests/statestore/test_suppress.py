"""What leaves a suppression, and when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from statestore.context import RecordContext
from statestore.errors import InvalidStateStore
from statestore.kinds.buffered import Change
from statestore.kinds.suppression import Eviction, SuppressionBuffer
from statestore.store import TransactionalMechanism
from statestore.suppress import Suppression, WhenFull
from statestore.windows import SessionWindows, TimeWindows
from tests.statestore.conftest import Setup, TaskUnderTest

Emitted = tuple[str, int | None, int]
# As long as the name of the topic through which a count is regrouped.
TOPIC = "suppress-test-KTABLE-AGGREGATE-STATE-STORE-0000000003-repartition"


class Counting:
    """A table of counts in front of a suppression: each change has the old count and the new one."""

    def __init__(self, task: TaskUnderTest, **options: Any) -> None:
        self.emitted: list[Emitted] = []
        self.counts: Counter[bytes] = Counter()
        self.raw: list[Emitted] = []
        self.buffer = task.open(SuppressionBuffer("s", **task.setup.options))
        self.suppression = Suppression(self.buffer, self._forward, **options)

    def _forward(self, eviction: Eviction) -> None:
        self.emitted.append(emitted(eviction.key, eviction.change, eviction.context))

    def add(self, key: bytes, by: int, time_ms: int) -> None:
        old = self.counts.get(key)
        self.counts[key] += by
        change = Change(number(self.counts[key]), number(old))
        record = RecordContext(TOPIC, 0, 0, time_ms)
        self.raw.append(emitted(key, change, record))
        self.suppression.process(key, change, record)


def number(count: int | None) -> bytes | None:
    return None if count is None else count.to_bytes(8, "big")


def emitted(key: bytes, change: Change, record: RecordContext) -> Emitted:
    count = None if change.new is None else int.from_bytes(change.new, "big")
    return key.decode(), count, record.timestamp_ms


def values_of_two_keys(counting: Counting) -> None:
    """k1=v1 at 0, k1=v2 at 1, k2=v1 at 2, counted by value."""
    counting.add(b"v1", 1, 0)
    counting.add(b"v1", -1, 1)
    counting.add(b"v2", 1, 1)
    counting.add(b"v1", 1, 2)


@pytest.mark.case("B-09")
def test_changes_wait_for_their_time(task: TaskUnderTest) -> None:
    counting = Counting(task, wait_ms=2)
    values_of_two_keys(counting)
    assert [("v1", 1, 0), ("v1", 0, 1), ("v2", 1, 1), ("v1", 1, 2)] == counting.raw
    assert [("v1", 1, 2)] == counting.emitted
    counting.add(b"tick", 1, 3)
    assert [("v1", 1, 2), ("v2", 1, 1)] == counting.emitted


@pytest.mark.case("B-10", "B-11")
@pytest.mark.parametrize("limit", [{"max_records": 1}, {"max_bytes": 200}])
def test_changes_leave_early_when_the_buffer_is_full(task: TaskUnderTest, limit: dict[str, int]) -> None:
    counting = Counting(task, wait_ms=10**9, **limit)
    values_of_two_keys(counting)
    assert [("v1", 0, 1), ("v2", 1, 1)] == counting.emitted
    counting.add(b"x", 1, 3)
    assert [("v1", 0, 1), ("v2", 1, 1), ("v1", 1, 2)] == counting.emitted


def test_a_full_buffer_that_may_not_emit_early_stops_the_task(task: TaskUnderTest) -> None:
    counting = Counting(task, wait_ms=10**9, max_records=1, when_full=WhenFull.SHUT_DOWN)
    counting.add(b"v1", 1, 0)
    with pytest.raises(InvalidStateStore, match="full"):
        counting.add(b"v2", 1, 1)
    assert [] == counting.emitted


def final_results(task: TaskUnderTest, grace_ms: int, end_of: Callable[[bytes], int]) -> Counting:
    return Counting(task, wait_ms=grace_ms, buffer_time=lambda key, _: end_of(key), final_results=True)


@pytest.mark.case("B-12")
def test_a_window_leaves_once_when_it_closes(task: TaskUnderTest) -> None:
    windows = TimeWindows(size_ms=2, advance_ms=2, grace_ms=1)
    counting = final_results(task, 1, lambda key: int(key) + 2)
    newest: dict[bytes, int] = {}
    stream_time, late = -1, []
    for time in (0, 1, 2, 1, 0, 5, 0):
        stream_time = max(stream_time, time)
        for start in windows.starts(time):
            if windows.is_closed(start, stream_time):
                late.append(time)
                continue
            key = str(start).encode()
            newest[key] = max(newest.get(key, 0), time)
            counting.add(key, 1, newest[key])
    assert [("0", 4, 1), ("2", 1, 2)] == counting.emitted
    assert [0] == late


@pytest.mark.case("B-13")
def test_a_session_leaves_once_when_it_closes_and_merged_ones_never(task: TaskUnderTest) -> None:
    windows = SessionWindows(gap_ms=5)
    counting = final_results(task, 5, lambda key: int(key.split(b"/")[2]))
    sessions: dict[tuple[str, int, int], int] = {}
    stream_time, late, raw = -1, [], []

    def send(session: tuple[str, int, int], new: int | None, old: int | None) -> None:
        key, change = "/".join(map(str, session)), Change(number(new), number(old))
        record = RecordContext(TOPIC, 0, 0, session[2])
        raw.append(emitted(key.encode(), change, record))
        counting.suppression.process(key.encode(), change, record)

    for key, time in [("k1", 0), ("k1", 5), ("k1", 1), ("k2", 11), ("k1", 5), ("k1", 30)]:
        stream_time = max(stream_time, time)
        merged = [s for s in sessions if s[0] == key and s[2] >= time - 5 and s[1] <= time + 5]
        session = (key, min([time, *(s[1] for s in merged)]), max([time, *(s[2] for s in merged)]))
        if windows.is_closed(session[2], stream_time):
            late.append((key, time))
            continue
        count, old = 1 + sum(sessions[s] for s in merged), sessions.get(session)
        for away in merged:
            count_away = sessions.pop(away)
            if away != session:
                send(away, None, count_away)
        sessions[session] = count
        send(session, count, old)

    assert [("k1/0/5", 3, 5), ("k2/11/11", 1, 11)] == counting.emitted
    assert [("k1", 5)] == late
    assert [("k1/0/0", None, 0)] == [change for change in raw if change[1] is None]


def test_a_rollback_takes_the_time_back_that_has_passed(tmp_path: Path) -> None:
    task = TaskUnderTest(Setup(TransactionalMechanism.INDEXED_BATCH, persistent=False), tmp_path)
    buffer = task.open(SuppressionBuffer("s"))
    finals: list[tuple[bytes, bytes | None]] = []
    suppression = Suppression(
        buffer,
        lambda out: finals.append((out.key, out.change.new)),
        wait_ms=0,
        buffer_time=lambda key, _: 10 if key == b"first" else 30,
        final_results=True,
    )
    for _ in range(2):
        finals.clear()
        for key, value, time_ms in ((b"first", b"1", 1), (b"first", b"2", 2), (b"second", b"1", 21)):
            suppression.process(key, Change(value), RecordContext("t", 0, 0, time_ms))
        assert [(b"first", b"2")] == finals
        buffer.rollback()


@pytest.mark.case("B-14")
def test_a_restart_loses_and_repeats_nothing(task: TaskUnderTest) -> None:
    limits = {"wait_ms": 10**9, "max_records": 3}
    before = Counting(task, **limits)
    for time in range(1, 6):
        before.add(b"k%d" % time, 1, time)
    assert [("k1", 1, 1), ("k2", 1, 2)] == before.emitted
    before.buffer.flush_cache()
    before.buffer.commit(5)
    changelog = list(task.logged)
    task.restart(before.buffer, wipe=True).close()

    after = Counting(task, **limits)
    after.buffer.restore(changelog)
    assert 3 == after.buffer.num_records
    for time in range(6, 9):
        after.add(b"k%d" % time, 1, time)
    assert [("k3", 1, 3), ("k4", 1, 4), ("k5", 1, 5)] == after.emitted
