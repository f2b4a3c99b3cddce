"""A backlog is cut by time whatever the brokers have of it, and whatever they say of what lies before it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipelines.archive import Archive, open_archive
from pipelines.engine.recordtimes import RecordTimes
from pipelines.engine.source import SourceTopic
from statestore.config import KafkaConfig, ObjectsConfig
from statestore.kafka.admin import Topic
from statestore.kafka.reader import Record
from tests.engine.test_timecut import HOUR_MS, MINUTE_MS, NOW_MS, Log, batches, dropped, in_order, inputs, uneven

TOPIC = Topic("t", "id", 2)


class Brokers(Log):
    """A topic behind a source: brokers have it from some offsets on, and answer for all that they have."""

    def __init__(self, whole: Log, begins: dict[int, int], archive: ObjectsConfig | None = None) -> None:
        super().__init__(*whole.partitions)
        self.begins, self.reads = begins, 0
        query: Any = SimpleNamespace(name="q", stateless=False, source=SimpleNamespace(topic="t"))
        self.source = SourceTopic(query, KafkaConfig("nowhere:1"), accept_loss=False, archive=archive)
        admin: Any = SimpleNamespace(
            describe=lambda names: {"t": TOPIC},
            begins=lambda name, partitions: dict(self.begins),
            stable_ends=lambda name, partitions: self.ends,
            at_time=lambda name, time_ms, partitions: self.left(time_ms),
        )
        reader: Any = self
        self.source._admin, self.source._sampled = admin, RecordTimes(reader, "t")
        self.source.look()

    def kept(self) -> AbstractContextManager[None]:
        return nullcontext()

    def read(self, _topic: str, partition: int, *, start: int, end: int) -> Iterator[list[Record]]:
        """As `Reader` does."""
        self.reads += 1
        assert start >= self.begins[partition]
        times = enumerate(self.partitions[partition][start:end], start)
        yield from ([Record(None, b"", n, time)] for n, time in times if time is not None)

    def left(self, time_ms: int) -> dict[int, int]:
        """What brokers answer."""
        return {
            number: next((n for n in range(begin, len(times)) if (times[n] or -1) >= time_ms), len(times))
            for number, begin in self.begins.items()
            for times in [self.partitions[number]]
        }

    def first_at(self, time_ms: int, starts: Any, most: int) -> dict[int, int]:
        self.asked += 1
        return self.source.first_at(time_ms, starts, most)


class Shortened(Brokers):
    """A topic whose beginnings were archived in files of so many offsets, and deleted."""

    def __init__(self, whole: Log, begins: dict[int, int], config: ObjectsConfig, file_records: int) -> None:
        super().__init__(whole, begins, config)
        self.archive = open_archive(config, TOPIC)
        for partition in begins:
            for start in range(0, begins[partition], file_records):
                self.put(partition, start, min(start + file_records, begins[partition]))

    def put(self, partition: int, start: int, end: int) -> None:
        """Archive these offsets."""
        times = enumerate(self.partitions[partition][start:end], start)
        records = [Record(None, b"", n, time) for n, time in times if time is not None]
        assert self.archive.put(partition, start, end, records)


@pytest.fixture
def config(tmp_path: Path) -> ObjectsConfig:
    return ObjectsConfig(f"file://{tmp_path}/archive")


@pytest.mark.parametrize("begins", [{0: 1_000, 1: 100}, {0: 617, 1: 0}, {0: 0, 1: 33}])
@pytest.mark.parametrize("most", [15, 110, 700])
def test_the_order_is_that_of_a_log_that_is_whole(config: ObjectsConfig, begins: dict[int, int], most: int) -> None:
    whole = uneven()
    times = list(whole.partitions[0])
    # Some jump back, some are gone: all of a file, too.
    times[300:303], times[400:520] = [times[200], None, times[310]], [None] * 120
    whole = Log(times, whole.partitions[1])
    one = [record for ranges in batches(whole, most) for record in in_order(inputs(whole, ranges))]
    short = Shortened(whole, begins, config, 60)
    assert one == [record for ranges in batches(short, most) for record in in_order(inputs(whole, ranges))]
    assert 0 == dropped(whole, batches(short, most))


def test_files_that_lie_behind_are_forgotten_and_those_ahead_are_not_read(
    config: ObjectsConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Shortened(uneven(), {0: 1_000, 1: 100}, config, 50)
    listed = []
    pieces = Archive.pieces
    monkeypatch.setattr(Archive, "pieces", lambda self, n: listed.append(n) or pieces(self, n))
    batches(log, 110)
    times = log.source._archived_times()
    assert [0, 1] == sorted(listed), "the archive is listed once"
    assert all(piece.end > 1_000 - 2 * 110 for piece in times._read if piece.partition == 0)
    fresh = Shortened(uneven(), {0: 1_000, 1: 100}, ObjectsConfig(f"{config.url}/again"), 50)
    fresh.first_at(10**18, {0: 0, 1: 0}, 110)
    assert {0, 50, 100} == {piece.start for piece in fresh.source._archived_times()._read if piece.partition == 0}


def test_what_is_archived_later_is_found(config: ObjectsConfig) -> None:
    log = Shortened(uneven(), {0: 100, 1: 0}, config, 50)
    middle = log.partitions[0][150] or 0
    assert 100 == log.first_at(0, {0: 100, 1: 0}, 500)[0]
    assert 150 == log.first_at(middle, {0: 0, 1: 0}, 500)[0]
    log.put(0, 100, 200)
    log.begins[0] = 200
    assert 150 == log.first_at(middle, {0: 0, 1: 0}, 500)[0]


@pytest.mark.parametrize("most", [300, 1_000])
def test_a_record_that_was_ahead_of_its_time_long_ago_holds_nothing_back(most: int) -> None:
    hours = [[NOW_MS - 2 * HOUR_MS + n * 1_000 for n in range(7_200)] for _ in range(2)]
    # As far ahead as brokers take it; read when it came.
    hours[0][3_000] += 55 * MINUTE_MS
    log = Brokers(Log(*hours), {0: 0, 1: 0})
    cut = batches(log, most, begin=3_600)
    assert 0 == dropped(log, cut)
    for ranges in cut[:-1]:
        assert abs(ranges[0].offsets - ranges[1].offsets) <= 2
    # By halving, and what was seen is not looked at again.
    assert log.reads <= 25 * len(cut)
